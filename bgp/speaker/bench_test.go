package speaker

import (
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"slices"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/osrg/gobgp/v4/api"
	"github.com/osrg/gobgp/v4/pkg/server"
	"go.uber.org/zap"

	"github.com/manxnet/manx/bgp"
)

// BenchmarkIngest measures from the first UPDATE of a peer until Take has returned all routes. A starting peer packs
// many routes into an UPDATE; routes that all differ in their attributes have an UPDATE each. With a limit just above
// the number of routes they are counted several times.
func BenchmarkIngest(b *testing.B) {
	for _, c := range []struct{ n, pack, limit int }{
		{1_000, 500, 0}, {10_000, 500, 0}, {100_000, 500, 0}, {100_000, 1, 0}, {100_000, 1, 100_001},
	} {
		n := c.n
		b.Run(fmt.Sprintf("routes=%d/per-update=%d/limit=%d", n, c.pack, c.limit), func(b *testing.B) {
			s, d := testSpeaker(b, Config{Logger: zap.NewNop()})
			d.Sessions, d.Refusals = []bgp.Session{passive("127.0.1.60")}, bgp.Martians()
			d.Sessions[0].MaxPrefixes = uint32(c.limit)
			mustSet(b, s, d)
			p := dialFake(b, "127.0.1.60", listenOf(d), fakeOptions{as: 64512, id: "10.99.0.60"})
			var updates [][]byte
			list := manyPrefixes(n)
			var gone [][]byte
			for k := 0; k < n; k += c.pack {
				part := list[k:min(n, k+c.pack)]
				u, err := update("10.0.0.2", 0, 100, part...).Serialize()
				if err != nil {
					b.Fatal(err)
				}
				w, err := withdrawal(part...).Serialize()
				if err != nil {
					b.Fatal(err)
				}
				updates, gone = append(updates, u), append(gone, w)
			}
			count := func(want int, have bool) {
				for got := 0; got < want; {
					for _, r := range s.Take(0) {
						if (len(r.Paths) > 0) == have {
							got++
						}
					}
					if got < want {
						<-s.Changed()
					}
				}
			}
			b.ReportAllocs()
			cpu := time.Duration(0)
			for b.Loop() {
				start := processCPU()
				for _, u := range updates {
					p.write(u)
				}
				count(n, true)
				cpu += processCPU() - start
				b.StopTimer()
				for _, w := range gone {
					p.write(w)
				}
				count(n, false)
				b.StartTimer()
			}
			b.ReportMetric(float64(cpu.Nanoseconds())/1000/float64(b.N)/float64(n), "cpu-us/route")
		})
	}
}

