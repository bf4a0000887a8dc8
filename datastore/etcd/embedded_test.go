package etcd_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/manxnet/manx/datastore/etcd"
	"github.com/manxnet/manx/datastore/etcd/embedded"
	"github.com/manxnet/manx/datastore/model"
)

// serveEnv makes the test binary an embedded server in the directory that it names, to be killed.
const (
	serveEnv  = "MANX_TEST_SERVE"
	listenEnv = "MANX_TEST_LISTEN"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(strangerEnv); dir != "" {
		stranger(dir)
	}
	if dir := os.Getenv(serveEnv); dir != "" {
		unix.Umask(0) // the least restrictive one
		e, err := embedded.Start(context.Background(),
			embedded.Config{DataDir: dir, Listen: os.Getenv(listenEnv), MinFreeBytes: 1}, zap.NewNop())
		if err != nil {
			fmt.Println("error", err)
			os.Exit(1)
		}
		fmt.Println(e.Config().Endpoints[0])
		select {}
	}
	os.Exit(m.Run())
}

// serveInProcess runs an embedded server in another process.
func serveInProcess(t *testing.T, dir, listen string) (*os.Process, string) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), serveEnv+"="+dir, listenEnv+"="+listen)
	cmd.SysProcAttr = &unix.SysProcAttr{Pdeathsig: unix.SIGKILL}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil || !strings.HasPrefix(line, "unix") {
		t.Fatalf("the server prints %q, %v", line, err)
	}
	return cmd.Process, strings.TrimSpace(line)
}

// Acknowledged writes survive kill -9 at every point of a stream of writes.
func TestEmbeddedSurvivesKill(t *testing.T) {
	dir := t.TempDir()
	acknowledged := 0
	for round := range 3 {
		process, endpoint := serveInProcess(t, dir, "")
		s := open(t, etcd.Config{Endpoints: []string{endpoint}})
		objects, _, err := s.List(t.Context(), model.KindBGPPeer, "")
		if err != nil {
			t.Fatal(err)
		}
		// the last write may exist, but its response is lost
		if n := len(objects); n != acknowledged && n != acknowledged+1 {
			t.Fatalf("round %d: %d objects are there, %d were acknowledged", round, n, acknowledged)
		}
		acknowledged = len(objects)
		kill := time.AfterFunc(time.Duration(50+100*round)*time.Millisecond, func() { process.Signal(unix.SIGKILL) })
		defer kill.Stop()
		for {
			if _, err := s.Create(t.Context(), peer(fmt.Sprintf("p%d", acknowledged), "10.0.0.1")); err != nil {
				break
			}
			acknowledged++
		}
		process.Wait()
	}
}

func startEmbedded(t *testing.T, c embedded.Config) (*embedded.Server, error) {
	t.Helper()
	if c.DataDir == "" {
		c.DataDir = t.TempDir()
	}
	if c.MinFreeBytes == 0 {
		c.MinFreeBytes = 1
	}
	e, err := embedded.Start(t.Context(), c, zap.NewNop())
	if err == nil {
		t.Cleanup(func() { e.Close() })
	}
	return e, err
}

