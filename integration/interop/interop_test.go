package interop

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/manxnet/manx/integration/lab"
	"github.com/manxnet/manx/integration/namespace"
)

var (
	pool4, pool6   = netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("fd00:244::/64")
	theirs4        = netip.MustParsePrefix("198.51.100.0/24")
	theirs6        = netip.MustParsePrefix("2001:db8:77::/48")
	shared         = netip.MustParsePrefix("10.244.99.0/26") // in the pool, so that nodes pass it on
	passedOn       = netip.MustParsePrefix("10.244.98.0/26") // as well
	calicoPriority = "2147482623"
)

// bench is one Manx node with two routers. One of them is under test, the other one feeds the node.
type bench struct {
	*lab.Lab
	n            *lab.Node
	r            router
	feeder       router // the same software, on the second uplink
	own4, own6   netip.Prefix
	addr, addr2  netip.Addr // of the routers
	addr6        netip.Addr
	node2        netip.Addr // the node's address on the second uplink
	passwordFile string
}

func newBench(t *testing.T, name string, make func(site) router, programs ...string) *bench {
	t.Helper()
	// nft and ss decide and show who dials; in some cells BIRD is the second router.
	bin, missing := lab.Require(append([]string{"ip", "ping", "nft", "ss", "bird", "birdc"}, programs...)...)
	if missing != nil {
		t.Skip(missing)
	}
	l, err := lab.New(lab.Spec{Name: fmt.Sprint(name, os.Getpid()%1e6), Bin: bin,
		IPv6: true, ToRs: 2, PlainRouters: true, Nodes: []lab.NodeSpec{{Name: "n1"}}})
	must(t, err)
	b := &bench{Lab: l, n: l.Nodes[0]}
	t.Cleanup(func() {
		if b.r != nil {
			if t.Failed() {
				t.Logf("end of the log of manxd:\n%s\nend of the log of %s:\n%s", tail(b.n.Log()), b.r.name(),
					tail(b.r.log()))
			}
			b.r.stop()
			b.feeder.stop()
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	b.r, b.feeder = make(newSite(t, l, 0)), make(newSite(t, l, 1))
	b.addr, b.addr2, b.addr6 = l.ToRs[0].Address(b.n), l.ToRs[1].Address(b.n), l.ToRs[0].Address6(b.n)
	b.node2 = netip.AddrFrom4([4]byte{10, 200, 101, 11})
	secrets := filepath.Join(b.n.Dir, "secrets")
	must(t, os.MkdirAll(filepath.Join(secrets, "bgp"), 0o755))
	b.passwordFile = filepath.Join(secrets, "bgp", "router")
	must(t, b.n.StartManxd(append(b.n.EmbedDatastore(), "--no-default-pools", "--ip=autodetect", "--ip6=autodetect",
		"--ip-autodetection-method=interface=eth0", "--ip6-autodetection-method=interface=eth0", "--bgp-password-dir="+
			secrets)...))
	must(t, b.n.Ready(patience))
	must(t, b.n.Apply(fmt.Sprintf("apiVersion: projectcalico.org/v3\nkind: IPPool\nmetadata: {name: pods4}\n"+
		"spec: {cidr: %s, blockSize: 26, ipipMode: Never, natOutgoing: false}\n---\n"+
		"apiVersion: projectcalico.org/v3\nkind: IPPool\nmetadata: {name: pods6}\n"+
		"spec: {cidr: \"%s\", blockSize: 122, natOutgoing: false}\n", pool4, pool6)))
	_, err = b.n.AddPod("p1", lab.DualStack)
	must(t, err)
	b.own4, b.own6 = b.block(t, "-4"), b.block(t, "-6")
	return b
}

func (b *bench) block(t *testing.T, family string) netip.Prefix {
	t.Helper()
	var p netip.Prefix
	eventually(t, func() error {
		for _, r := range b.kernel(t, family, "type", "blackhole") {
			p = netip.MustParsePrefix(r.Dst)
			return nil
		}
		return fmt.Errorf("the node has no block of family %s", family)
	})
	return p
}

type kernelRoute struct {
	Dst, Gateway string
	Metric       uint32
	NextHops     []struct{ Gateway string }
}

func (b *bench) kernel(t *testing.T, family string, words ...string) (list []kernelRoute) {
	t.Helper()
	out, err := exec.Command("ip", append([]string{"-n", b.n.Namespace, family, "-j", "route", "show", "proto", "12"},
		words...)...).Output()
	if err == nil && len(out) > 0 {
		must(t, json.Unmarshal(out, &list))
	}
	return list
}

// route waits until the node's kernel sends a prefix to exactly these routers; none: until it has no route.
func (b *bench) route(t *testing.T, p netip.Prefix, gateways ...netip.Addr) {
	t.Helper()
	family := "-4"
	if p.Addr().Is6() {
		family = "-6"
	}
	eventually(t, func() error {
		have := map[string]bool{}
		for _, r := range b.kernel(t, family, p.String()) {
			if r.Gateway != "" {
				have[r.Gateway] = true
			}
			for _, h := range r.NextHops {
				have[h.Gateway] = true
			}
		}
		ok := len(have) == len(gateways)
		for _, g := range gateways {
			ok = ok && have[g.String()]
		}
		if !ok {
			return fmt.Errorf("the node sends %s to %v, want %v; its peers:\n%s\n%s:\n%s", p, have, gateways, b.peers(),
				b.r.name(), b.r.routes(p))
		}
		return nil
	})
}

// learned waits until a router has a route to a prefix, with all these texts in its output.
func learned(t *testing.T, r router, p netip.Prefix, texts ...string) {
	t.Helper()
	eventually(t, func() error {
		out := r.routes(p)
		for _, text := range append(texts, p.String()) {
			if !strings.Contains(out, text) {
				return fmt.Errorf("%s does not show %q of %s:\n%s\n%s", r.name(), text, p, out, r.sessions())
			}
		}
		return nil
	})
}

func awaitWithdrawal(t *testing.T, r router, p netip.Prefix) {
	t.Helper()
	eventually(t, func() error {
		if n := r.paths(p); n != 0 {
			return fmt.Errorf("%s still has %d paths to %s", r.name(), n, p)
		}
		return nil
	})
}

func (b *bench) peers() string {
	out, err := b.n.Manxctl("get", "peers", "-o", "wide")
	if err != nil {
		return err.Error()
	}
	return out
}

type peerState struct {
	Address, State, Reason, Established string
	Flaps                               int
	Prefixes                            struct{ Received, Accepted int }
}

func (b *bench) peer(t *testing.T, addr netip.Addr) peerState {
	t.Helper()
	out, err := b.n.Manxctl("get", "peers", "-o", "json")
	must(t, err)
	var all struct{ Peers []peerState }
	must(t, json.Unmarshal([]byte(out), &all))
	for _, p := range all.Peers {
		if p.Address == addr.String() {
			return p
		}
	}
	return peerState{}
}

func (b *bench) established(t *testing.T, addr netip.Addr) peerState {
	t.Helper()
	var p peerState
	eventually(t, func() error {
		if p = b.peer(t, addr); p.State != "Established" {
			return fmt.Errorf("session with %s: %+v", addr, p)
		}
		return nil
	})
	return p
}

// checkNotReset checks that a session has not been reset.
func (b *bench) checkNotReset(t *testing.T, addr netip.Addr, was peerState) {
	t.Helper()
	if now := b.peer(t, addr); now.Established != was.Established || now.Flaps != was.Flaps {
		t.Errorf("the session did not run on: was %+v, is %+v", was, now)
	}
}

// bgpPeer is the BGPPeer of a session.
func bgpPeer(name string, addr netip.Addr, as uint32, annotations, spec string) string {
	return fmt.Sprintf("apiVersion: projectcalico.org/v3\nkind: BGPPeer\n"+
		"metadata: {name: %s, annotations: {%s}}\nspec: {node: n1, peerIP: \"%s\", asNumber: %d%s}\n---\n", name,
		annotations, addr, as, spec)
}

// removeObjects removes the objects that a cell has stored.
func (b *bench) removeObjects(t *testing.T) {
	t.Helper()
	for _, kind := range []string{"bgppeers", "bgpfilters", "bgpconfigurations"} {
		out, err := b.n.Manxctl("get", kind, "-o", "name")
		must(t, err)
		for _, name := range strings.Fields(out) {
			if _, err := b.n.Manxctl("delete", name); err != nil {
				t.Errorf("delete %s: %v", name, err)
			}
		}
	}
	_ = os.Remove(b.passwordFile)
	b.r.stop()
	b.feeder.stop()
}

// external and internal are the usual tasks of a router.
func (b *bench) external() peering {
	return peering{as: 65010, manxAS: 64512, local: b.addr, manx: b.n.IP4, announce: []netip.Prefix{theirs4}}
}

func (b *bench) internal() peering {
	p := b.external()
	p.as = 64512
	return p
}

// establish establishes a session with the router under test; both sides learn routes from each other.
func (b *bench) establish(t *testing.T, p peering, annotations, spec string) peerState {
	t.Helper()
	b.r.run(t, p)
	must(t, b.n.Apply(bgpPeer("router", p.local, p.as, annotations, spec)))
	own := b.own4
	if p.manx.Is6() {
		own = b.own6
	}
	learned(t, b.r, own)
	b.route(t, p.announce[0], p.local)
	return b.established(t, p.local)
}

func tail(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return strings.Join(lines[max(0, len(lines)-40):], "\n")
}

// watch records the routes that a kernel deletes from its main table.
func watch(t *testing.T, ns string) (deleted func(p netip.Prefix) bool) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "monitor")
	f, err := os.Create(file)
	must(t, err)
	cmd := namespace.Command(ns, "ip", "monitor", "route")
	cmd.Stdout = f
	must(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait(); f.Close() })
	eventually(t, func() error { // it receives events
		probe := []string{"-n", ns, "route", "add", "blackhole", "192.0.2.0/32", "table", "4242"}
		if out := run("ip", probe...); out != "" {
			return errors.New(out)
		}
		probe[3] = "del"
		run("ip", probe...)
		if b, err := os.ReadFile(file); err != nil || !strings.Contains(string(b), "4242") {
			return fmt.Errorf("ip monitor shows nothing: %w", err)
		}
		return nil
	})
	return func(p netip.Prefix) bool {
		b, err := os.ReadFile(file)
		must(t, err)
		for line := range strings.Lines(string(b)) {
			if strings.HasPrefix(line, "Deleted") && strings.Contains(line, p.String()) {
				return true
			}
		}
		return false
	}
}
