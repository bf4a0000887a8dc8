package nftables

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/manxnet/manx/dataplane/kernel/nettest"
	"github.com/manxnet/manx/dataplane/ruleset"
)

// forwarding makes a namespace that forwards from e0 (10.1.0.0/24) to e1 (10.2.0.0/24).
func forwarding(t *testing.T) (ns string, n *Conn) {
	t.Helper()
	ns, n = rulesNS(t)
	nettest.Run(t, "ip", "netns", "exec", ns, "sh", "-c", "echo 1 >/proc/sys/net/ipv4/ip_forward")
	return ns, n
}

// frameInto sends a UDP packet into an interface by its peer, once or several times.
func frameInto(t *testing.T, n *Conn, ns, device string, from, to netip.AddrPort, times ...int) {
	t.Helper()
	frame := udpFrame(macOf(t, ns, device), from.Addr(), to.Addr())
	copy(frame[14+20:], append(bigEndian(from.Port()), bigEndian(to.Port())...))
	if err := n.namespace.Do(func() error {
		return sendFrame(device+"p", slices.Repeat([][]byte{frame}, append(times, 1)[0])...)
	}); err != nil {
		t.Fatal(err)
	}
}

func macOf(t *testing.T, ns, device string) net.HardwareAddr {
	t.Helper()
	mac, err := net.ParseMAC(strings.TrimSpace(nettest.Run(t, "ip", "netns", "exec", ns, "cat",
		"/sys/class/net/"+device+
			"/address")))
	if err != nil {
		t.Fatal(err)
	}
	return mac
}

// traced is a running trace.
type traced struct {
	t     *testing.T
	steps chan TraceStep
	stop  func()
}

func trace(t *testing.T, n *Conn, f Flow) *traced {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	x := &traced{t: t, steps: make(chan TraceStep, 1000)}
	armed, ended := make(chan struct{}), make(chan error, 1)
	go func() { ended <- n.TraceFlow(ctx, f, func() { close(armed) }, func(s TraceStep) { x.steps <- s }) }()
	stopped := false
	x.stop = func() {
		cancel()
		if !stopped {
			stopped = true
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}
	}
	t.Cleanup(x.stop)
	select {
	case <-armed:
	case err := <-ended:
		ended <- nil
		if errors.Is(err, ErrMissing) {
			t.Skip(err)
		}
		t.Fatal(err)
	}
	return x
}

// until collects the steps up to the one that want finds.
func (x *traced) until(want func(TraceStep) bool) []TraceStep {
	x.t.Helper()
	var list []TraceStep
	for timeout := time.After(10 * time.Second); ; {
		select {
		case s := <-x.steps:
			if list = append(list, s); want(s) {
				return list
			}
		case <-timeout:
			x.t.Fatalf("the step did not come; those before it:\n%s", stepText(list))
		}
	}
}

func (x *traced) verdict(verdict string) []TraceStep {
	x.t.Helper()
	return x.until(func(s TraceStep) bool { return s.Verdict == verdict })
}

func leaving(hook string) func(TraceStep) bool {
	return func(s TraceStep) bool { return s.Kind == TraceLeave && s.Hook == hook }
}

// stepText returns a line for each step, with the packet's headers where they changed.
func stepText(steps []TraceStep) string {
	var b strings.Builder
	headers, in := "", ""
	for _, s := range steps {
		if p := s.Headers; p != nil {
			if p.In != "" { // older kernels forget it at postrouting
				in = p.In
			}
			if now := fmt.Sprintf("%s %s:%d -> %s %s:%d", in, p.Source, p.SourcePort, p.Out, p.Destination,
				p.DestinationPort); now != headers {
				headers = now
				fmt.Fprintln(&b, headers)
			}
		}
		switch s.Kind {
		case TraceMarked:
			fmt.Fprintln(&b, "  marked")
		case TraceState:
			fmt.Fprintln(&b, "  state", s.State)
		case TraceEnter:
			fmt.Fprintln(&b, "  enter", s.Hook)
		case TraceLeave:
			fmt.Fprintln(&b, "  leave", s.Hook)
		case TraceLost:
			fmt.Fprintln(&b, "  lost")
		default:
			fmt.Fprintf(&b, "  %s %s %s", s.Family, s.Table, s.Chain)
			if s.Base != nil {
				fmt.Fprintf(&b, " (%s %s %d)", s.Base.Type, s.Base.Hook, s.Base.Priority)
			}
			switch s.Kind {
			case TraceRule:
				fmt.Fprintf(&b, " rule %d %q%s", s.Rule.Number, s.Rule.Comment, s.Rule.ID)
			case TraceReturn:
				b.WriteString(" end")
			case TracePolicy:
				b.WriteString(" policy")
			}
			fmt.Fprintf(&b, ": %s\n", strings.TrimSpace(s.Verdict+" "+s.Target))
		}
	}
	return b.String()
}

