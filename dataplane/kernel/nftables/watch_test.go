package nftables

import (
	"context"
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/manxnet/manx/dataplane/ruleset"
)

// watchRules returns the events, after the first call, which carries none.
func watchRules(t *testing.T, n *Conn) <-chan struct{} {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	notifications, done := make(chan struct{}, 1000), make(chan error, 1)
	go func() { done <- n.WatchRules(ctx, func() { notifications <- struct{}{} }) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	awaitNotification(t, notifications)
	return notifications
}

func awaitNotification(t *testing.T, notifications <-chan struct{}) {
	t.Helper()
	select {
	case <-notifications:
	case <-time.After(10 * time.Second):
		t.Fatal("no notification of the change")
	}
}

// Changes of the table by other programs are reported. Our changes, and changes of other tables, are not.
func TestWatchRules(t *testing.T) {
	ns, n := rulesNS(t)
	notifications := watchRules(t, n)
	quiet := func(what string) {
		t.Helper()
		// Events come in order: when a change by another program is reported, every earlier event has arrived.
		for len(notifications) > 0 {
			t.Errorf("%s was notified", what)
			<-notifications
		}
	}
	w := tableOfMany(20_000, false)
	w.SetChain(&ruleset.Chain{Name: "c", Base: &ruleset.Base{Hook: ruleset.Forward, Type: ruleset.Filter},
		Rules: []ruleset.Rule{{Counter: true}}})
	commitRules(t, n, w.TakeChanges())
	commitRules(t, n, ruleset.Changes{})
	nft(t, ns, "add table ip other; add chain ip other x; add table inet other; add chain inet other x; add rule "+
		"inet other x accept")
	quiet("our own commit, or another table,")
	for _, c := range []string{
		"add rule inet manx c accept", "flush chain inet manx c", "add element inet manx s { 1.1.1.1 }",
		"delete element inet manx s { 1.1.1.1 }",
		"add chain inet manx foreign", "delete chain inet manx foreign",
		"add set inet manx foreign { type ether_addr; }", "delete table inet manx",
	} {
		nft(t, ns, c)
		awaitNotification(t, notifications)
		for len(notifications) > 0 { // one command may make several datagrams
			<-notifications
		}
	}
	nft(t, ns, "flush ruleset")
	quiet("the deletion of other tables")
}

// Lost events count as a change, since our table may have been in them. Here they are events of another table.
func TestWatchRulesLosesEvents(t *testing.T) {
	ns, n := rulesNS(t)
	s, err := n.subscribe(1)
	if err != nil {
		t.Fatal(err)
	}
	var elements strings.Builder
	for i := range 3000 {
		fmt.Fprintf(&elements, "10.0.%d.%d, ", i/250, i%250)
	}
	nft(t, ns, fmt.Sprintf("add table inet other; add set inet other s { type ipv4_addr; elements = { %s } }",
		elements.String()))
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	notifications := false
	if err := readEvents(ctx, s, func() { notifications = true; cancel() }); err != nil {
		t.Fatal(err)
	}
	if !notifications {
		t.Error("no notification of lost events")
	}
}

// Edits of the table by other programs are read as differences, and one commit corrects them.
func TestRulesRepairWhatOthersDid(t *testing.T) {
	for _, c := range []struct{ name, command string }{
		{"a rule of their own", "insert rule inet manx used accept"},
		{"a rule with a comment", `add rule inet manx used accept comment "hello #1"`},
		{"a rule replaced", "flush chain inet manx base; add rule inet manx base drop"},
		{"rules gone", "flush chain inet manx base"},
		{"a chain", "add chain inet manx foreign; add rule inet manx foreign ip saddr { 1.1.1.1, 2.2.2.2 } drop"},
		{"a base chain", "add chain inet manx foreign { type filter hook ingress device e0 priority 0; }"},
		{"another policy", "add chain inet manx base { policy drop; }"},
		{"a table that sleeps", "add table inet manx { flags dormant; }"},
		{"an element more", "add element inet manx n4/a { 11.0.0.0/24 }"},
		{"an element less", "delete element inet manx n4/a { 10.0.0.0/24 }"},
		{"a range that is no network", "add element inet manx n4/a { 11.0.0.1-11.0.0.6 }"},
		{"a set", "add set inet manx foreign { type ether_addr; elements = { 00:00:00:00:00:01 }; }"},
		{"a map", "add map inet manx foreign { type ipv4_addr : verdict; elements = { 1.1.1.1 : drop }; }"},
		{"a map of ours", "add map inet manx foreign { type ifname : verdict; elements = { eth0 : accept }; }"},
		{"an entry changed", "delete element inet manx m { cali1 }; add element inet manx m { cali1 : drop }"},
		{"an entry gone", "delete element inet manx m { cali1 }"},
		{"everything gone", "delete table inet manx"},
		{"a set of another type", "flush chain inet manx base; delete set inet manx n4/a; add set inet manx n4/a { " +
			"type ipv4_addr; }; " +
			"add rule inet manx used ip saddr @n4/a accept"},
		{"a set of another type in a rule that stays", "flush chain inet manx base; delete set inet manx n4/a; add " +
			"set inet manx n4/a { type ipv4_addr; }; " +
			`add rule inet manx base meta nfproto ipv4 ip saddr @n4/a jump used comment "#` + usesSet.ID() +
			`"; add rule inet manx base iifname vmap @m comment "#` + usesMap.ID() + `"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			ns, n := rulesNS(t)
			w := repairTable()
			commitRules(t, n, w.TakeChanges())
			sameRules(t, n, w)
			nft(t, ns, c.command)
			a, err := n.ReadRules()
			if err != nil {
				t.Fatal(err)
			}
			d := w.Difference(a)
			if d.Empty() {
				t.Fatalf("nothing is found:\n%s", nft(t, ns, "list table inet manx"))
			}
			commitRules(t, n, d)
			sameRules(t, n, w)
			text := nft(t, ns, "list table inet manx")
			for _, trace := range []string{"foreign", "dormant", "policy drop", "1.1.1.1", "11.0.0"} {
				if strings.Contains(text, trace) {
					t.Errorf("%s is left:\n%s", trace, text)
				}
			}
		})
	}
}

var (
	usesSet = ruleset.Rule{Matches: []ruleset.Match{ipv4, {Field: ruleset.Source, Set: "n4/a"}},
		Verdict: ruleset.Verdict{Action: ruleset.Jump, Chain: "used"}}
	usesMap = verdictRule(ruleset.Verdict{Action: ruleset.Lookup, Map: "m"})
)

func repairTable() *ruleset.Table {
	w := ruleset.NewTable()
	w.AddSet(ruleset.Set{Name: "n4/a", Type: ruleset.Addresses4, Interval: true})
	w.AddElement("n4/a", ruleset.Element{Prefix: prefix("10.0.0.0/24")})
	w.AddMap(ruleset.Map{Name: "m"})
	w.SetChain(&ruleset.Chain{Name: "used", Rules: []ruleset.Rule{{Counter: true}}})
	w.SetVerdict("m", "cali1", ruleset.Verdict{Action: ruleset.Goto, Chain: "used"})
	w.SetChain(&ruleset.Chain{Name: "base", Base: &ruleset.Base{Hook: ruleset.Forward, Type: ruleset.Filter,
		Priority: 1}, Rules: []ruleset.Rule{usesSet, usesMap}})
	return w
}

// The chains, sets and rules of other tables are ignored, even with our names and in great number.
func TestRulesBesideOtherTables(t *testing.T) {
	ns, n := rulesNS(t)
	var script strings.Builder
	script.WriteString("add table inet other\nadd table ip manx\nadd chain ip manx base\n" +
		"add chain inet other base\nadd rule inet other base accept\nadd set inet other n4/a { type ipv4_addr; }\n")
	for i := range 3000 {
		script.WriteString("add chain inet other c" + netip.AddrFrom4([4]byte{1, 1, byte(i >> 8), byte(i)}).String() +
			"\n")
	}
	cmd := exec.Command("ip", "netns", "exec", ns, "nft", "-f", "-")
	cmd.Stdin = strings.NewReader(script.String())
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if a, err := n.ReadRules(); a != nil || err != nil {
		t.Fatalf("there is %v, %v", a, err)
	}
	w := repairTable()
	commitRules(t, n, w.TakeChanges())
	sameRules(t, n, w)
	if err := n.DeleteRules(); err != nil {
		t.Fatal(err)
	}
	if err := n.DeleteRules(); err != nil {
		t.Fatalf("deletion of nothing: %v", err)
	}
	if tables := nft(t, ns, "list tables"); strings.Contains(tables, "inet manx") ||
		!strings.Contains(tables, "inet other") || !strings.Contains(tables, "ip manx") {
		t.Errorf("left are %s", tables)
	}
}
