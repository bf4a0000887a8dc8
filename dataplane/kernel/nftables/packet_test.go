package nftables

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/manxnet/manx/dataplane/kernel/nettest"
	"github.com/manxnet/manx/dataplane/ruleset"
)

// packetMatches are conditions on packets that this host sends through e0; each is tried as it is and inverted.
var packetMatches = []ruleset.Match{
	{Field: ruleset.Family, Low: 4},
	{Field: ruleset.OutInterface, Name: "e0"},
	{Field: ruleset.OutInterface, Name: "e*"},
	{Field: ruleset.OutInterface, Name: "e1"},
	{Field: ruleset.OutInterface, Name: "*"},
	{Field: ruleset.Protocol, Low: 17},
	{Field: ruleset.Source, Prefix: prefix("10.1.0.5/32")},
	{Field: ruleset.Destination, Prefix: prefix("10.1.0.0/16")},
	{Field: ruleset.Destination, Prefix: prefix("10.1.0.8/30")},
	{Field: ruleset.Destination, Prefix: prefix("10.1.0.12/30")},
	{Field: ruleset.Destination, Prefix: prefix("0.0.0.0/0")},
	{Field: ruleset.Source, Prefix: prefix("fd01::/63")},
	{Field: ruleset.Destination, Prefix: prefix("fd01::9/128")},
	{Field: ruleset.Destination, Set: "h4/a"},
	{Field: ruleset.Destination, Set: "n4/a"},
	{Field: ruleset.Destination, Set: "n4/all"},
	{Field: ruleset.Source, Set: "n6/a"},
	{Field: ruleset.DestinationPort, Low: 53},
	{Field: ruleset.DestinationPort, Low: 50, High: 53},
	{Field: ruleset.DestinationPort, Low: 54, High: 80},
	{Field: ruleset.SourcePort, Low: 4000},
	{Field: ruleset.DestinationPort, Set: "p/a"},
	{Field: ruleset.DestinationEndpoint, Set: "e4/a"},
	{Field: ruleset.DestinationEndpoint, Set: "e6/a"},
	{Field: ruleset.SourceEndpoint, Set: "e4/a"},
	{Field: ruleset.ICMP, Low: 8 << 8, Mask: 0xff00},
	{Field: ruleset.ICMP, Low: 3<<8 | 4, Mask: 0xffff},
	{Field: ruleset.ICMP, Low: 3<<8 | 1, Mask: 0xffff}, // the type of one packet, the code of another
	{Field: ruleset.ConnState, Mask: ruleset.ConnNew},
	{Field: ruleset.ConnState, Mask: ruleset.ConnEstablished | ruleset.ConnRelated},
	{Field: ruleset.ConnStatus, Mask: ruleset.ConnDNAT},
	{Field: ruleset.PacketMark, Low: 0x20000, Mask: 0x20000},
	{Field: ruleset.PacketMark, Low: 0, Mask: 0x20000},
	{Field: ruleset.SourceLocal},
	{Field: ruleset.DestinationLocal},
	{Field: ruleset.SourceOfOutInterface},
	{Field: ruleset.HopLimit, Low: 64},
	{Field: ruleset.VNI, Low: 0x102a00},
	{Field: ruleset.VNI, Low: 0x2a},
}

// sentPacket is a packet that the test sends: of UDP from port 4000, or of ICMP.
type sentPacket struct {
	destination netip.AddrPort
	typeCode    uint16
	mark        uint32
	vni         uint32
}

var sentPackets = []sentPacket{
	{destination: netip.MustParseAddrPort("10.1.0.9:53")},
	{destination: netip.MustParseAddrPort("10.1.0.9:80"), mark: 0x30000},
	{destination: netip.MustParseAddrPort("[fd01::9]:53")},
	{destination: netip.MustParseAddrPort("10.1.0.9:4789"), vni: 0x102a00},
	{destination: netip.MustParseAddrPort("[fd01::9]:4789"), vni: 0x2a},
	{destination: netip.MustParseAddrPort("10.1.0.9:0"), typeCode: 8 << 8},
	{destination: netip.MustParseAddrPort("10.1.0.13:0"), typeCode: 8<<8 | 1},
	{destination: netip.MustParseAddrPort("10.1.0.13:0"), typeCode: 3<<8 | 4, mark: 0x10000},
}