func TestEmbeddedRefusesToStart(t *testing.T) {
	free := func() string {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		return l.Addr().String()
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	open, notOurs := t.TempDir(), t.TempDir()
	if err := os.Chmod(open, 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(notOurs, "etcd.sock"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	pki := newPKI(t)
	taken := free()
	for name, c := range map[string]struct {
		config embedded.Config
		want   []string
	}{
		"port in use": {embedded.Config{Listen: taken}, []string{taken, "in use by another program"}},
		"not an address of this host": {embedded.Config{Listen: "192.0.2.1:0", Insecure: true},
			[]string{"192.0.2.1:0", "no address of this host"}},
		"insecure, but where": {embedded.Config{Insecure: true},
			[]string{"--embedded-insecure", "--embedded-listen=ADDRESS:PORT"}},
		"certificates, but where": {embedded.Config{CertFile: pki.server.cert, KeyFile: pki.server.key},
			[]string{"TLS files", "--embedded-listen=ADDRESS:PORT"}},
		"clients not verified": {embedded.Config{Listen: "127.0.0.1:0", CertFile: pki.server.cert,
			KeyFile: pki.server.key}, []string{"127.0.0.1:0", "--embedded-ca-file", "--embedded-insecure"}},
		"no port": {embedded.Config{Listen: "127.0.0.1"}, []string{`"127.0.0.1"`, "want ADDRESS:PORT"}},
		"a name": {embedded.Config{Listen: "localhost:2379"},
			[]string{"localhost:2379", "IP address"}},
		"certificate without key": {embedded.Config{Listen: "127.0.0.1:0", CertFile: pki.server.cert},
			[]string{pki.server.cert, "both or none"}},
		"certificate file missing": {embedded.Config{Listen: "127.0.0.1:0", CertFile: "/nowhere/c.pem",
			KeyFile: pki.server.key, CAFile: pki.ca}, []string{"/nowhere/c.pem", "no such file"}},
		"key of another certificate": {embedded.Config{Listen: "127.0.0.1:0", CertFile: pki.server.cert,
			KeyFile: pki.client.key, CAFile: pki.ca}, []string{pki.client.key, "does not match"}},
		"CA file without a certificate": {embedded.Config{Listen: "127.0.0.1:0", CertFile: pki.server.cert,
			KeyFile: pki.server.key, CAFile: file}, []string{file, "no PEM certificate"}},
		"data directory of everybody": {embedded.Config{DataDir: open},
			[]string{open, "can be written by others (mode 0777", "0700"}},
		"something else is the socket": {embedded.Config{DataDir: notOurs},
			[]string{notOurs + "/etcd.sock", "no socket"}},
		"path too long for a socket": {embedded.Config{DataDir: filepath.Join(t.TempDir(),
			strings.Repeat("x", 100))}, []string{"at most 107", "shorter data directory"}},
		"data directory is a file": {embedded.Config{DataDir: file, Listen: "127.0.0.1:0"},
			[]string{file, "not a directory"}},
		"disk has less than what must stay": {embedded.Config{MinFreeBytes: 1 << 60},
			[]string{"is full", "MiB are free"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := startEmbedded(t, c.config)
			if err == nil {
				t.Fatal("it started")
			}
			for _, want := range c.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%q lacks %q", err, want)
				}
			}
		})
	}
}

func TestEmbeddedDataDirBelongsToOneProcess(t *testing.T) {
	dir := t.TempDir()
	process, _ := serveInProcess(t, dir, "")
	_, err := startEmbedded(t, embedded.Config{DataDir: dir})
	if err == nil || !strings.Contains(err.Error(), dir+" is in use by another manxd") {
		t.Fatalf("second server: %v", err)
	}
	process.Signal(unix.SIGKILL)
	process.Wait()
	if _, err := startEmbedded(t, embedded.Config{DataDir: dir}); err != nil {
		t.Fatalf("after the first is dead: %v", err)
	}
}

func TestEmbeddedOverTLS(t *testing.T) {
	pki := newPKI(t)
	e, err := startEmbedded(t, embedded.Config{Listen: "0.0.0.0:0", CAFile: pki.ca, CertFile: pki.server.cert,
		KeyFile: pki.server.key})
	if err != nil {
		t.Fatal(err)
	}
	// Other hosts need a valid certificate, this process does not.
	a := create(t, open(t, e.Config()), peer("a", "10.0.0.1"))
	remote := open(t, etcd.Config{Endpoints: []string{"https://" + e.Address()}, CAFile: pki.ca,
		CertFile: pki.client.cert, KeyFile: pki.client.key})
	if _, err := remote.Get(t.Context(), a.Key); err != nil {
		t.Error(err)
	}
	// Replaced files are used for the next connection.
	must(t, errors.Join(os.Rename(pki.expiredServer.cert, pki.server.cert),
		os.Rename(pki.expiredServer.key, pki.server.key)))
	if _, err := etcd.Open(t.Context(), etcd.Config{Endpoints: []string{"https://" + e.Address()}, CAFile: pki.ca,
		CertFile: pki.client.cert, KeyFile: pki.client.key}, zap.NewNop()); err == nil ||
		!strings.Contains(err.Error(), "expired") {
		t.Errorf("after the server's certificate was replaced by one that has expired: %v", err)
	}
	socket := strings.TrimPrefix(e.Config().Endpoints[0], "unix://")
	if st, err := os.Stat(socket); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("socket: %v, %v", st, err)
	}
}