var tracedFlow = Flow{Sources: []netip.Addr{addr("10.1.0.9")}, Destinations: []netip.Addr{addr("10.2.0.9")},
	Protocol: unix.IPPROTO_UDP, Port: 80}

// Each step of a packet through all tables is reported, with the names of the rules.
func TestTraceFlow(t *testing.T) {
	ns, n := forwarding(t)
	w := ruleset.NewTable()
	drop := ruleset.Rule{Matches: []ruleset.Match{{Field: ruleset.Protocol, Low: 17},
		{Field: ruleset.DestinationPort, Low: 80}},
		Verdict: ruleset.Verdict{Action: ruleset.Drop}, Comment: "NetworkPolicy/shop/web ingress 2", Counter: true}
	w.SetChain(&ruleset.Chain{Name: "stage", Base: &ruleset.Base{Hook: ruleset.Forward, Type: ruleset.Filter},
		Rules: []ruleset.Rule{
			{Matches: []ruleset.Match{{Field: ruleset.OutInterface, Name: "e1"}}, Verdict: ruleset.Verdict{
				Action: ruleset.Jump, Chain: "policy"}}}})
	w.SetChain(&ruleset.Chain{Name: "policy", Rules: []ruleset.Rule{drop}})
	commitRules(t, n, w.TakeChanges())
	from, to := netip.MustParseAddrPort("10.1.0.9:4000"), netip.MustParseAddrPort("10.2.0.9:80")
	x := trace(t, n, tracedFlow)
	check := func(name string, steps []TraceStep, want string) {
		t.Helper()
		if got := stepText(steps); got != want {
			t.Errorf("%s:\n%swant\n%s", name, got, want)
		}
	}
	const arrives = `e0 10.1.0.9:4000 ->  10.2.0.9:80
  marked
  enter prerouting
  marked
  state new
  marked
  state new
  leave prerouting
e0 10.1.0.9:4000 -> e1 10.2.0.9:80
  enter forward
`
	send := func() { frameInto(t, n, ns, "e0", from, to) }
	send()
	check("a rule of Manx drops", x.verdict(VerdictDrop),
		arrives+fmt.Sprintf(`  inet manx stage (filter forward 0) rule 1 ""%s: jump policy
  inet manx policy rule 1 "NetworkPolicy/shop/web ingress 2"%s: drop
`, w.Chain("stage").Rules[0].ID(), drop.ID()))

	frameInto(t, n, ns, "e0", from, netip.MustParseAddrPort("10.2.0.9:81")) // not of the flow
	w.SetChain(&ruleset.Chain{Name: "policy"})
	commitRules(t, n, w.TakeChanges())
	nft(t, ns, `table ip other {
		chain first { type filter hook forward priority 5; counter; goto second; }
		chain second { counter; counter; counter comment "not today"; udp dport 80 drop comment "today" ; }
	}`)
	const allowed = `  inet manx stage (filter forward 0) rule 1 ""ID: jump policy
  inet manx policy end: continue
  inet manx stage (filter forward 0) end: continue
  inet manx stage (filter forward 0) policy: accept
`
	passes := arrives + strings.Replace(allowed, "ID", w.Chain("stage").Rules[0].ID(), 1)
	send()
	check("a rule of another table drops", x.verdict(VerdictDrop),
		passes+`  ip other first (filter forward 5) rule 1 "": continue
  ip other first (filter forward 5) rule 2 "": goto second
  ip other second rule 1 "": continue
  ip other second rule 2 "": continue
  ip other second rule 3 "not today": continue
  ip other second rule 4 "today": drop
`)
	nft(t, ns, "flush ruleset ip")
	nft(t, ns, `add table ip other; add chain ip other FORWARD { type filter hook forward priority 5; policy drop; }`)
	send()
	check("the policy of another table's chain drops", x.verdict(VerdictDrop),
		passes+`  ip other FORWARD (filter forward 5) end: continue
  ip other FORWARD (filter forward 5) policy: drop
`)
	nft(t, ns, "delete table ip other")
	send()
	const leaves = `  leave forward
  enter postrouting
  leave postrouting
`
	check("nothing drops", x.until(leaving("postrouting")), passes+leaves)
}