func (p sentPacket) packet() ruleset.Packet {
	r := ruleset.Packet{Out: "e0", Source: addr("10.1.0.5"), Destination: p.destination.Addr(), Mark: p.mark,
		State: ruleset.ConnNew, HopLimit: 64}
	if p.destination.Addr().Is6() {
		r.Source = addr("fd01::5")
	}
	r.Protocol, r.SourcePort, r.DestinationPort = unix.IPPROTO_UDP, 4000, p.destination.Port()
	r.VXLAN, r.VNI = p.typeCode == 0, p.vni // any datagram of 8 bytes has a place for it
	if p.typeCode != 0 {
		r.Protocol, r.SourcePort, r.DestinationPort = unix.IPPROTO_ICMP, 0, 0
		r.ICMPType, r.ICMPCode = uint8(p.typeCode>>8), uint8(p.typeCode)
		if r.ICMPType == 3 { // an error about no connection
			r.State = ruleset.ConnInvalid
		}
	}
	return r
}

// send must run in the namespace.
func (p sentPacket) send() error {
	to := p.destination.Addr()
	family, kind, protocol := unix.AF_INET, unix.SOCK_DGRAM, unix.IPPROTO_UDP
	var from, remote unix.Sockaddr
	data := make([]byte, 8)
	binary.BigEndian.PutUint32(data[4:], p.vni<<8)
	if to.Is6() {
		family = unix.AF_INET6
		from, remote = &unix.SockaddrInet6{Port: 4000}, &unix.SockaddrInet6{Port: int(p.destination.Port()),
			Addr: to.As16()}
	} else {
		from, remote = &unix.SockaddrInet4{Port: 4000}, &unix.SockaddrInet4{Port: int(p.destination.Port()),
			Addr: to.As4()}
	}
	if p.typeCode != 0 {
		kind, protocol = unix.SOCK_RAW, unix.IPPROTO_ICMP
		sum := ^p.typeCode // the checksum of an otherwise empty message
		data = []byte{byte(p.typeCode >> 8), byte(p.typeCode), byte(sum >> 8), byte(sum), 0, 0, 0, 0}
	}
	fd, err := unix.Socket(family, kind|unix.SOCK_CLOEXEC, protocol)
	if err != nil {
		return err
	}
	defer unix.Close(fd) //nolint:errcheck // what was sent is sent
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_MARK, int(p.mark)); err != nil {
		return err
	}
	if kind == unix.SOCK_DGRAM {
		if err := unix.Bind(fd, from); err != nil {
			return err
		}
	}
	return unix.Sendto(fd, data, 0, remote)
}