// processCPU is the CPU time of this process so far, the peer's part included.
func processCPU() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkPassedOn measures from the first UPDATE of an eBGP peer until five others, which read all, get nothing more.
func BenchmarkPassedOn(b *testing.B) {
	for _, pack := range []int{500, 1} {
		b.Run(fmt.Sprintf("per-update=%d", pack), func(b *testing.B) {
			const routes, receivers = 50_000, 5
			s, d := testSpeaker(b, Config{Logger: zap.NewNop(), RestartDeferral: time.Second})
			d.ExportPrefixes = []netip.Prefix{pfx("20.0.0.0/8")}
			address := func(i int) string { return fmt.Sprintf("127.0.1.%d", 70+i) }
			for i := range receivers + 1 {
				sess := passive(address(i))
				sess.PeerAS, sess.Type = uint32(65001+i), bgp.SessionGlobal
				d.Sessions = append(d.Sessions, sess)
			}
			mustSet(b, s, d)
			options := func(i int) fakeOptions {
				return fakeOptions{as: uint32(65001 + i), id: fmt.Sprintf("10.99.3.%d", 1+i)}
			}
			sender := dialFake(b, address(0), listenOf(d), options(0))
			var sent countedBytes
			for i := 1; i <= receivers; i++ {
				go func() { _, _ = io.Copy(&sent, dialDeaf(b, address(i), listenOf(d), options(i))) }()
			}
			for i := range receivers + 1 {
				awaitSession(b, s, address(i), "Established", established)
			}
			var announced, gone [][]byte
			for part := range slices.Chunk(manyPrefixes(routes), pack) {
				u, _ := update("10.0.0.2", 65001, 0, part...).Serialize()
				w, _ := withdrawal(part...).Serialize()
				announced, gone = append(announced, u), append(gone, w)
			}
			write := func(list [][]byte) {
				before := sent.Load()
				for _, u := range list {
					sender.write(u)
				}
				for last := before; last == before || last != sent.Load(); time.Sleep(50 * time.Millisecond) {
					last = sent.Load()
				}
			}
			cpu, total := time.Duration(0), int64(0)
			for b.Loop() {
				start, before := processCPU(), sent.Load()
				write(announced)
				cpu, total = cpu+processCPU()-start, total+sent.Load()-before
				b.StopTimer()
				write(gone)
				b.StartTimer()
			}
			each := float64(b.N * routes * receivers)
			b.ReportMetric(float64(cpu.Nanoseconds())/1000/each, "cpu-us/sent-route")
			b.ReportMetric(float64(total)/each, "bytes/sent-route")
		})
	}
}

// countedBytes counts and discards what is written.
type countedBytes struct{ atomic.Int64 }

func (c *countedBytes) Write(p []byte) (int, error) {
	c.Add(int64(len(p)))
	return len(p), nil
}

// BenchmarkOriginate measures from Set with one more local prefix until a peer has the UPDATE.
func BenchmarkOriginate(b *testing.B) {
	s, d := testSpeaker(b, Config{Logger: zap.NewNop()})
	d.Sessions = []bgp.Session{passive("127.0.1.61")}
	mustSet(b, s, d)
	p := dialFake(b, "127.0.1.61", listenOf(d), fakeOptions{as: 64512, id: "10.99.0.61"})
	awaitSession(b, s, "127.0.1.61", "Established", established)
	i := 0
	for b.Loop() {
		i++
		prefix := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}), 32)
		d.Originated = []bgp.Origin{{Prefix: prefix, LocalPref: 100}}
		mustSet(b, s, d)
		p.await("the route", func() bool { return p.routes[prefix] != nil })
	}
}

// BenchmarkGoBGPAddPeer measures the AddPeer of GoBGP alone beside n peers that do not connect.
func BenchmarkGoBGPAddPeer(b *testing.B) {
	for _, n := range []int{0, 500} {
		b.Run(fmt.Sprintf("peers=%d", n), func(b *testing.B) {
			srv := server.NewBgpServer(server.LoggerOption(slog.New(slog.DiscardHandler), new(slog.LevelVar)))
			go srv.Serve()
			defer srv.Stop()
			ctx := b.Context()
			if err := srv.StartBgp(ctx, &api.StartBgpRequest{Global: &api.Global{Asn: 64512, RouterId: "10.99.0.1",
				ListenPort: -1, Families: []uint32{0, 1}}}); err != nil {
				b.Fatal(err)
			}
			add := func(i int) *api.Peer {
				s := passive(fmt.Sprintf("10.98.%d.%d", i/250, 1+i%250))
				p := Config{}.withDefaults().peerConfig(s)
				if err := srv.AddPeer(ctx, &api.AddPeerRequest{Peer: p}); err != nil {
					b.Fatal(err)
				}
				return p
			}
			for i := range n {
				add(i)
			}
			b.ReportAllocs()
			for b.Loop() {
				p := add(n)
				b.StopTimer()
				if err := srv.DeletePeer(ctx, &api.DeletePeerRequest{Address: p.Conf.NeighborAddress}); err != nil {
					b.Fatal(err)
				}
				b.StartTimer()
			}
		})
	}
}