// Rules of iptables are found with their comments.
func TestTraceFlowThroughIPTables(t *testing.T) {
	if out, err := exec.Command("iptables", "-V").CombinedOutput(); err != nil ||
		!strings.Contains(string(out), "nf_tables") {
		t.Skipf("no iptables that works by nf_tables: %s %v", out, err)
	}
	ns, n := forwarding(t)
	iptables := func(args string) {
		nettest.Run(t, append([]string{"ip", "netns", "exec", ns, "iptables"}, strings.Fields(args)...)...)
	}
	iptables("-N DOCKER-USER")
	iptables("-A FORWARD -j DOCKER-USER")
	iptables("-A DOCKER-USER -p tcp -j ACCEPT")
	iptables("-A DOCKER-USER -p udp -m udp --dport 80 -m comment --comment not-today -j DROP")
	x := trace(t, n, tracedFlow)
	from, to := netip.MustParseAddrPort("10.1.0.9:4000"), netip.MustParseAddrPort("10.2.0.9:80")
	frameInto(t, n, ns, "e0", from, to)
	steps := x.verdict(VerdictDrop)
	if got, want := stepText(steps[len(steps)-2:]), `e0 10.1.0.9:4000 -> e1 10.2.0.9:80
  ip filter FORWARD (filter forward 0) rule 1 "": jump DOCKER-USER
  ip filter DOCKER-USER rule 2 "not-today": drop
`; got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
	iptables("-F DOCKER-USER")
	iptables("-P FORWARD DROP")
	frameInto(t, n, ns, "e0", from, to)
	steps = x.verdict(VerdictDrop)
	if got, want := stepText(steps[len(steps)-1:]),
		"  ip filter FORWARD (filter forward 0) policy: drop\n"; got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}

// A packet that becomes part of the flow by the translation of its destination is traced from there on; packets of
// known connections are distinguished from new ones.
func TestTraceFlowOfAService(t *testing.T) {
	ns, n := forwarding(t)
	nft(t, ns, `table ip kube-proxy {
		chain services { type nat hook prerouting priority dstnat; ip daddr 10.96.0.10 udp dport 53 dnat to 10.2.0.9:80 comment "the service"; }
	}`)
	service, client, pod := netip.MustParseAddrPort("10.96.0.10:53"), netip.MustParseAddrPort("10.1.0.9:4000"),
		netip.MustParseAddrPort("10.2.0.9:80")
	const leaves = `  leave prerouting
e0 10.1.0.9:4000 -> e1 10.2.0.9:80
  enter forward
  leave forward
  enter postrouting
  leave postrouting
`
	x := trace(t, n, tracedFlow)
	frameInto(t, n, ns, "e0", client, service)
	want := "e0 10.1.0.9:4000 ->  10.2.0.9:80\n  marked\n  state new\n" + leaves
	if got := stepText(x.until(leaving("postrouting"))); got != want {
		t.Errorf("the pod behind the service: got\n%swant\n%s", got, want)
	}
	x.stop()

	x = trace(t, n, Flow{Sources: tracedFlow.Sources, Destinations: []netip.Addr{service.Addr()},
		Protocol: unix.IPPROTO_UDP})
	client = netip.AddrPortFrom(client.Addr(), 4001)
	frameInto(t, n, ns, "e0", client, service)
	leave := strings.ReplaceAll(leaves, ":4000", ":4001")
	want = `e0 10.1.0.9:4001 ->  10.96.0.10:53
  marked
  enter prerouting
  marked
  state new
  ip kube-proxy services (nat prerouting -100) rule 1 "the service": accept
e0 10.1.0.9:4001 ->  10.2.0.9:80
  state new
` + leave
	if got := stepText(x.until(leaving("postrouting"))); got != want {
		t.Errorf("the service: got\n%swant\n%s", got, want)
	}
	frameInto(t, n, ns, "e1", pod, client) // the reply, which is not of the flow
	frameInto(t, n, ns, "e0", client, service)
	want = `e0 10.1.0.9:4001 ->  10.96.0.10:53
  marked
  enter prerouting
  state established
e0 10.1.0.9:4001 ->  10.2.0.9:80
  state established
` + leave
	if got := stepText(x.until(leaving("postrouting"))); got != want {
		t.Errorf("a known connection: got\n%swant\n%s", got, want)
	}
}