// packetTable counts the packets of each match: it has one chain for the match, and one for the inverted match.
func packetTable() (*ruleset.Table, []string) {
	w := ruleset.NewTable()
	fillSets(w)
	w.AddElement("n4/a", ruleset.Element{Prefix: prefix("10.1.0.8/29")})
	w.AddElement("h4/a", ruleset.Element{Prefix: prefix("10.1.0.9/32")})
	w.AddElement("n6/a", ruleset.Element{Prefix: prefix("fd01::/64")})
	w.AddElement("e4/a", ruleset.Element{Prefix: prefix("10.1.0.9/32"), Protocol: unix.IPPROTO_UDP, Low: 53})
	w.AddElement("e4/a", ruleset.Element{Prefix: prefix("10.1.0.5/32"), Protocol: unix.IPPROTO_UDP, Low: 4000})
	w.AddElement("e6/a", ruleset.Element{Prefix: prefix("fd01::9/128"), Protocol: unix.IPPROTO_UDP, Low: 53})
	w.AddElement("p/a", ruleset.Element{Low: 53, High: 53})
	// Packets that the kernel itself sends (RFC 4862, RFC 3810) are not counted.
	w.SetChain(&ruleset.Chain{Name: "own", Base: &ruleset.Base{Hook: ruleset.Output, Type: ruleset.Filter,
		Priority: -200}, Rules: []ruleset.Rule{{
		Matches: []ruleset.Match{ipv6, {Field: ruleset.Destination, Prefix: prefix("ff02::/16")}},
		Verdict: ruleset.Verdict{Action: ruleset.Drop}}}})
	var names []string
	for i, m := range packetMatches {
		for _, not := range []bool{false, true} {
			m.Not = not
			rule := ruleset.Rule{Matches: append(needed(m), m), Counter: true}
			name := fmt.Sprintf("m%d/%v", i, not)
			names = append(names, name)
			w.SetChain(&ruleset.Chain{Name: name, Base: &ruleset.Base{Hook: ruleset.Output, Type: ruleset.Filter,
				Priority: int32(i)}, Rules: []ruleset.Rule{rule}})
		}
	}
	return w, names
}

// needed are the matches that must come before m.
func needed(m ruleset.Match) []ruleset.Match {
	switch {
	case m.Field == ruleset.SourcePort || m.Field == ruleset.DestinationPort || m.Field == ruleset.VNI:
		return []ruleset.Match{{Field: ruleset.Protocol, Low: unix.IPPROTO_UDP}}
	case m.Field == ruleset.ICMP:
		return []ruleset.Match{icmp}
	case m.Set == "n6/a" || m.Set == "e6/a" || m.Prefix.IsValid() && m.Prefix.Addr().Is6():
		return []ruleset.Match{ipv6}
	case m.Set != "" || m.Prefix.IsValid() || m.Field == ruleset.HopLimit:
		return []ruleset.Match{ipv4}
	}
	return nil
}

// The kernel counts exactly those packets that Eval finds to match.
func TestRulesAndPackets(t *testing.T) {
	ns, n := rulesNS(t)
	w, names := packetTable()
	host := &ruleset.Host{
		IsLocal: func(a netip.Addr) bool {
			return a == addr("10.1.0.5") || a == addr("fd01::5")
		},
		OwnsAddress: func(_ string, a netip.Addr) bool {
			return a == addr("10.1.0.5") || a == addr("fd01::5")
		},
	}
	for _, neighbour := range []string{"10.1.0.9", "10.1.0.13", "fd01::9"} {
		nettest.Run(t, "ip", "-n", ns, "neigh", "replace", neighbour, "lladdr", "02:00:00:00:00:09", "dev", "e0")
	}
	for _, p := range sentPackets {
		if err := n.DeleteRules(); err != nil {
			t.Fatal(err)
		}
		commitRules(t, n, w.Difference(nil))
		if err := n.namespace.Do(p.send); err != nil {
			t.Fatalf("send %+v: %v", p, err)
		}
		counters, err := n.RuleCounters()
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			rule := w.Chain(name).Rules[0]
			want := uint64(0)
			if holdsInEval(w, host, rule, p.packet()) {
				want = 1
			}
			if c := counters[name]; len(c) != 1 || c[0].ID != rule.ID() || c[0].Packets != want {
				t.Errorf("%+v with %+v: the kernel counts %v, want %d", rule.Matches, p, c, want)
			}
		}
	}
}

// holdsInEval uses Eval with a rule that drops.
func holdsInEval(w *ruleset.Table, h *ruleset.Host, r ruleset.Rule, p ruleset.Packet) bool {
	const probe = "probe"
	r.Verdict.Action = ruleset.Drop
	w.SetChain(&ruleset.Chain{Name: probe, Base: &ruleset.Base{Hook: ruleset.Output, Type: ruleset.Filter,
		Priority: -100}, Rules: []ruleset.Rule{r}})
	defer w.DeleteChain(probe)
	return !w.Eval(h, ruleset.Output, p, nil).Accepted()
}

