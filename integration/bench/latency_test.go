package bench

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"go.uber.org/zap"

	"github.com/manxnet/manx/datastore/etcd"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/integration/lab"
	"github.com/manxnet/manx/integration/namespace"
)

// BenchmarkUpdateToKernel measures the time from sending an UPDATE with one prefix at the peer to the kernel's event of
// the route.
func BenchmarkUpdateToKernel(b *testing.B) {
	for _, sp := range speakers {
		b.Run(sp.name, func(b *testing.B) {
			s := newSite(b)
			running := sp.start(s, b)
			defer running.stop()
			p := s.connect(b)
			defer p.Close()
			time.Sleep(500 * time.Millisecond) // let the effects of the handshake settle
			routes := s.watchRoutes(b)
			var took []time.Duration
			for _, prefix := range lab.Prefixes(b.N) {
				u := lab.Announce(peerAS, s.ToRs[0].Address(s.node), []netip.Prefix{prefix})
				t0 := time.Now()
				if err := p.Send(u); err != nil {
					b.Fatal(err)
				}
				awaitRoute(b, routes, prefix)
				took = append(took, time.Since(t0))
				time.Sleep(2 * time.Millisecond) // one change at a time, as in a quiet cluster
			}
			report(b, took)
		})
	}
}

// watchRoutes returns the events of the node's routes from now on, until the end of the benchmark.
func (s *site) watchRoutes(b *testing.B) <-chan netlink.RouteUpdate {
	b.Helper()
	routes, done := make(chan netlink.RouteUpdate, 1024), make(chan struct{})
	b.Cleanup(func() { close(done) })
	if err := namespace.Inside(s.node.Namespace, func() {
		if err := netlink.RouteSubscribe(routes, done); err != nil {
			b.Error(err)
		}
	}); err != nil {
		b.Fatal(err)
	}
	return routes
}

func awaitRoute(b *testing.B, routes <-chan netlink.RouteUpdate, prefix netip.Prefix) {
	b.Helper()
	timeout := time.After(10 * time.Second)
	for {
		select {
		case r := <-routes:
			if r.Dst != nil && r.Dst.String() == prefix.String() {
				return
			}
		case <-timeout:
			b.Fatalf("no route for %s", prefix)
		}
	}
}

// BenchmarkBlockToUpdate measures the time until a new block of the node is in an UPDATE at the peer: for Manx from the
// request to store the block's affinity, for BIRD from `configure` with one more static route. The datastore's time to
// acknowledge the request is reported too, since BIRD's time has no such part.
func BenchmarkBlockToUpdate(b *testing.B) {
	b.Run("manx", func(b *testing.B) {
		s := newSite(b)
		running := s.startManxd(b)
		defer running.stop()
		store, err := openStore(s)
		if err != nil {
			b.Fatal(err)
		}
		defer store.Close()
		var acknowledged []time.Duration
		measureOrigin(b, s, func(block netip.Prefix) time.Time {
			t0 := time.Now()
			key := model.AffinityKey(model.Affinity{Type: model.AffinityHost, Host: "n1", CIDR: block})
			_, err := store.Create(context.Background(),
				model.NewObject(key, &model.BlockAffinity{State: model.StateConfirmed}))
			if err != nil {
				b.Fatal(err)
			}
			acknowledged = append(acknowledged, time.Since(t0))
			return t0
		})
		slices.Sort(acknowledged)
		b.ReportMetric(float64(acknowledged[len(acknowledged)/2].Microseconds()), "store-p50-us")
	})
	b.Run("bird", func(b *testing.B) {
		s := newSite(b)
		running := s.startBird(b)
		defer running.stop()
		ctl, err := birdControl(s)
		if err != nil {
			b.Fatal(err)
		}
		defer ctl.Close()
		statics := ""
		measureOrigin(b, s, func(block netip.Prefix) time.Time {
			statics += fmt.Sprintf("route %s blackhole;\n", block)
			if err := os.WriteFile(s.birdStatics(), []byte(statics), 0o644); err != nil {
				b.Fatal(err)
			}
			t0 := time.Now()
			if _, err := ctl.Write([]byte("configure\n")); err != nil {
				b.Fatal(err)
			}
			return t0
		})
	})
}

// measureOrigin makes the node originate blocks one by one; originate returns when the clock starts.
func measureOrigin(b *testing.B, s *site, originate func(netip.Prefix) time.Time) {
	b.Helper()
	p := s.connect(b)
	defer p.Close()
	time.Sleep(time.Second) // let the effects of the handshake settle
	var took []time.Duration
	for i := range b.N {
		block := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 244, byte(i >> 2), byte(i<<6) & 0xc0}), 26)
		t0 := originate(block)
		took = append(took, awaitUpdate(b, s, p, block).Sub(t0))
		time.Sleep(2 * time.Millisecond) // one change at a time, as in a quiet cluster
	}
	report(b, took)
}

// awaitUpdate returns the time of the UPDATE with the block.
func awaitUpdate(b *testing.B, s *site, p *lab.Peer, block netip.Prefix) time.Time {
	b.Helper()
	nlri := append([]byte{byte(block.Bits())}, block.Addr().AsSlice()...)
	timeout := time.After(10 * time.Second)
	for {
		select {
		case u, ok := <-p.Updates:
			if !ok {
				b.Fatalf("the session is lost; log of manxd:\n%s", s.node.Log())
			}
			if bytes.Contains(u.Body, nlri) {
				return u.At
			}
		case <-timeout:
			b.Fatalf("no UPDATE for %s; log of manxd:\n%s", block, s.node.Log())
		}
	}
}

func report(b *testing.B, took []time.Duration) {
	slices.Sort(took)
	at := func(q float64) float64 { return float64(took[int(q*float64(len(took)-1))].Nanoseconds()) / 1e3 }
	b.ReportMetric(at(0.50), "p50-us")
	b.ReportMetric(at(0.99), "p99-us")
	b.ReportMetric(0, "ns/op")
}

// openStore connects to the datastore that the node's daemon embeds.
func openStore(s *site) (store *etcd.Store, err error) {
	return etcd.Open(context.Background(), etcd.Config{Endpoints: []string{s.node.EtcdSocket()}}, zap.NewNop())
}

func birdControl(s *site) (net.Conn, error) {
	var conn net.Conn
	err := lab.Eventually(5*time.Second, func() (err error) {
		conn, err = net.Dial("unix", s.birdSocket())
		return err
	})
	if err == nil {
		go func() { // its responses are not needed
			buf := make([]byte, 4096)
			for {
				if _, err := conn.Read(buf); err != nil {
					return
				}
			}
		}()
	}
	return conn, err
}
