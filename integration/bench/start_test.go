package bench

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/integration/lab"
	"github.com/manxnet/manx/integration/namespace"
)

// BenchmarkStart measures the time from the start of manxd, on a datastore with n other nodes of four blocks each,
// until it is ready. It has no peers, so that the time does not include the wait for a thousand absent peers. The
// datastore is an etcd beside manxd, or the embedded one, whose memory and work then count.
func BenchmarkStart(b *testing.B) {
	for _, c := range []struct {
		name     string
		nodes    int
		embedded bool
	}{{"0-nodes", 0, false}, {"100-nodes", 100, false}, {"1000-nodes", 1000, false}, {"embedded-0-nodes", 0, true}} {
		b.Run(c.name, func(b *testing.B) {
			s := newSite(b)
			args := s.node.EmbedDatastore()
			if !c.embedded {
				args = []string{"--datastore=etcdv3", "--etcd-endpoints=" + startEtcd(b, s)}
			}
			if err := s.node.StartManxd(append(args, "--no-default-pools")...); err != nil {
				b.Fatal(err)
			}
			if err := s.node.Ready(30 * time.Second); err != nil {
				b.Fatal(err)
			}
			populate(b, s, c.nodes)
			s.node.Manxd().Kill()
			var wall, work time.Duration
			var rss, private, anonymous float64
			for range b.N {
				t0 := time.Now()
				if err := s.node.StartManxd(); err != nil {
					b.Fatal(err)
				}
				if err := s.node.Ready(2 * time.Minute); err != nil {
					b.Fatal(err)
				}
				wall += time.Since(t0)
				pid := s.node.Manxd().PID()
				work += cpu(pid)
				time.Sleep(time.Second) // the memory of the start is part of the figure
				rss, private, anonymous = max(rss, statusMB(pid, "VmRSS")), max(private, privateMB(pid)),
					max(anonymous, statusMB(pid, "RssAnon"))
				s.node.Manxd().Kill()
			}
			b.ReportMetric(float64(wall.Milliseconds())/float64(b.N), "ready-ms")
			b.ReportMetric(float64(work.Milliseconds())/float64(b.N), "cpu-ms")
			b.ReportMetric(rss, "rss-MB")
			b.ReportMetric(private, "private-MB")
			b.ReportMetric(anonymous, "anonymous-MB")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// startEtcd runs an etcd on the node until the benchmark ends, and returns its endpoint. It is reached through the
// socket that an embedded one has, too.
func startEtcd(b *testing.B, s *site) string {
	b.Helper()
	if _, err := exec.LookPath("etcd"); err != nil {
		b.Skip("etcd is not installed")
	}
	address := fmt.Sprintf("%s:2379", s.node.IP4)
	forward(b, s.node, strings.TrimPrefix(s.node.EtcdSocket(), "unix://"), address)
	endpoint := "http://" + address
	cmd := namespace.Command(s.node.Namespace, "etcd", "--data-dir="+filepath.Join(s.node.Dir, "etcd"),
		"--log-level=error",
		"--listen-client-urls="+endpoint, "--advertise-client-urls="+endpoint,
		"--listen-peer-urls=http://127.0.0.1:2380")
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	return endpoint
}

// forward passes connections to a socket on to an address inside the node.
func forward(b *testing.B, n *lab.Node, socket, address string) {
	b.Helper()
	if err := os.MkdirAll(filepath.Dir(socket), 0o700); err != nil {
		b.Fatal(err)
	}
	l, err := net.Listen("unix", socket)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = l.Close() })
	pass := func(from, to net.Conn) {
		defer to.Close()
		_, _ = io.Copy(to, from)
	}
	go func() {
		for {
			here, err := l.Accept()
			if err != nil {
				return
			}
			there, err := n.Dial("tcp", address)
			if err != nil {
				here.Close()
				continue
			}
			go pass(here, there)
			go pass(there, here)
		}
	}()
}

// populate writes n nodes and their blocks.
func populate(b *testing.B, s *site, n int) {
	b.Helper()
	store, err := openStore(s)
	if err != nil {
		b.Fatal(err)
	}
	defer store.Close()
	ctx := context.Background()
	off := false
	config := &model.BGPConfiguration{Spec: model.BGPConfigurationSpec{NodeToNodeMeshEnabled: &off}}
	key := model.ResourceKey(model.KindBGPConfiguration, "default")
	if old, err := store.Get(ctx, key); err == nil {
		if _, err := store.Delete(ctx, key, old.Revision); err != nil {
			b.Fatal(err)
		}
	}
	if _, err := store.Create(ctx, model.NewObject(key, config)); err != nil {
		b.Fatal(err)
	}
	for i := range n {
		name := fmt.Sprintf("other-%d", i)
		node := &model.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
		node.Spec.BGP = &model.NodeBGPSpec{IPv4Address: fmt.Sprintf("10.201.%d.%d/16", i/250, 1+i%250)}
		if _, err := store.Create(ctx, model.NewObject(model.ResourceKey(model.KindNode, name), node)); err != nil {
			b.Fatal(err)
		}
		for j := range 4 {
			if err := createBlock(ctx, store, name, i*4+j); err != nil {
				b.Fatal(err)
			}
		}
	}
}
