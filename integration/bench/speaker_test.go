package bench

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/manxnet/manx/integration/lab"
	"github.com/manxnet/manx/integration/namespace"
)

const (
	peerAS = 65000
	nodeAS = 64512
)

// site is one node with one cable to a router namespace, in which the benchmark acts as the router.
type site struct {
	*lab.Lab
	node *lab.Node
	as   uint32 // the router's
}

func newSite(tb testing.TB) *site {
	tb.Helper()
	bin, missing := lab.Require("ip", "bird")
	if missing != nil {
		tb.Skip(missing)
	}
	l, err := lab.New(lab.Spec{Name: fmt.Sprintf("b%d", os.Getpid()), Bin: bin, PlainRouters: true,
		Nodes: []lab.NodeSpec{{Name: benchNode}}})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := l.Close(); err != nil {
			tb.Error(err)
		}
	})
	return &site{l, l.Nodes[0], peerAS}
}

// speaker is a program on the node that speaks BGP and fills the kernel's table.
type speaker struct {
	name string
	pid  int
	stop func()
}

// speakers are the compared programs.
var speakers = []struct {
	name  string
	start func(*site, testing.TB) speaker
}{{"manx", (*site).startManxd}, {"bird", (*site).startBird}}

func (s *site) startManxd(tb testing.TB) speaker {
	tb.Helper()
	if err := s.node.StartManxd(append(s.node.EmbedDatastore(), "--no-default-pools")...); err != nil {
		tb.Fatal(err)
	}
	if err := s.node.Ready(30 * time.Second); err != nil {
		tb.Fatal(err)
	}
	err := s.node.Apply(fmt.Sprintf(`
apiVersion: projectcalico.org/v3
kind: BGPPeer
metadata: {name: router}
spec: {peerIP: %s, asNumber: %d}
---
apiVersion: projectcalico.org/v3
kind: IPPool
metadata: {name: pods}
spec: {cidr: 10.244.0.0/16}
`, s.ToRs[0].Address(s.node), s.as))
	if err != nil {
		tb.Fatal(err)
	}
	return speaker{"manx", s.node.Manxd().PID(), s.node.Manxd().Kill}
}

func (s *site) startBird(tb testing.TB) speaker {
	tb.Helper()
	text := fmt.Sprintf(`router id %[1]s;
protocol device {}
protocol direct { ipv4; }
protocol static own { ipv4;
include "%[5]s";
}
protocol kernel { ipv4 { export where source = RTS_BGP; import none; }; merge paths on; }
protocol bgp peer { local %[1]s as %[2]d; neighbor %[3]s as %[4]d; connect delay time 1; ipv4 { import all; export where source = RTS_STATIC; }; }
`, s.node.IP4, nodeAS, s.ToRs[0].Address(s.node), s.as, s.birdStatics())
	return s.runBird(tb, text)
}

// runBird starts BIRD on the node; the file of statics is empty at first.
func (s *site) runBird(tb testing.TB, text string) speaker {
	tb.Helper()
	conf := filepath.Join(s.node.Dir, "bird.conf")
	for file, content := range map[string]string{conf: text, s.birdStatics(): ""} {
		if err := os.WriteFile(file, []byte(content), 0o644); err != nil {
			tb.Fatal(err)
		}
	}
	if out, err := s.node.Run("bird", "-p", "-c", conf); err != nil {
		tb.Fatalf("%v: %s", err, out)
	}
	cmd := namespace.Command(s.node.Namespace, "bird", "-f", "-c", conf, "-s", s.birdSocket())
	if err := cmd.Start(); err != nil {
		tb.Fatal(err)
	}
	return speaker{"bird", cmd.Process.Pid, func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }}
}

func (s *site) birdStatics() string { return filepath.Join(s.node.Dir, "statics.conf") }
func (s *site) birdSocket() string  { return filepath.Join(s.node.Dir, "bird.ctl") }

// connect makes the session that the node's speaker waits for.
func (s *site) connect(tb testing.TB) *lab.Peer {
	tb.Helper()
	router := s.ToRs[0]
	p, err := lab.ConnectPeer(router.Namespace, s.node.IP4.String()+":179", s.as, router.Address(s.node))
	if err != nil {
		tb.Fatalf("%v; log of manxd:\n%s", err, s.node.Log())
	}
	tb.Cleanup(p.Close)
	return p
}

// announce is an UPDATE of the router.
func (s *site) announce(prefixes []netip.Prefix) []byte {
	nextHop := s.ToRs[0].Address(s.node)
	if s.as == nodeAS {
		return lab.AnnounceInternal(nextHop, prefixes)
	}
	return lab.Announce(s.as, nextHop, prefixes)
}

// flush removes the routes that a speaker left in the kernel.
func (s *site) flush(tb testing.TB) {
	tb.Helper()
	if _, err := s.node.Run("ip", "route", "flush", "proto", "bird"); err != nil {
		tb.Fatal(err)
	}
}
