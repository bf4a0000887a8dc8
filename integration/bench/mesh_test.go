package bench

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/manxnet/manx/datastore/etcd"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/integration/lab"
	"github.com/manxnet/manx/integration/namespace"
)

// meshPrefixes is the number of blocks that each node of the mesh announces.
const meshPrefixes = 4

// meshPeer is the address of node i of the mesh; as text it is greater than the node's own, so it connects.
func meshPeer(i int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, 201, byte(i / 250), byte(1 + i%250)})
}

// newMesh builds a node, and a router namespace with n more addresses, one for each peer of the benchmark.
func newMesh(tb testing.TB, n int) *site {
	tb.Helper()
	s := newSite(tb)
	router := s.ToRs[0]
	lines := make([]string, n)
	for i := range n {
		lines[i] = fmt.Sprintf("addr add %s/32 dev lo", meshPeer(i))
	}
	file := filepath.Join(s.Dir, "mesh-addresses")
	if err := os.WriteFile(file, []byte(strings.Join(lines, "\n")+"\n"), 0o644); err != nil {
		tb.Fatal(err)
	}
	if out, err := namespace.Command(router.Namespace, "ip", "-batch", file).CombinedOutput(); err != nil {
		tb.Fatalf("%v: %s", err, out)
	}
	if out, err := s.node.Run("ip", "route", "add", "10.201.0.0/16", "via",
		router.Address(s.node).String()); err != nil {
		tb.Fatalf("%v: %s", err, out)
	}
	return s
}

func meshNode(i int) string {
	return fmt.Sprintf("apiVersion: projectcalico.org/v3\nkind: Node\nmetadata: {name: m%d}\n"+
		"spec: {bgp: {ipv4Address: %s/32}}\n", i, meshPeer(i))
}

func (s *site) meshManxd(n int) func(testing.TB) speaker {
	return func(tb testing.TB) speaker {
		tb.Helper()
		if err := s.node.StartManxd(append(s.node.EmbedDatastore(), "--no-default-pools")...); err != nil {
			tb.Fatal(err)
		}
		if err := s.node.Ready(30 * time.Second); err != nil {
			tb.Fatal(err)
		}
		docs := make([]string, n)
		for i := range docs {
			docs[i] = meshNode(i)
		}
		if n == 0 {
			return speaker{"manx", s.node.Manxd().PID(), s.node.Manxd().Kill}
		}
		if err := s.node.Apply(strings.Join(docs, "---\n")); err != nil {
			tb.Fatal(err)
		}
		return speaker{"manx", s.node.Manxd().PID(), s.node.Manxd().Kill}
	}
}

func (s *site) meshBird(n int) func(testing.TB) speaker {
	return func(tb testing.TB) speaker {
		tb.Helper()
		var text strings.Builder
		fmt.Fprintf(&text, "router id %s;\nprotocol device {}\nprotocol direct { ipv4; }\n", s.node.IP4)
		text.WriteString("protocol kernel { ipv4 { export where source = RTS_BGP; import none; }; merge paths on; }\n")
		fmt.Fprintf(&text, "template bgp mesh { local %s as %d; multihop; passive on; ipv4 { import all; export "+
			"none; gateway recursive; add paths on; }; }\n", s.node.IP4, nodeAS)
		for i := range n {
			fmt.Fprintf(&text, "protocol bgp m%d from mesh { neighbor %s as %d; }\n", i, meshPeer(i), nodeAS)
		}
		fmt.Fprintf(&text, "include %q;\n", s.birdStatics())
		return s.runBird(tb, text.String())
	}
}

// BenchmarkMesh has n nodes connect at once, announce four blocks each, and waits until the kernel has all routes.
func BenchmarkMesh(b *testing.B) {
	for _, n := range []int{100, 500} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			s := newMesh(b, n)
			starts := map[string]func(testing.TB) speaker{"manx": s.meshManxd(n), "bird": s.meshBird(n)}
			sum := map[string]*ingest{"manx": {}, "bird": {}}
			for range b.N {
				for _, name := range []string{"manx", "bird"} {
					sp := starts[name](b)
					r := s.measureMesh(b, sp, n)
					t := sum[name]
					t.wall, t.cpu, t.peak = t.wall+r.wall, t.cpu+r.cpu, max(t.peak, r.peak)
				}
			}
			reportBoth(b, sum)
		})
	}
}

func (s *site) measureMesh(b *testing.B, sp speaker, n int) ingest {
	b.Helper()
	defer func() {
		sp.stop()
		s.flush(b)
	}()
	s.acceptsAll(b, n)
	base, cpu0, t0 := fibSize(sp.pid), cpu(sp.pid), time.Now()
	peers := s.connectMesh(b, n)
	defer closeAll(peers)
	if err := waitFIB(sp.pid, base, n*meshPrefixes, 2*time.Minute); err != nil {
		b.Fatalf("%s: %v", sp.name, err)
	}
	return ingest{time.Since(t0), cpu(sp.pid) - cpu0, statusMB(sp.pid, "VmHWM")}
}

// acceptsAll waits until the speaker accepts the last of its peers.
func (s *site) acceptsAll(tb testing.TB, n int) {
	tb.Helper()
	p, err := lab.ConnectPeerFrom(s.ToRs[0].Namespace, meshPeer(n-1), s.node.IP4.String()+":179", nodeAS,
		5*time.Millisecond)
	if err != nil {
		tb.Fatal(err)
	}
	p.Close()
	time.Sleep(6 * time.Second) // GoBGP may ignore a lost peer for five seconds
}