// A packet that arrives through an interface without a route to its source has no return route there.
func TestRulesAndReturnRoute(t *testing.T) {
	ns, n := rulesNS(t)
	w := ruleset.NewTable()
	c := &ruleset.Chain{Name: "raw", Base: &ruleset.Base{Hook: ruleset.Prerouting, Type: ruleset.Filter,
		Priority: -300}}
	for _, not := range []bool{false, true} {
		c.Rules = append(c.Rules, ruleset.Rule{Counter: true, Matches: []ruleset.Match{
			{Field: ruleset.InInterface, Name: "e0"}, ipv4, {Field: ruleset.Protocol, Low: unix.IPPROTO_UDP},
			{Field: ruleset.NoReturnRoute, Not: not},
		}})
	}
	w.SetChain(c)
	commitRules(t, n, w.TakeChanges())
	mac := strings.TrimSpace(nettest.Run(t, "ip", "netns", "exec", ns, "cat", "/sys/class/net/e0/address"))
	to, err := net.ParseMAC(mac)
	if err != nil {
		t.Fatal(err)
	}
	for i, c := range []struct {
		source    string
		no, there uint64
	}{{"10.1.0.9", 0, 1}, {"10.2.0.9", 1, 0}, {"192.0.2.1", 1, 0}} {
		before, err := n.RuleCounters()
		if err != nil {
			t.Fatal(err)
		}
		frame := udpFrame(to, addr(c.source), addr("10.1.0.5"))
		if err := n.namespace.Do(func() error { return sendFrame("e0p", frame) }); err != nil {
			t.Fatal(err)
		}
		after, err := n.RuleCounters()
		if err != nil {
			t.Fatal(err)
		}
		no, there := after["raw"][0].Packets-before["raw"][0].Packets, after["raw"][1].Packets-before["raw"][1].Packets
		if no != c.no || there != c.there {
			t.Errorf("packet %d from %s: %d without and %d with a route back", i, c.source, no, there)
		}
	}
}

func udpFrame(mac net.HardwareAddr, from, to netip.Addr) []byte {
	f := append([]byte(mac), 2, 0, 0, 0, 0, 9, 8, 0)
	header := []byte{0x45, 0, 0, 28, 0, 0, 0, 0, 64, unix.IPPROTO_UDP, 0, 0}
	header = append(append(header, from.AsSlice()...), to.AsSlice()...)
	setChecksum(header)
	return append(append(f, header...), 0x0f, 0xa0, 0, 53, 0, 8, 0, 0)
}

// setChecksum sets that of a header of IPv4.
func setChecksum(header []byte) {
	header[10], header[11] = 0, 0
	sum := uint32(0)
	for i := 0; i < len(header); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(header[i:]))
	}
	sum = sum&0xffff + sum>>16
	binary.BigEndian.PutUint16(header[10:], ^uint16(sum+sum>>16))
}

