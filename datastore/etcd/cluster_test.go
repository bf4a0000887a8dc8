package etcd_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/manxnet/manx/datastore/etcd"
	"github.com/manxnet/manx/datastore/etcd/etcdtest"
	"github.com/manxnet/manx/datastore/model"
)

// member is a process of the distribution's etcd.
type member struct {
	name, client, peer, dir string
	args                    []string
	cmd                     *exec.Cmd
}

// startCluster runs the distribution's etcd server, an older version than the embedded one, as a cluster.
func startCluster(t *testing.T, size int) []*member {
	t.Helper()
	program, err := exec.LookPath("etcd")
	if err != nil {
		t.Skip("no etcd program (Debian package etcd-server):", err)
	}
	var members []*member
	var cluster []string
	for i := range size {
		m := &member{name: fmt.Sprint("m", i), client: "http://" + closedPort(t), peer: "http://" + closedPort(t),
			dir: t.TempDir()}
		cluster = append(cluster, m.name+"="+m.peer)
		members = append(members, m)
	}
	for _, m := range members {
		m.args = []string{program, "--name", m.name, "--data-dir", filepath.Join(m.dir, "data"),
			"--listen-client-urls", m.client, "--advertise-client-urls", m.client,
			"--listen-peer-urls", m.peer, "--initial-advertise-peer-urls", m.peer,
			"--initial-cluster", strings.Join(cluster, ","), "--initial-cluster-token", members[0].dir}
		m.start(t)
		t.Cleanup(m.kill)
	}
	s := plainClient(t, members...)
	for end := time.Now().Add(patience); ; time.Sleep(100 * time.Millisecond) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		_, err := s.Get(ctx, "x")
		cancel()
		if err == nil {
			return members
		}
		if time.Now().After(end) {
			log, _ := os.ReadFile(filepath.Join(members[0].dir, "log"))
			t.Fatalf("cluster does not start: %v\n%s", err, log)
		}
	}
}

func (m *member) start(t *testing.T) {
	t.Helper()
	log, err := os.OpenFile(filepath.Join(m.dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	m.cmd = exec.Command(m.args[0], m.args[1:]...)
	m.cmd.Stdout, m.cmd.Stderr = log, log
	m.cmd.SysProcAttr = &unix.SysProcAttr{Pdeathsig: unix.SIGKILL}
	if err := m.cmd.Start(); err != nil {
		t.Fatal(err)
	}
}

func (m *member) kill() {
	if m.cmd != nil {
		m.cmd.Process.Kill()
		m.cmd.Wait()
		m.cmd = nil
	}
}

func endpoints(members ...*member) []string {
	var urls []string
	for _, m := range members {
		urls = append(urls, m.client)
	}
	return urls
}

func plainClient(t *testing.T, members ...*member) *clientv3.Client {
	t.Helper()
	c, err := clientv3.New(clientv3.Config{Endpoints: endpoints(members...), Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// leader returns the leader among the members.
func leader(t *testing.T, members []*member) *member {
	t.Helper()
	for _, m := range members {
		status, err := plainClient(t, m).Status(t.Context(), m.client)
		if err != nil {
			t.Fatal(err)
		}
		if status.Leader == status.Header.MemberId {
			return m
		}
	}
	t.Fatal("no leader")
	return nil
}

// The leader is killed, then a second member, so that there is no majority, then both come back: no change is lost.
func TestClusterLosesItsLeader(t *testing.T) {
	members := startCluster(t, 3)
	s := open(t, etcd.Config{Endpoints: endpoints(members...), RequestTimeout: 2 * time.Second})
	a := create(t, s, peer("a", "10.0.0.1"))
	m := watch(t, s, model.KindBGPPeer)
	m.UntilInSync()

	first := leader(t, members)
	first.kill()
	want := map[model.Key]int64{a.Key: a.Revision}
	write := func(name string) {
		t.Helper()
		for end := time.Now().Add(patience); ; time.Sleep(100 * time.Millisecond) {
			o, err := s.Create(t.Context(), peer(name, "10.0.0.2"))
			if err == nil {
				want[o.Key] = o.Revision
				return
			}
			if o, err := s.Get(t.Context(), model.ResourceKey(model.KindBGPPeer, name)); err == nil {
				want[o.Key] = o.Revision // the response to an earlier attempt was lost
				return
			}
			if time.Now().After(end) {
				t.Fatal(err)
			}
		}
	}
	write("b")
	m.UntilState(want)

	var rest []*member
	for _, x := range members {
		if x != first {
			rest = append(rest, x)
		}
	}
	second := leader(t, rest)
	second.kill()
	lost := m.Lost
	m.Until("the loss of the majority", func() bool { return m.Lost > lost })
	first.start(t)
	second.start(t)
	write("c")
	m.UntilState(want)
	if got := m.Of(a.Key); got != fmt.Sprintf("u%d", a.Revision) {
		t.Errorf("a did not change, but its events are %s", got)
	}
}

// A member that is cut off from the others fails no request: it has no leader, and the next member is asked.
func TestMemberWithoutLeader(t *testing.T) {
	cluster := etcdtest.StartCluster(t, 3)
	s := cluster.Store(t)
	cluster.CutOff(0)
	alone, err := clientv3.New(clientv3.Config{Endpoints: cluster.Config().Endpoints[:1], Logger: zap.NewNop()})
	must(t, err)
	defer alone.Close()
	for end := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		ctx, cancel := context.WithTimeout(clientv3.WithRequireLeader(t.Context()), 200*time.Millisecond)
		_, err := alone.Put(ctx, "/x", "")
		cancel()
		if errors.Is(err, rpctypes.ErrNoLeader) {
			break
		}
		if time.Now().After(end) {
			t.Fatal("the member that is cut off has a leader: ", err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	for i := range 6 { // each member in turn
		name := fmt.Sprint("p", i)
		o, err := s.Create(ctx, peer(name, "10.0.0.1"))
		must(t, err)
		_, err = s.Get(ctx, o.Key)
		must(t, err)
		_, err = s.Update(ctx, o)
		must(t, err)
	}
}
