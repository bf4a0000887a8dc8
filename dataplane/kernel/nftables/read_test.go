package nftables

import (
	"net/netip"
	"testing"

	"github.com/manxnet/manx/dataplane/ruleset"
)

// Any committed content can be read back.
func TestRulesAreReadBackAsCommitted(t *testing.T) {
	name, n := rulesNS(t)
	w := ruleset.NewTable()
	w.AddSet(ruleset.Set{Name: "h4/abc", Type: ruleset.Addresses4})
	w.AddSet(ruleset.Set{Name: "n6/abc", Type: ruleset.Addresses6, Interval: true})
	w.AddSet(ruleset.Set{Name: "n4/abc", Type: ruleset.Addresses4, Interval: true})
	w.AddSet(ruleset.Set{Name: "p/abc", Type: ruleset.Ports, Interval: true})
	w.AddSet(ruleset.Set{Name: "e4/abc", Type: ruleset.Endpoints4})
	w.AddSet(ruleset.Set{Name: "e6/abc", Type: ruleset.Endpoints6})
	for i := range 20000 {
		w.AddElement("h4/abc", ruleset.Element{
			Prefix: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}), 32)})
	}
	for _, p := range []string{"0.0.0.0/1", "128.0.0.0/1"} {
		w.AddElement("n4/abc", ruleset.Element{Prefix: prefix(p)})
	}
	for _, p := range []string{"fd00::/64", "fd00:0:0:1::/64", "ffff::/16", "fd01::1/128"} {
		w.AddElement("n6/abc", ruleset.Element{Prefix: prefix(p)})
	}
	w.AddElement("p/abc", ruleset.Element{Low: 80, High: 90})
	w.AddElement("p/abc", ruleset.Element{Low: 65000, High: 65535})
	w.AddElement("e4/abc", ruleset.Element{Prefix: prefix("10.0.0.1/32"), Protocol: 6, Low: 80})
	w.AddElement("e6/abc", ruleset.Element{Prefix: prefix("fd00::1/128"), Protocol: 17, Low: 53})
	w.AddMap(ruleset.Map{Name: "from-workload"})
	w.SetChain(&ruleset.Chain{Name: "in/x", Rules: []ruleset.Rule{
		{Verdict: ruleset.Verdict{Action: ruleset.Accept}, Comment: "NetworkPolicy/default/web ingress 1"}}})
	w.SetVerdict("from-workload", "cali123", ruleset.Verdict{Action: ruleset.Goto, Chain: "in/x"})
	w.SetChain(&ruleset.Chain{Name: "base", Base: &ruleset.Base{Hook: ruleset.Forward, Type: ruleset.Filter,
		Priority: 1}, Rules: []ruleset.Rule{
		{Matches: []ruleset.Match{{Field: ruleset.Family, Low: 4}, {Field: ruleset.Source, Set: "h4/abc"},
			{Field: ruleset.DestinationEndpoint, Set: "e4/abc", Not: true}}, Verdict: ruleset.Verdict{
			Action: ruleset.Drop}},
		{Verdict: ruleset.Verdict{Action: ruleset.Lookup, Map: "from-workload"}},
	}})
	if err := n.CommitRules(w.TakeChanges()); err != nil {
		t.Fatal(err)
	}
	a, err := n.ReadRules()
	if err != nil {
		t.Fatal(err)
	}
	if d := w.Difference(a); !d.Empty() {
		t.Fatalf("%+v\n%.3000s", d, nft(t, name, "list table inet manx"))
	}
	w.DeleteSet("h4/abc")
	w.AddSet(ruleset.Set{Name: "h4/abc", Type: ruleset.Addresses4, Interval: true})
	w.SetVerdict("from-workload", "cali123", ruleset.Verdict{Action: ruleset.Goto, Chain: "in/y"})
	w.DeleteChain("in/x")
	w.SetChain(&ruleset.Chain{Name: "in/y"})
	c := *w.Chain("base")
	c.Rules = append([]ruleset.Rule{{Counter: true}}, c.Rules...)
	w.SetChain(&c)
	if err := n.CommitRules(w.TakeChanges()); err != nil {
		t.Fatal(err)
	}
	a, err = n.ReadRules()
	if err != nil {
		t.Fatal(err)
	}
	if d := w.Difference(a); !d.Empty() {
		t.Fatalf("%+v", d)
	}
}