// Fragments are recognized before the kernel puts them together: by a header of their own in IPv6.
func TestRulesAndFragments(t *testing.T) {
	ns, n := rulesNS(t)
	w := ruleset.NewTable()
	c := &ruleset.Chain{Name: "raw", Base: &ruleset.Base{Hook: ruleset.Prerouting, Type: ruleset.Filter,
		Priority: -450}}
	for i, family := range []ruleset.Match{ipv4, ipv6} {
		source := []string{"10.1.0.9/32", "fd01::9/128"}[i]
		for _, not := range []bool{false, true} {
			c.Rules = append(c.Rules, ruleset.Rule{Counter: true, Matches: []ruleset.Match{
				{Field: ruleset.InInterface, Name: "e0"}, family, {Field: ruleset.Source, Prefix: prefix(source)},
				{Field: ruleset.Fragment, Not: not}}})
		}
	}
	w.SetChain(c)
	commitRules(t, n, w.TakeChanges())
	sameRules(t, n, w)
	mac := strings.TrimSpace(nettest.Run(t, "ip", "netns", "exec", ns, "cat", "/sys/class/net/e0/address"))
	to, err := net.ParseMAC(mac)
	if err != nil {
		t.Fatal(err)
	}
	v4 := func(flags uint16) []byte {
		f := udpFrame(to, addr("10.1.0.9"), addr("10.1.0.5"))
		binary.BigEndian.PutUint16(f[14+6:], flags)
		setChecksum(f[14:34])
		return f
	}
	v6 := func(next byte, payload ...byte) []byte {
		f := append([]byte(to), 2, 0, 0, 0, 0, 9, 0x86, 0xdd, 0x60, 0, 0, 0, 0, byte(len(payload)), next, 64)
		f = append(append(f, addr("fd01::9").AsSlice()...), addr("fd01::5").AsSlice()...)
		return append(f, payload...)
	}
	for _, x := range []struct {
		name  string
		frame []byte
		rule  int // that counts it
	}{
		{"more fragments", v4(0x2000), 0}, {"an offset", v4(0x0001), 0}, {"the last offset", v4(0x1fff), 0},
		{"don't fragment", v4(0x4000), 1}, {"the reserved bit", v4(0x8000), 1}, {"none", v4(0), 1},
		{"a fragment header", v6(unix.IPPROTO_FRAGMENT, 59, 0, 0, 1, 0, 0, 0, 0), 2},
		{"behind another header", v6(unix.IPPROTO_DSTOPTS, unix.IPPROTO_FRAGMENT, 0, 1, 4, 0, 0, 0, 0,
			59, 0, 0, 1, 0, 0, 0, 0), 2},
		{"no fragment header", v6(unix.IPPROTO_DSTOPTS, 59, 0, 1, 4, 0, 0, 0, 0), 3},
	} {
		before, err := n.RuleCounters()
		if err != nil {
			t.Fatal(err)
		}
		if err := n.namespace.Do(func() error { return sendFrame("e0p", x.frame) }); err != nil {
			t.Fatal(err)
		}
		after, err := n.ChainCounters([]string{"raw", "absent"})
		if err != nil || len(after) != 1 {
			t.Fatal(after, err)
		}
		for i := range c.Rules {
			if got := after["raw"][i].Packets - before["raw"][i].Packets; got == 1 != (i == x.rule) {
				t.Errorf("%s: rule %d counts %d", x.name, i, got)
			}
		}
	}
}

// sendFrame must run in the namespace.
func sendFrame(device string, frames ...[]byte) error {
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd) //nolint:errcheck // what was sent is sent
	i, err := net.InterfaceByName(device)
	if err != nil {
		return err
	}
	for _, frame := range frames {
		if err := unix.Sendto(fd, frame, 0, &unix.SockaddrLinklayer{Ifindex: i.Index, Halen: 6,
			Addr: [8]byte(append(frame[:6:6], 0, 0))}); err != nil {
			return err
		}
	}
	return nil
}