// connectMesh makes all sessions at once; each peer then announces its blocks.
func (s *site) connectMesh(tb testing.TB, n int) []*lab.Peer {
	tb.Helper()
	peers := make([]*lab.Peer, n)
	errs := make([]error, n)
	prefixes := lab.Prefixes(n * meshPrefixes)
	var wait sync.WaitGroup
	for i := range n {
		wait.Go(func() {
			if peers[i], errs[i] = lab.ConnectPeerFrom(s.ToRs[0].Namespace, meshPeer(i), s.node.IP4.String()+":179",
				nodeAS, 50*time.Millisecond); errs[i] == nil {
				errs[i] = peers[i].Send(lab.AnnounceInternal(meshPeer(i), prefixes[i*meshPrefixes:][:meshPrefixes]))
			}
		})
	}
	wait.Wait()
	for i, err := range errs {
		if err != nil {
			tb.Fatalf("peer %d: %v", i, err)
		}
	}
	return peers
}

func closeAll(peers []*lab.Peer) {
	for _, p := range peers {
		p.Close()
	}
}

// BenchmarkPeerAdded adds one peer to a node with n peers: from the write of the peer until the speaker accepts its
// session.
func BenchmarkPeerAdded(b *testing.B) {
	for _, n := range []int{0, 500} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			s := newMesh(b, n+1)
			manx := s.meshManxd(n)(b)
			store, err := openStore(s)
			if err != nil {
				b.Fatal(err)
			}
			took := map[string][]time.Duration{"manx": s.measureAdded(b, manx, n, addToStore(b, store, n))}
			store.Close()
			manx.stop()
			s.flush(b)
			bird := s.meshBird(n)(b)
			took["bird"] = s.measureAdded(b, bird, n, s.addToBird(b, n))
			bird.stop()
			mean := map[string]float64{}
			for name, list := range took {
				for _, t := range list {
					mean[name] += t.Seconds() * 1000 / float64(len(list))
				}
				slices.Sort(list)
				b.ReportMetric(mean[name], name+"-ms")
				b.ReportMetric(list[len(list)/2].Seconds()*1000, name+"-p50-ms")
			}
			b.ReportMetric(mean["manx"]/mean["bird"], "ratio")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// measureAdded adds and removes the peer again and again; wanted changes the speaker's configuration. It begins when
// the speaker has finished its work for the n sessions, which includes a second advertisement a second after each came
// up.
func (s *site) measureAdded(b *testing.B, sp speaker, n int, wanted func(bool)) (took []time.Duration) {
	b.Helper()
	if n > 0 {
		s.acceptsAll(b, n)
		base := fibSize(sp.pid)
		defer closeAll(s.connectMesh(b, n))
		if err := waitFIB(sp.pid, base, n*meshPrefixes, 2*time.Minute); err != nil {
			b.Fatalf("%s: %v", sp.name, err)
		}
	}
	awaitIdle(b, sp.pid)
	for range b.N {
		t0 := time.Now()
		wanted(true)
		p, err := lab.ConnectPeerFrom(s.ToRs[0].Namespace, meshPeer(n), s.node.IP4.String()+":179", nodeAS,
			time.Millisecond)
		if err != nil {
			b.Fatal(err)
		}
		took = append(took, time.Since(t0))
		p.Close()
		wanted(false)
		time.Sleep(200 * time.Millisecond) // let the effects of the peer's loss settle
	}
	return took
}

// awaitIdle waits until a process uses less than 2 % of a processor for eight seconds. By then it has also returned the
// memory of a burst to the host.
func awaitIdle(tb testing.TB, pid int) {
	tb.Helper()
	if err := lab.Eventually(2*time.Minute, func() error {
		before := cpu(pid)
		time.Sleep(8 * time.Second) // the time over which the process is measured
		if used := cpu(pid) - before; used > 160*time.Millisecond {
			return fmt.Errorf("the process took %s in eight seconds", used)
		}
		return nil
	}); err != nil {
		tb.Fatal(err)
	}
}

func addToStore(tb testing.TB, store *etcd.Store, n int) func(bool) {
	key := model.ResourceKey(model.KindNode, fmt.Sprintf("m%d", n))
	return func(wanted bool) {
		var err error
		if wanted {
			node := &model.Node{Spec: model.NodeSpec{
				BGP: &model.NodeBGPSpec{IPv4Address: meshPeer(n).String() + "/32"}}}
			node.Name = key.Name
			_, err = store.Create(context.Background(), model.NewObject(key, node))
		} else {
			_, err = store.Delete(context.Background(), key, 0)
		}
		if err != nil {
			tb.Fatal(err)
		}
	}
}

func (s *site) addToBird(tb testing.TB, n int) func(bool) {
	ctl, err := birdControl(s)
	if err != nil {
		tb.Fatal(err)
	}
	return func(wanted bool) {
		text := ""
		if wanted {
			text = fmt.Sprintf("protocol bgp m%d from mesh { neighbor %s as %d; }\n", n, meshPeer(n), nodeAS)
		}
		if err := os.WriteFile(s.birdStatics(), []byte(text), 0o644); err != nil {
			tb.Fatal(err)
		}
		if _, err := ctl.Write([]byte("configure\n")); err != nil {
			tb.Fatal(err)
		}
	}
}
