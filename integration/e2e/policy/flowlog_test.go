package policy

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/manxnet/manx/dataplane/flowlog"
	"github.com/manxnet/manx/integration/e2e/world"
	"github.com/manxnet/manx/integration/lab"
)

// Ports of the pods, by the policy's decision; from firstMarker on, they serve to determine how far the flow log is.
const (
	allowedPort   = 7001
	refusedPort   = 7002
	passedPort    = 7003
	unloggedPort  = 7004
	undecidedPort = 7005
	firstMarker   = 7100
	firstLimited  = 7150
)

// loggingPolicies apply to senders to pod b, and to packets from pod a; log is a rule that logs, or nothing.
func loggingPolicies(log string) string {
	return world.GlobalPolicy("first", "tier: logs, selector: role == 'b', types: [Ingress], ingress: ["+log+
		"{action: Deny, protocol: ICMP}, {action: Deny, protocol: ICMPv6}, "+
		rule("Allow", allowedPort, unloggedPort)+", "+rule("Deny", refusedPort)+", "+rule("Pass", passedPort)+"]") +
		world.GlobalPolicy("second", "selector: role == 'b', types: [Ingress], ingress: ["+log+rule("Allow",
			passedPort)+"]") +
		world.GlobalPolicy("third", "selector: role == 'a', types: [Egress], egress: ["+log+"{action: Allow}]")
}

var logRule = fmt.Sprintf("{action: Log, protocol: UDP, destination: {ports: [%d, %d, %d, %d, '%d:7199']}}, ",
	allowedPort, refusedPort, passedPort, undecidedPort, firstMarker)

// testFlowLog: rules log packets that other rules allow, deny and pass. The verdict on the packets is the same without
// logging, with the flow log and without. The file and the subscribers of the flow log get the logged and the dropped
// packets, within the configured limits.
func (c *cluster) testFlowLog(t *testing.T) {
	n, a, b, far := c.N2, c.Pods["a"], c.Pods["b"], c.Pods["far"]
	first := func() string {
		out, err := n.Run("nft", "list", "chain", "inet", "manx", "pi/GlobalNetworkPolicy/first")
		must(t, err)
		return out
	}
	var attempts []attempt
	for i, to := range b.IPs {
		for _, from := range []*lab.Pod{a, far} {
			add := func(name, network string, port uint16, want string) {
				attempts = append(attempts, attempt{fmt.Sprintf("%s from %s", name, from.IPs[i]), from.Namespace,
					network,
					at(to, port), want})
			}
			add("logged and allowed", "udp", allowedPort, answered)
			add("logged and denied", "udp", refusedPort, lost)
			add("logged, passed on, logged and allowed", "udp", passedPort, answered)
			add("allowed", "udp", unloggedPort, answered)
			add("logged, and nothing decides", "udp", undecidedPort, lost)
			add("denied", "ping", 0, lost)
		}
	}
	c.temporary(t, append(documents(t, "apiVersion: projectcalico.org/v3\nkind: Tier\nmetadata: {name: logs}\n"+
		"spec: {order: 10}\n"),
		documents(t, loggingPolicies(""))...)...)
	tryAll(t, attempts)
	c.apply(t, loggingPolicies(logRule))
	tryAll(t, attempts)
	if text := first(); !strings.Contains(text, `log prefix "calico-packet: " comment`) ||
		strings.Contains(text, "group") {
		t.Errorf("without the flow log:\n%s", text)
	}

	file := filepath.Join(n.Dir, "flows.json")
	c.restart(t, "--flow-log="+file, "--flow-log-rate=1000", "--policy-counters")
	defer func() { c.restart(t); awaitPolicy(t, n) }()
	f := &flowLogs{c: c, file: file, marker: firstMarker}
	awaitPolicy(t, n)
	f.mark(t) // the rules are written again, and a subscriber listens
	tryAll(t, attempts)
	f.mark(t)
	c.checkEntries(t, f.entries(t))
	t.Run("subscribers", func(t *testing.T) { c.testFlowLogSubscribers(t, f) })

	m := watchRules(t, n)
	must(t, n.Manxd().Stop(limit))
	must(t, n.StartManxd())
	eventually(t, func() error {
		page, err := n.Get("/metrics")
		if err == nil && !strings.Contains(page, "\nmanx_policy_in_sync 1\n") {
			err = fmt.Errorf("%s is not in sync", n.Name)
		}
		return err
	})
	if list := m.ourChanges(); len(list) > 0 {
		t.Errorf("the restarted daemon wrote:\n%s", strings.Join(list, ""))
	}

	f.mark(t)
	c.temporary(t, documents(t, felix("default", "logActionRateLimit: 1/day, logActionRateLimitBurst: 3"))...)
	const tries = 10
	for i := range uint16(tries) {
		if got := (attempt{ns: far.Namespace, network: "udp", to: at(b.IP4(), firstLimited+i)}).try(0); got != lost {
			t.Errorf("datagram %d is %s", i, got)
		}
	}
	counts := map[flowlog.Action]int{}
	eventually(t, func() error {
		clear(counts)
		for _, e := range f.entries(t) {
			if e.DestinationPort >= firstLimited {
				counts[e.Action]++
			}
		}
		if counts[flowlog.Dropped] != tries {
			return fmt.Errorf("of %d packets %d are reported as dropped", tries, counts[flowlog.Dropped])
		}
		return nil
	})
	if counts[flowlog.Logged] != 3 {
		t.Errorf("%d packets are logged, of 3 that may be", counts[flowlog.Logged])
	}
	if text := first(); !strings.Contains(text, fmt.Sprintf("counter packets %d ", tries)) ||
		!strings.Contains(text,
			` limit rate 1/day burst 3 packets log prefix "calico-packet: " log prefix "log GlobalNetworkPolicy/first ingress 1" group 86 snaplen 128 comment "GlobalNetworkPolicy/first ingress 1 #`) {
		t.Errorf("with the flow log:\n%s", text)
	}
}