// Rules of several chains share a counter, which goes on when they change, and when no rule names it for a while. It
// begins anew with the table, and a check makes none.
func TestNamedCounters(t *testing.T) {
	ns, n := rulesNS(t)
	nettest.Run(t, "ip", "-n", ns, "neigh", "replace", "10.1.0.9", "lladdr", "02:00:00:00:00:09", "dev", "e0")
	rule := func(port uint32, counter string) ruleset.Rule {
		return ruleset.Rule{Matches: []ruleset.Match{{Field: ruleset.Protocol, Low: unix.IPPROTO_UDP},
			{Field: ruleset.DestinationPort, Low: port}}, CountedBy: counter}
	}
	w := ruleset.NewTable()
	set := func(name string, rules ...ruleset.Rule) {
		w.SetChain(&ruleset.Chain{Name: name, Base: &ruleset.Base{Hook: ruleset.Output, Type: ruleset.Filter},
			Rules: rules})
	}
	count := func(what string, want map[string]uint64) {
		t.Helper()
		for _, p := range sentPackets[:2] { // to ports 53 and 80
			if err := n.namespace.Do(p.send); err != nil {
				t.Fatal(err)
			}
		}
		got, err := n.NamedCounters()
		if err != nil {
			t.Fatal(err)
		}
		for name, packets := range want {
			if got[name].Packets != packets || (got[name].Bytes == 0) != (packets == 0) {
				t.Errorf("%s: %s is %+v, want %d packets", what, name, got[name], packets)
			}
		}
		if len(got) != len(want) {
			t.Errorf("%s: the counters are %v, want %v", what, got, want)
		}
	}
	if got, err := n.NamedCounters(); len(got) != 0 || err != nil {
		t.Errorf("without a table: %v, %v", got, err)
	}
	set("a", rule(53, "both"), rule(54, "none"))
	set("b", rule(80, "both"))
	if err := n.CheckRules(w.Difference(nil)); err != nil {
		t.Fatal(err)
	}
	count("checked", nil)
	commitRules(t, n, w.TakeChanges())
	count("two rules", map[string]uint64{"both": 2, "none": 0})
	set("a", rule(54, "both"), rule(53, "new"))
	commitRules(t, n, w.TakeChanges())
	count("one rule, written anew", map[string]uint64{"both": 3, "none": 0, "new": 1})
	set("a")
	w.DeleteChain("b")
	commitRules(t, n, w.TakeChanges())
	count("no rule", map[string]uint64{"both": 3, "none": 0, "new": 1})
	set("a", rule(80, "both"))
	commitRules(t, n, w.TakeChanges())
	count("a rule again", map[string]uint64{"both": 4, "none": 0, "new": 1})
	if err := n.DeleteRules(); err != nil {
		t.Fatal(err)
	}
	commitRules(t, n, w.Difference(nil))
	count("a new table", map[string]uint64{"both": 1})
}

// A chain of type Route has a packet of this host take the way of its new mark.
func TestRouteChain(t *testing.T) {
	ns, n := rulesNS(t)
	ip := func(args ...string) {
		t.Helper()
		nettest.Run(t, append([]string{"ip", "-n", ns}, args...)...)
	}
	ip("route", "add", "192.0.2.77/32", "dev", "e0", "src", "10.1.0.5")
	ip("route", "add", "blackhole", "192.0.2.77/32", "table", "7")
	ip("rule", "add", "priority", "77", "fwmark", "0x40000/0x40000", "lookup", "7")
	out := ruleset.Rule{Counter: true, Matches: []ruleset.Match{ipv4, {Field: ruleset.Destination,
		Prefix: prefix("192.0.2.77/32")}, {Field: ruleset.OutInterface, Name: "e0"}}}
	w := ruleset.NewTable()
	for _, marked := range []bool{false, true} {
		if marked {
			w.SetChain(&ruleset.Chain{Name: "again", Base: &ruleset.Base{Hook: ruleset.Output, Type: ruleset.Route,
				Priority: -150}, Rules: []ruleset.Rule{{Mark: ruleset.Mark{Value: 0x40000, Mask: 0x40000}}}})
		}
		w.SetChain(&ruleset.Chain{Name: "leaves", Base: &ruleset.Base{Hook: ruleset.Postrouting, Type: ruleset.Filter},
			Rules: []ruleset.Rule{out}})
		commitRules(t, n, w.TakeChanges())
		sameRules(t, n, w)
		before, _ := n.RuleCounters()
		_ = n.namespace.Do(func() error {
			c, err := net.Dial("udp", "192.0.2.77:9")
			if err == nil {
				_, err = c.Write([]byte("x"))
				_ = c.Close()
			}
			return err
		})
		got, err := n.RuleCounters()
		if left := got["leaves"][0].Packets > before["leaves"][0].Packets; err != nil || left == marked {
			t.Errorf("marked %t: the packet leaves: %t, %v", marked, left, err)
		}
	}
}