// On a full disk writes fail, reads and watches go on, and nothing is lost. Writes succeed again when the disk has
// space.
func TestEmbeddedOnAFullDisk(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("mounting a small file system wants root")
	}
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=320m,mode=0700"); err != nil {
		t.Skip("no tmpfs:", err)
	}
	t.Cleanup(func() { unix.Unmount(dir, unix.MNT_DETACH) })
	e, err := startEmbedded(t, embedded.Config{DataDir: dir, MinFreeBytes: 64 << 20})
	if err != nil {
		t.Fatal(err)
	}
	s := open(t, e.Config())
	tier := model.NewObject(model.ResourceKey(model.KindTier, "a"), new(model.Tier))
	a := create(t, s, tier)
	m := watch(t, s, model.KindTier)
	m.UntilInSync()

	hog := filepath.Join(dir, "hog")
	keys := 0 // the part that the database may have to rewrite while the disk is full
	for ; keys < 3000; keys++ {
		if _, err := s.Create(t.Context(), peer(fmt.Sprint("x", keys), "10.0.0.1")); err != nil {
			t.Fatal(err)
		}
	}
	fill(t, hog)
	_, err = s.Create(t.Context(), peer("b", "10.0.0.2"))
	if err == nil || !strings.Contains(err.Error(), "disk of data directory "+dir+" is full") ||
		!strings.Contains(err.Error(), "create BGPPeer b") {
		t.Fatalf("create on a full disk: %v", err)
	}
	if got, err := s.Get(t.Context(), a.Key); err != nil || got.Revision != a.Revision {
		t.Fatalf("read on a full disk: %v, %v", got, err)
	}
	// etcd's own writes, without a request, must not end the process either.
	raw, err := clientv3.New(clientv3.Config{Endpoints: e.Config().Endpoints, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	defer raw.Close()
	if _, err := raw.Compact(t.Context(), a.Revision, clientv3.WithCompactPhysical()); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(hog); err != nil {
		t.Fatal(err)
	}
	create(t, s, peer("b", "10.0.0.2"))
	c := create(t, s, model.NewObject(model.ResourceKey(model.KindTier, "c"), new(model.Tier)))
	m.UntilState(map[model.Key]int64{a.Key: a.Revision, c.Key: c.Revision})
	objects, _, err := s.List(t.Context(), model.KindBGPPeer, "")
	if err != nil || len(objects) != keys+1 {
		t.Errorf("%d objects are left of %d, %v", len(objects), keys+1, err)
	}
	if m.Lost > 0 {
		t.Error("the watch was disturbed")
	}
}

// fill writes until the disk is full.
func fill(t *testing.T, file string) {
	t.Helper()
	f, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for size := 1 << 20; size > 0; {
		if _, err := f.Write(make([]byte, size)); err != nil {
			size /= 2
		}
	}
}

// When the quota is reached, writes fail until something is deleted; then the server makes itself writable again.
func TestEmbeddedRecoversFromItsQuota(t *testing.T) {
	e, err := startEmbedded(t, embedded.Config{QuotaBytes: 8 << 20})
	if err != nil {
		t.Fatal(err)
	}
	s := open(t, e.Config())
	a := create(t, s, peer("a", "10.0.0.1"))
	raw, err := clientv3.New(clientv3.Config{Endpoints: e.Config().Endpoints, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	defer raw.Close()
	big := strings.Repeat("x", 1<<20)
	for i := 0; ; i++ {
		if _, err = raw.Put(t.Context(), fmt.Sprint("/big/", i), big); err != nil {
			break
		}
	}
	_, err = s.Create(t.Context(), peer("b", "10.0.0.2"))
	if err == nil || !strings.Contains(err.Error(), "datastore is full") {
		t.Fatalf("create over the quota: %v", err)
	}
	if _, err := raw.Delete(t.Context(), "/big/", clientv3.WithPrefix()); err != nil {
		t.Fatalf("delete over the quota: %v", err)
	}
	for end := time.Now().Add(patience); ; time.Sleep(100 * time.Millisecond) {
		if _, err = s.Create(t.Context(), peer("b", "10.0.0.2")); err == nil {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("still not writable: %v", err)
		}
	}
	if got, err := s.Get(t.Context(), a.Key); err != nil || got.Revision != a.Revision {
		t.Errorf("a is lost: %v, %v", got, err)
	}
}