// A flow from this host is traced from its first chain on. Traces of other programs are ignored.
func TestTraceFlowOfTheHost(t *testing.T) {
	ns, n := forwarding(t)
	nft(t, ns,
		`add table inet noise; add chain inet noise traced { type filter hook output priority -500; }; add rule inet noise traced meta nftrace set 1`)
	x := trace(t, n, Flow{Sources: []netip.Addr{addr("fd01::5")}, Destinations: []netip.Addr{addr("fd01::9")},
		Protocol: unix.IPPROTO_UDP, Port: 53})
	y := trace(t, n, Flow{Sources: []netip.Addr{addr("10.1.0.5")}, Destinations: []netip.Addr{addr("10.1.0.9")},
		Protocol: unix.IPPROTO_ICMP, HasICMP: true, ICMPType: 8})
	for _, p := range sentPackets {
		if err := n.namespace.Do(p.send); err != nil {
			t.Fatal(err)
		}
	}
	marked := func(x *traced) string {
		var mine []TraceStep
		ours := map[uint32]bool{}
		steps := x.until(func(s TraceStep) bool {
			ours[s.Packet] = ours[s.Packet] || s.Kind == TraceMarked
			return ours[s.Packet] && leaving("postrouting")(s)
		})
		for _, s := range steps {
			if ours[s.Packet] {
				mine = append(mine, s)
			}
		}
		return stepText(mine)
	}
	const rest = `  marked
  enter output
  inet noise traced (filter output -500) rule 1 "": continue
  inet noise traced (filter output -500) end: continue
  inet noise traced (filter output -500) policy: accept
  marked
  state new
  marked
  state new
  leave output
  enter postrouting
  leave postrouting
`
	if got, want := marked(x), " fd01::5:4000 -> e0 fd01::9:53\n"+rest; got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
	if got, want := marked(y), " 10.1.0.5:0 -> e0 10.1.0.9:0\n"+rest; got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}

// TestTraceFlowHelper runs as another process, for TestTraceFlowLeavesNothing.
func TestTraceFlowHelper(t *testing.T) {
	ns := os.Getenv("MANX_TRACE_NAMESPACE")
	if ns == "" {
		t.Skip("only another test runs it")
	}
	n, err := Open(ns)
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	err = n.TraceFlow(context.Background(), tracedFlow, func() { fmt.Println("armed") }, func(TraceStep) {})
	t.Fatal(err)
}

// The table is removed when the context ends, and when the process is killed. No other object changes, and watchers of
// Manx's table get no event.
func TestTraceFlowLeavesNothing(t *testing.T) {
	ns, n := forwarding(t)
	w := ruleset.NewTable()
	w.SetChain(&ruleset.Chain{Name: "stage", Base: &ruleset.Base{Hook: ruleset.Forward, Type: ruleset.Filter},
		Rules: []ruleset.Rule{{Counter: true}}})
	commitRules(t, n, w.TakeChanges())
	before := nft(t, ns, "-a", "list", "ruleset")
	x := trace(t, n, tracedFlow)
	if tables := nft(t, ns, "list", "tables"); !strings.Contains(tables, "table inet "+traceTablePrefix) {
		t.Errorf("no table traces: %s", tables)
	}
	x.stop()
	if after := nft(t, ns, "-a", "list", "ruleset"); after != before {
		t.Errorf("the rules are now\n%s\nand were\n%s", after, before)
	}

	cmd := exec.Command(os.Args[0], "-test.run=^TestTraceFlowHelper$")
	cmd.Env = append(os.Environ(), "MANX_TRACE_NAMESPACE=/run/netns/"+ns)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line := make([]byte, 6)
	_, err = io.ReadFull(out, line)
	tables := nft(t, ns, "list", "tables")
	_ = cmd.Process.Kill()
	_ = cmd.Wait() // reports that it was killed
	if err != nil || string(line) != "armed\n" || !strings.Contains(tables, traceTablePrefix) {
		t.Fatalf("the process prints %q, %v; tables %s", line, err, tables)
	}
	if after := nft(t, ns, "-a", "list", "ruleset"); after != before {
		t.Errorf("after the process was killed the rules are\n%s\nand were\n%s", after, before)
	}
}

