package speaker

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	gobgp "github.com/osrg/gobgp/v4/pkg/packet/bgp"

	"github.com/manxnet/manx/bgp"
	"github.com/manxnet/manx/bgp/wire/message"
)

// announce6 builds an UPDATE that announces IPv6 prefixes over MP_REACH_NLRI.
func announce6(nextHop string, prefixes ...netip.Prefix) *gobgp.BGPMessage {
	reach, err := gobgp.NewPathAttributeMpReachNLRI(gobgp.RF_IPv6_UC, nlris(prefixes), ip(nextHop))
	if err != nil {
		panic(err)
	}
	attrs := []gobgp.PathAttributeInterface{gobgp.NewPathAttributeOrigin(0), gobgp.NewPathAttributeAsPath(nil),
		gobgp.NewPathAttributeLocalPref(100), reach}
	return gobgp.NewBGPUpdateMessage(nil, attrs, nil)
}

// awaitRejected waits until exactly these prefixes are rejected, each with its class: "CLASS PREFIX".
func awaitRejected(t *testing.T, s *Speaker, want ...string) {
	t.Helper()
	slices.Sort(want)
	var got []string
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		got = got[:0]
		for _, r := range s.Rejected() {
			got = append(got, fmt.Sprintf("%s %s", r.Class, r.Prefix))
			if r.Reason == "" || !r.Path.Peer.IsValid() || !r.Path.NextHop.IsValid() {
				t.Errorf("%+v", r)
			}
		}
		if slices.Sort(got); slices.Equal(got, want) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("rejected:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	}
}

// Martians are refused from nodes of the mesh, from reflected and from external peers, with a reason, and reach neither
// the table nor another peer; the prefixes around them do. Withdrawn routes are not counted.
func TestMartiansAreRefused(t *testing.T) {
	t.Parallel()
	s, d := testSpeaker(t, Config{})
	d.Refusals = append(bgp.Martians(), bgp.Refusal{Class: bgp.RefusedOwnAddress, Reason: "own",
		Match: bgp.PrefixMatch{CIDR: pfx("10.0.0.1/32"), Min: 32, Max: 32}})
	d.ExportPrefixes = []netip.Prefix{pfx("0.0.0.0/0")} // so that nothing but refusals keeps routes from the other peer
	d.Sessions = []bgp.Session{passive("127.0.5.1"), passive("127.0.5.2"), passive("127.0.5.3")}
	d.Sessions[1].PeerAS, d.Sessions[1].Outsider, d.Sessions[2].PeerAS = 64999, true, 65001
	mustSet(t, s, d)
	node := dialFake(t, "127.0.5.1", listenOf(d), fakeOptions{as: 64512, id: "10.99.5.1"})
	router := dialFake(t, "127.0.5.2", listenOf(d), fakeOptions{as: 64999, id: "10.99.5.2"})
	other := dialFake(t, "127.0.5.3", listenOf(d), fakeOptions{as: 65001, id: "10.99.5.3"})
	for _, a := range []string{"127.0.5.1", "127.0.5.2", "127.0.5.3"} {
		awaitSession(t, s, a, "Established", established)
	}
	byNode := []netip.Prefix{pfx("169.254.1.0/24"), pfx("0.0.0.0/8"), pfx("240.0.0.0/4"), pfx("255.255.255.255/32"),
		pfx("0.0.0.0/32"), pfx("10.0.0.1/32")}
	byRouter := []netip.Prefix{pfx("169.254.169.254/32"), pfx("0.1.0.0/16"), pfx("127.1.0.0/16"), pfx("224.1.0.0/16"),
		pfx("224.0.0.0/3")}
	node.send(update("10.0.0.2", 0, 100, byNode...))
	router.send(update("10.0.0.3", 64999, 0, byRouter...))
	node.send(update("10.0.0.2", 0, 100, pfx("128.0.0.0/1"), pfx("10.0.0.0/31")))
	router.send(update("10.0.0.3", 64999, 0, pfx("0.0.0.0/0"), pfx("0.0.0.0/1")))
	table := routeTable{}
	awaitRoutes(t, s, table, "the aggregates", func() bool { return len(table) == 4 })
	awaitRejected(t, s, "link_local 169.254.1.0/24", "this_network 0.0.0.0/8", "reserved 240.0.0.0/4",
		"broadcast 255.255.255.255/32", "unspecified 0.0.0.0/32",
		"own_address 10.0.0.1/32", "link_local 169.254.169.254/32", "this_network 0.1.0.0/16", "loopback 127.1.0.0/16",
		"multicast 224.1.0.0/16", "reserved 224.0.0.0/3")
	other.await("the aggregates", func() bool { return len(other.routes) == 4 })
	other.mu.Lock()
	for p := range other.routes {
		if slices.Contains(byNode, p) || slices.Contains(byRouter, p) {
			t.Errorf("%s is passed on", p)
		}
	}
	other.mu.Unlock()
	received, err := s.ReceivedFrom(ip("127.0.5.1"))
	if err != nil {
		t.Fatal(err)
	}
	for r := range received {
		if refused := slices.Contains(byNode, r.Prefix); refused == r.Verdict.Accept {
			t.Errorf("%s: verdict %+v", r.Prefix, r.Verdict)
		}
	}
	node.send(withdrawal(byNode[1:]...))
	router.write(message.New(3, 6, 4)) // NOTIFICATION: its routes are removed
	awaitRejected(t, s, "link_local 169.254.1.0/24")
	if node.isClosed() {
		t.Error("the session was lost")
	}
}

func TestMartiansOfIPv6AreRefused(t *testing.T) {
	t.Parallel()
	s, d := testSpeaker(t, Config{})
	d.Refusals = bgp.Martians()
	d.Sessions = []bgp.Session{{Address: ip("::1"), Type: bgp.SessionMesh, LocalAS: 64512, PeerAS: 64512,
		Passive: true}}
	d.Global.ListenAddresses = append(d.Global.ListenAddresses, ip("::1"))
	mustSet(t, s, d)
	p := dialFake(t, "::1", fmt.Sprintf("[::1]:%d", d.Global.ListenPort),
		fakeOptions{as: 64512, id: "10.99.5.9", family: gobgp.RF_IPv6_UC})
	awaitSession(t, s, "::1", "Established", established)
	mapped := netip.PrefixFrom(ip("::ffff:10.0.0.0"), 104)
	p.send(announce6("fd00::2", pfx("fe80::/10"), pfx("fe80::5/128"), mapped, pfx("::ffff:0:0/96"), pfx("::/128"),
		pfx("::1/128"), pfx("ff05::/16"), pfx("fd01::/64"), pfx("::/0")))
	table := routeTable{}
	awaitRoutes(t, s, table, "the others", func() bool { return len(table) == 2 })
	awaitRejected(t, s, "link_local fe80::/10", "link_local fe80::5/128", "ipv4_mapped ::ffff:10.0.0.0/104",
		"ipv4_mapped ::ffff:0.0.0.0/96",
		"unspecified ::/128", "loopback ::1/128", "multicast ff05::/16")
	if p.isClosed() {
		t.Error("the session was lost")
	}
}

// A setting takes effect on existing routes, in both directions, on sessions that stay up.
func TestRefusalsChangeLive(t *testing.T) {
	t.Parallel()
	s, d := testSpeaker(t, Config{})
	d.Refusals = bgp.Martians()
	d.Sessions = []bgp.Session{passive("127.0.5.21"), passive("127.0.5.22")}
	d.Sessions[1].PeerAS, d.Sessions[1].Outsider = 64999, true
	mustSet(t, s, d)
	node := dialFake(t, "127.0.5.21", listenOf(d), fakeOptions{as: 64512, id: "10.99.5.21"})
	router := dialFake(t, "127.0.5.22", listenOf(d), fakeOptions{as: 64999, id: "10.99.5.22"})
	awaitSession(t, s, "127.0.5.21", "Established", established)
	awaitSession(t, s, "127.0.5.22", "Established", established)
	router.send(update("10.0.0.3", 64999, 0, pfx("0.0.0.0/0"), pfx("10.244.1.5/32"), pfx("10.244.1.0/26"),
		pfx("10.244.2.0/26"), pfx("10.7.0.0/24")))
	table := routeTable{}
	await := func(what string, prefixes ...string) {
		t.Helper()
		awaitRoutes(t, s, table, what, func() bool {
			for _, p := range prefixes {
				if _, ok := table[pfx(p)]; !ok {
					return false
				}
			}
			return len(table) == len(prefixes)
		})
	}
	await("everything, as in Calico", "0.0.0.0/0", "10.244.1.5/32", "10.244.1.0/26", "10.244.2.0/26", "10.7.0.0/24")
	pool := func(blocks ...netip.Prefix) bgp.Refusal {
		return bgp.Refusal{Class: bgp.RefusedPool, Reason: "inside the pool",
			Match: bgp.PrefixMatch{CIDR: pfx("10.244.0.0/16"), Min: 16, Max: 32}, Except: blocks, Outsiders: true}
	}
	set := func(more ...bgp.Refusal) {
		t.Helper()
		d.Refusals = append(bgp.Martians(), more...)
		mustSet(t, s, d)
	}
	set(bgp.Refusal{Class: bgp.RefusedDefault, Reason: "no default", Match: bgp.PrefixMatch{CIDR: pfx("0.0.0.0/0")}},
		pool(pfx("10.244.1.0/26")))
	await("the block of a node", "10.244.1.0/26", "10.7.0.0/24")
	awaitRejected(t, s, "default_route 0.0.0.0/0", "pool 10.244.1.5/32", "pool 10.244.2.0/26")
	set(pool(pfx("10.244.1.0/26"), pfx("10.244.2.0/26"))) // the second one becomes a block
	await("both blocks, and the default route again", "0.0.0.0/0", "10.244.1.0/26", "10.244.2.0/26", "10.7.0.0/24")
	set(pool(pfx("10.244.2.0/26"))) // the first one is no block any more
	await("the second block", "0.0.0.0/0", "10.244.2.0/26", "10.7.0.0/24")
	awaitRejected(t, s, "pool 10.244.1.0/26", "pool 10.244.1.5/32")
	// A node may announce routes that the router may not.
	node.send(update("10.0.0.2", 0, 100, pfx("10.244.1.5/32")))
	await("the borrowed address", "0.0.0.0/0", "10.244.2.0/26", "10.7.0.0/24", "10.244.1.5/32")
	if paths := table[pfx("10.244.1.5/32")].Paths; len(paths) != 1 || paths[0].Peer != ip("127.0.5.21") {
		t.Errorf("the borrowed address has paths %v", paths)
	}
	set()
	awaitRejected(t, s)
	for _, p := range []*fakePeer{node, router} {
		p.mu.Lock()
		if p.closed != nil {
			t.Errorf("a session was reset: %v; last messages: %s", p.closed, p.last())
		}
		p.mu.Unlock()
	}
}

// addPathUpdate announces IPv4 prefixes with a path identifier (RFC 7911).
func addPathUpdate(nextHop string, id byte, prefixes ...netip.Prefix) []byte {
	hop := ip(nextHop).As4()
	attrs := join(attr(0x40, 1, 0), attr(0x40, 2), attr(0x40, 3, hop[:]...), attr(0x40, 5, 0, 0, 0, 100))
	var nlri []byte
	for _, p := range prefixes {
		a := p.Addr().As4()
		nlri = append(nlri, join([]byte{0, 0, 0, id, byte(p.Bits())}, a[:(p.Bits()+7)/8])...)
	}
	return rawUpdate(nil, attrs, nlri)
}

// A route for one of our blocks from another speaker stays out of the kernel and is not passed on, with any preference.
// With ADD-PATH, GoBGP would send it beside our own route.
func TestRouteForOwnBlockIsNotPassedOn(t *testing.T) {
	t.Parallel()
	s, d := testSpeaker(t, Config{})
	d.Refusals = bgp.Martians()
	d.Sessions = []bgp.Session{passive("127.0.5.31"), passive("127.0.5.32")}
	for i := range d.Sessions {
		d.Sessions[i].ReflectorClient, d.Sessions[i].ReflectorClusterID = true, ip("10.99.0.1")
	}
	block := pfx("10.244.0.0/26")
	d.Originated = []bgp.Origin{{Prefix: block, LocalPref: 100, Blackhole: true}}
	d.ExportPrefixes, d.NoExportPrefixes, d.OwnBlocks = []netip.Prefix{pfx("10.244.0.0/16")}, []netip.Prefix{block},
		[]netip.Prefix{block}
	d.Elevated = [2][]uint32{{512}, nil}
	mustSet(t, s, d)
	thief := dialFake(t, "127.0.5.31", listenOf(d), fakeOptions{as: 64512, id: "10.99.5.31", addPath: true})
	victim := dialFrom(t, "127.0.5.32", listenOf(d))
	put(victim, fakeOptions{as: 64512, id: "10.99.5.32", addPath: true}.open(), gobgp.NewBGPKeepAliveMessage())
	awaitSession(t, s, "127.0.5.31", "Established", established)
	awaitSession(t, s, "127.0.5.32", "Established", established)
	thief.write(join(addPathUpdate("10.0.0.66", 1, block), addPathUpdate("10.0.0.66", 1, pfx("10.244.9.0/26"))))
	var got []string
	victim.SetReadDeadline(time.Now().Add(30 * time.Second))
	for !slices.Contains(got, "10.244.9.0/26 via 10.0.0.66") || !slices.Contains(got, "10.244.0.0/26 via 127.0.0.1") {
		list, err := addPathRoutes(victim)
		if err != nil {
			t.Fatalf("%v; so far %v", err, got)
		}
		got = append(got, list...)
	}
	if slices.Contains(got, "10.244.0.0/26 via 10.0.0.66") {
		t.Errorf("the other client was sent %v", got)
	}
	awaitRejected(t, s, "own_prefix 10.244.0.0/26")
}

// A block of ours that a peer announces with a greater LOCAL_PREF never replaces our own route at other peers, also if
// the peer announced it before it was ours. When it is ours no longer, the peer's route is used. Addresses inside it
// may have been borrowed.
func TestOwnBlockIsNotLearned(t *testing.T) {
	t.Parallel()
	s, d := testSpeaker(t, Config{})
	d.Sessions = []bgp.Session{passive("127.0.5.41"), passive("127.0.5.42")}
	first, second := pfx("10.244.0.0/26"), pfx("10.244.9.0/26")
	own := func(blocks ...netip.Prefix) {
		t.Helper()
		d.Refusals = append(bgp.Martians(), bgp.Refusal{Class: bgp.RefusedOwnPrefix, Reason: "own", Also: blocks,
			Match: bgp.PrefixMatch{CIDR: pfx("0.0.0.0/0"), Min: 1}})
		d.Originated = nil
		for _, b := range blocks {
			d.Originated = append(d.Originated, bgp.Origin{Prefix: b, LocalPref: 100, Blackhole: true})
		}
		d.OwnBlocks, d.NoExportPrefixes = blocks, blocks
		mustSet(t, s, d)
	}
	own(first)
	thief := dialFake(t, "127.0.5.41", listenOf(d), fakeOptions{as: 64512, id: "10.99.5.41"})
	victim := dialFake(t, "127.0.5.42", listenOf(d), fakeOptions{as: 64512, id: "10.99.5.42"})
	awaitSession(t, s, "127.0.5.41", "Established", established)
	awaitSession(t, s, "127.0.5.42", "Established", established)
	victim.await("our block", func() bool { return victim.routes[first] != nil })
	thief.send(update("10.0.0.66", 0, 200, first, second, pfx("10.244.0.5/32")))
	table := routeTable{}
	await := func(what string, prefixes ...netip.Prefix) {
		t.Helper()
		awaitRoutes(t, s, table, what, func() bool {
			for _, p := range prefixes {
				if _, ok := table[p]; !ok {
					return false
				}
			}
			return len(table) == len(prefixes)
		})
	}
	await("the borrowed address and the other block", second, pfx("10.244.0.5/32"))
	awaitRejected(t, s, "own_prefix 10.244.0.0/26")
	own(first, second)
	await("the borrowed address", pfx("10.244.0.5/32"))
	victim.await("our second block", func() bool { return victim.routes[second] != nil })
	awaitRejected(t, s, "own_prefix 10.244.0.0/26", "own_prefix 10.244.9.0/26")
	victim.mu.Lock()
	if victim.routes[first] == nil {
		t.Error("our first block was withdrawn")
	}
	victim.mu.Unlock()
	own(first)
	await("the second block again", second, pfx("10.244.0.5/32"))
	awaitRejected(t, s, "own_prefix 10.244.0.0/26")
	victim.await("its withdrawal", func() bool { return victim.routes[second] == nil })
	if thief.isClosed() || victim.isClosed() {
		t.Error("a session was lost")
	}
}

// Of an address that this node announces for its workload and another node with a greater LOCAL_PREF, the other's route
// is the best: the workload moves there.
func TestElevatedRouteForOwnAddressIsTheBest(t *testing.T) {
	t.Parallel()
	s, d := testSpeaker(t, Config{})
	d.Sessions = []bgp.Session{passive("127.0.5.43"), passive("127.0.5.44")}
	address := pfx("10.244.0.5/32")
	d.Originated = []bgp.Origin{{Prefix: address, LocalPref: bgp.MaxPriority - 1024, Interface: "cali1"}}
	mustSet(t, s, d)
	other := dialFake(t, "127.0.5.43", listenOf(d), fakeOptions{as: 64512, id: "10.99.5.43"})
	third := dialFake(t, "127.0.5.44", listenOf(d), fakeOptions{as: 64512, id: "10.99.5.44"})
	third.await("our route", func() bool { return third.routes[address] != nil })
	other.send(update("10.0.0.66", 0, bgp.MaxPriority-512, address))
	third.await("its withdrawal", func() bool { return third.routes[address] == nil })
	other.send(withdrawal(address))
	third.await("our route again", func() bool { return third.routes[address] != nil })
}

// addPathRoutes reads one message of a session with ADD-PATH and returns its routes: "PREFIX via NEXTHOP".
func addPathRoutes(c net.Conn) (list []string, err error) {
	h := make([]byte, gobgp.BGP_HEADER_LENGTH)
	if _, err := io.ReadFull(c, h); err != nil {
		return nil, err
	}
	body := make([]byte, int(binary.BigEndian.Uint16(h[16:18]))-len(h))
	if _, err := io.ReadFull(c, body); err != nil {
		return nil, err
	}
	m, err := gobgp.ParseBGPMessage(append(h, body...),
		&gobgp.MarshallingOption{AddPath: map[gobgp.Family]gobgp.BGPAddPathMode{
			gobgp.RF_IPv4_UC: gobgp.BGP_ADD_PATH_BOTH}})
	if err != nil {
		return nil, err
	}
	u, ok := m.Body.(*gobgp.BGPUpdate)
	if !ok {
		return nil, nil
	}
	for _, n := range u.NLRI {
		list = append(list, fmt.Sprintf("%s via %s", n.NLRI, nextHopOf(u.PathAttributes)))
	}
	return list, nil
}

// nextHopOf finds the next hop in attributes.
func nextHopOf(attributes []gobgp.PathAttributeInterface) (hop netip.Addr) {
	for _, a := range attributes {
		switch a := a.(type) {
		case *gobgp.PathAttributeNextHop:
			hop = a.Value
		case *gobgp.PathAttributeMpReachNLRI:
			hop = a.Nexthop
		}
	}
	return hop
}