// flowLogs reads the flow log of n2.
type flowLogs struct {
	c      *cluster
	file   string
	marker uint16
}

// entries are the content of the file so far, apart from markers.
func (f *flowLogs) entries(t *testing.T) (list []flowlog.Entry) {
	t.Helper()
	text, err := os.ReadFile(f.file)
	must(t, err)
	complete := text[:1+strings.LastIndex(string(text), "\n")]
	for line := range strings.Lines(string(complete)) {
		var e flowlog.Entry
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatalf("line %q: %v", line, err)
		}
		if e.DestinationPort < firstMarker || e.DestinationPort >= firstLimited {
			list = append(list, e)
		}
	}
	return list
}

// mark sends datagrams, each of which is logged and dropped, until the file and every subscriber has one; earlier
// packets are recorded by then.
func (f *flowLogs) mark(t *testing.T, outputs ...*printed) {
	t.Helper()
	var err error
	for f.marker++; f.marker < firstLimited; f.marker++ {
		to := at(f.c.Pods["b"].IP4(), f.marker)
		if got := (attempt{ns: f.c.Pods["far"].Namespace, network: "udp", to: to}).try(0); got != lost {
			t.Fatalf("a marker is %s", got)
		}
		// The kernel hands over logged packets after a second; a subscriber that has not listened yet never gets this
		// one.
		if err = lab.Eventually(2*time.Second, func() error { return f.missing(to.Port(), outputs) }); err == nil {
			return
		}
	}
	t.Fatal(err)
}

func (f *flowLogs) missing(port uint16, outputs []*printed) error {
	text, err := os.ReadFile(f.file)
	if err != nil {
		return err
	}
	for i, place := range append([]string{string(text)}, texts(outputs)...) {
		if !strings.Contains(place, fmt.Sprintf(`"destinationPort":%d,`, port)) &&
			!strings.Contains(place, fmt.Sprintf("  udp/%d  ", port)) {
			return fmt.Errorf("place %d (0 is the file) lacks port %d:\n%s", i, port, place)
		}
	}
	return nil
}

func texts(list []*printed) (all []string) {
	for _, p := range list {
		all = append(all, p.String())
	}
	return all
}