// A flood is traced in part, and a new connection among packets of an established one is still traced.
func TestTraceFlowInAFlood(t *testing.T) {
	ns, n := forwarding(t)
	nft(t, ns, "add table inet x; add chain inet x track { type filter hook forward priority 0; }; add rule inet x "+
		"track ct state established accept")
	from, to := netip.MustParseAddrPort("10.1.0.9:4000"), netip.MustParseAddrPort("10.2.0.9:80")
	frameInto(t, n, ns, "e0", from, to)
	frameInto(t, n, ns, "e1", to, from)
	x := trace(t, n, tracedFlow)
	frameInto(t, n, ns, "e0", from, to, 5000)
	frameInto(t, n, ns, "e0", netip.AddrPortFrom(from.Addr(), 5000), to)
	established := 0
	x.until(func(s TraceStep) bool {
		if s.Kind == TraceState && s.State == StateEstablished {
			established++
		}
		return s.Headers != nil && s.Headers.SourcePort == 5000 && leaving("postrouting")(s)
	})
	if established == 0 || established > 500 {
		t.Errorf("%d of 5000 packets of the flood were traced", established)
	}
}

// A packet in fragments is traced as one packet, from its reassembly on.
func TestTraceFlowOfFragments(t *testing.T) {
	ns, n := forwarding(t)
	x := trace(t, n, tracedFlow)
	frames := fragments(macOf(t, ns, "e0"), addr("10.1.0.9"), addr("10.2.0.9"), 4000, 80)
	if err := n.namespace.Do(func() error { return sendFrame("e0p", frames...) }); err != nil {
		t.Fatal(err)
	}
	x.until(leaving("postrouting"))
}

// fragments are a UDP packet of 64 bytes in two parts.
func fragments(mac net.HardwareAddr, from, to netip.Addr, sport, dport uint16) (frames [][]byte) {
	payload := append(append(bigEndian(sport), bigEndian(dport)...), 0, 72, 0, 0)
	payload = append(payload, make([]byte, 64)...)
	for _, part := range []struct{ from, to, flags int }{{0, 40, 0x2000}, {40, 72, 0}} {
		f := append([]byte(mac), 2, 0, 0, 0, 0, 9, 8, 0)
		header := append([]byte{0x45, 0}, bigEndian(uint16(20+part.to-part.from))...)
		header = append(append(header, 0, 77), bigEndian(uint16(part.flags|part.from/8))...)
		header = append(append(append(header, 64, unix.IPPROTO_UDP, 0, 0), from.AsSlice()...), to.AsSlice()...)
		sum := uint32(0)
		for i := 0; i < len(header); i += 2 {
			sum += uint32(binary.BigEndian.Uint16(header[i:]))
		}
		binary.BigEndian.PutUint16(header[10:], ^uint16(sum+sum>>16))
		frames = append(frames, append(append(f, header...), payload[part.from:part.to]...))
	}
	return frames
}

// A kernel without tables with an owner is reported, as are invalid flows.
func TestTraceFlowRefused(t *testing.T) {
	for err, want := range map[error]bool{unix.EINVAL: true, unix.EPERM: false, nil: false} {
		got := ownerError(err)
		if missing := errors.Is(got, ErrMissing) && strings.Contains(got.Error(), "Linux 5.12"); missing != want ||
			!errors.Is(got, err) {
			t.Errorf("%v becomes %v", err, got)
		}
	}
	_, n := rulesNS(t)
	f := Flow{Sources: []netip.Addr{addr("10.1.0.9")}, Destinations: []netip.Addr{addr("fd01::9")},
		Protocol: unix.IPPROTO_UDP}
	if err := n.TraceFlow(context.Background(), f, func() {}, func(TraceStep) {}); err == nil ||
		!strings.Contains(err.Error(), "both IPv4 and IPv6") {
		t.Error(err)
	}
}