// checkEntries compares the recorded entries of the attempts.
func (c *cluster) checkEntries(t *testing.T, list []flowlog.Entry) {
	t.Helper()
	want := map[string]bool{}
	for i := range c.Pods["b"].IPs {
		for _, from := range []string{"a", "far"} {
			add := func(action flowlog.Action, rule string, protocol string, ports ...int) {
				for _, port := range ports {
					want[entryText(action, rule, c.Pods[from].IPs[i], protocol, port)] = true
				}
			}
			if from == "a" {
				add(flowlog.Logged, "GlobalNetworkPolicy/third egress 1", "udp", allowedPort, refusedPort, passedPort,
					undecidedPort)
			}
			add(flowlog.Logged, "GlobalNetworkPolicy/first ingress 1", "udp", allowedPort, refusedPort, passedPort,
				undecidedPort)
			add(flowlog.Logged, "GlobalNetworkPolicy/second ingress 1", "udp", passedPort)
			add(flowlog.Dropped, fmt.Sprintf("GlobalNetworkPolicy/first ingress %d", 2+i),
				[]string{"icmp", "icmpv6"}[i], 0)
			add(flowlog.Dropped, "GlobalNetworkPolicy/first ingress 5", "udp", refusedPort)
			add(flowlog.Dropped, "end of tier logs", "udp", undecidedPort)
		}
	}
	got := map[string]bool{}
	for _, e := range list {
		got[entryText(e.Action, e.Rule, e.Source, e.Protocol, int(e.DestinationPort))] = true
		local := slices.Contains(c.Pods["a"].IPs, e.Source)
		if !slices.Contains(c.Pods["b"].IPs, e.Destination) ||
			!strings.HasPrefix(e.DestinationEndpoint, "default/n2-cni-") ||
			strings.HasPrefix(e.SourceEndpoint, "default/n2-cni-") != local ||
			e.SourceEndpoint == e.DestinationEndpoint {
			t.Errorf("wrong ends: %s", e)
		}
		if echo := map[string]uint8{"icmp": 8, "icmpv6": 128}[e.Protocol]; echo != 0 &&
			(e.ICMPType == nil || *e.ICMPType != echo) {
			t.Errorf("wrong type: %s", e)
		}
	}
	for _, text := range slices.Sorted(maps.Keys(want)) {
		if !got[text] {
			t.Errorf("not reported: %s", text)
		}
		delete(got, text)
	}
	for _, text := range slices.Sorted(maps.Keys(got)) {
		t.Errorf("reported wrongly: %s", text)
	}
}

func entryText(action flowlog.Action, rule string, from netip.Addr, protocol string, port int) string {
	return fmt.Sprintf("%s %s %s %s/%d", action, rule, from, protocol, port)
}

// testFlowLogSubscribers requests parts of the flow log. A reported flow is reported again only after ten seconds, so
// the test makes other flows.
func (c *cluster) testFlowLogSubscribers(t *testing.T, f *flowLogs) {
	a, b, far := c.Pods["a"], c.Pods["b"], c.Pods["far"]
	listen := func(args ...string) *printed {
		p := &printed{}
		inBackground(t, c.N2, p, filepath.Join(world.Binaries(t), "manxctl"),
			append([]string{"--socket=" + c.N2.Socket(), "drops"}, args...)...)
		return p
	}
	all, dropped, logged := listen(), listen("--action", "drop"), listen("--action=log", "-o", "json")
	some := listen("--action", "log", "--rule", "/first", "--net", far.IP4().String())
	outputs := []*printed{all, dropped, logged, some}
	f.mark(t, outputs...)
	_ = attempt{ns: a.Namespace, network: "udp", to: at(b.IP4(), firstMarker)}.try(0)
	f.mark(t, outputs...)

	source := fmt.Sprintf("%s (default/n2-cni-", a.IP4())
	for _, x := range []struct {
		name       string
		out        *printed
		have, lack []string
	}{
		{"all", all, []string{source, "logged by GlobalNetworkPolicy/first ingress 1",
			"logged by GlobalNetworkPolicy/third egress 1", "dropped by end of tier logs"}, nil},
		{"what is dropped", dropped, []string{source, "dropped by end of tier logs"}, []string{"logged by"}},
		{"what is logged", logged, []string{`"action":"log"`, `"rule":"GlobalNetworkPolicy/third egress 1"`,
			`"source":"` + a.IP4().String() + `"`}, []string{`"drop"`}},
		{"what a policy logs of an address", some,
			[]string{far.IP4().String() + " -> ", "logged by GlobalNetworkPolicy/first ingress 1"},
			[]string{"dropped", "third", source}},
	} {
		text := x.out.String()
		for _, want := range x.have {
			if !strings.Contains(text, want) {
				t.Errorf("%s: %q is not in\n%s", x.name, want, text)
			}
		}
		for _, no := range x.lack {
			if strings.Contains(text, no) {
				t.Errorf("%s: %q is in\n%s", x.name, no, text)
			}
		}
	}
	if out, err := c.N2.Manxctl("drops", "--action=deny"); err == nil ||
		!strings.Contains(fmt.Sprint(out, err), `want "drop" or "log"`) {
		t.Errorf("for another action manxctl drops prints %q, %v", out, err)
	}
}
