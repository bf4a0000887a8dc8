package ruleset

import (
	"net/netip"
	"slices"
	"testing"
)

func element(prefix string) Element { return Element{Prefix: netip.MustParsePrefix(prefix)} }

// actual is the content of a kernel with the whole table.
func actual(t *Table) *Actual {
	a := &Actual{Chains: map[string]ActualChain{}, Sets: map[string]ActualSet{}, Maps: map[string]map[string]Verdict{}}
	for _, name := range t.Chains() {
		a.Chains[name] = actualChain(t.Chain(name))
	}
	for _, name := range t.Sets() {
		s, _, _ := t.Set(name)
		s.Comment = ""
		a.Sets[name] = ActualSet{Set: s, Elements: slices.Collect(t.Elements(name))}
	}
	for _, name := range t.Maps() {
		a.Maps[name] = map[string]Verdict{}
		for k, v := range t.Verdicts(name) {
			a.Maps[name][k] = v
		}
	}
	return a
}

func actualChain(c *Chain) ActualChain {
	out := ActualChain{Base: c.Base}
	for _, r := range c.Rules {
		out.Rules = append(out.Rules, r.ID())
	}
	return out
}

func smallTable() *Table {
	t := NewTable()
	accept := Rule{Verdict: Verdict{Action: Accept}, Comment: "a 1"}
	t.AddSet(Set{Name: "n4/a", Type: Addresses4, Interval: true, Comment: "a == 'b'"})
	t.AddElement("n4/a", element("10.0.0.0/8"))
	t.AddElement("n4/a", element("192.168.0.0/16"))
	t.AddMap(Map{Name: "to-workload"})
	t.SetVerdict("to-workload", "cali1", Verdict{Action: Goto, Chain: "leaf"})
	t.SetChain(&Chain{Name: "leaf", Rules: []Rule{accept, {Verdict: Verdict{Action: Drop}}}})
	t.SetChain(&Chain{Name: "forward", Base: &Base{Hook: Forward, Type: Filter},
		Rules: []Rule{{Verdict: Verdict{Action: Jump, Chain: "leaf"}}}})
	return t
}

func TestDifferenceOfWhatTheKernelHasAlready(t *testing.T) {
	table := smallTable()
	if c := table.Difference(actual(table)); !c.Empty() {
		t.Errorf("an unchanged table differs: %+v", c)
	}
}

func TestDifferenceWithoutTableIsEverything(t *testing.T) {
	table := smallTable()
	c := table.Difference(nil)
	if len(c.Chains) != 2 || len(c.Sets) != 1 || len(c.Maps) != 1 {
		t.Fatalf("got %+v", c)
	}
	if !c.Sets[0].Created || c.Sets[0].Deleted || len(c.Sets[0].Add) != 2 || !c.Maps[0].Created ||
		len(c.Maps[0].Add) != 1 {
		t.Errorf("got %+v", c)
	}
	for _, ch := range c.Chains {
		if ch.Old != nil || ch.New == nil {
			t.Errorf("chain %s: got %+v", ch.Name, ch)
		}
	}
}

func TestDifference(t *testing.T) {
	other := Element{Prefix: netip.MustParsePrefix("10.0.0.0/9")}
	tests := []struct {
		name  string
		edit  func(*Actual)
		check func(Changes) bool
	}{
		{"an edited rule has no ID", func(a *Actual) { a.Chains["leaf"].Rules[0] = "" }, func(c Changes) bool {
			return len(c.Chains) == 1 && c.Chains[0].Name == "leaf" && c.Chains[0].Old != nil &&
				len(c.Chains[0].New.Rules) == 2
		}},
		{"a rule too many", func(a *Actual) {
			l := a.Chains["leaf"]
			l.Rules = append(l.Rules, l.Rules[0])
			a.Chains["leaf"] = l
		}, func(c Changes) bool { return len(c.Chains) == 1 && c.Chains[0].Name == "leaf" }},
		{"rules in another order", func(a *Actual) { slices.Reverse(a.Chains["leaf"].Rules) },
			func(c Changes) bool { return len(c.Chains) == 1 && c.Chains[0].Name == "leaf" }},
		{"another priority", func(a *Actual) { a.Chains["forward"].Base.Priority++ }, func(c Changes) bool {
			return len(c.Chains) == 1 && c.Chains[0].Old.Base.Priority == 1 && c.Chains[0].New.Base.Priority == 0
		}},
		{"a base chain that should be none", func(a *Actual) {
			a.Chains["leaf"] = ActualChain{Base: &Base{Hook: Input, Type: Filter}, Rules: a.Chains["leaf"].Rules}
		}, func(c Changes) bool { return len(c.Chains) == 1 && c.Chains[0].Old.Base != nil }},
		{"a chain that is not ours", func(a *Actual) { a.Chains["x"] = ActualChain{} }, func(c Changes) bool {
			return len(c.Chains) == 1 && c.Chains[0].Name == "x" && c.Chains[0].New == nil && c.Chains[0].Old != nil
		}},
		{"a set of another type", func(a *Actual) {
			a.Sets["n4/a"] = ActualSet{Set: Set{Name: "n4/a", Type: Addresses6, Interval: true}}
		},
			func(c Changes) bool {
				return len(c.Sets) == 1 && c.Sets[0].Created && c.Sets[0].Deleted && len(c.Sets[0].Add) == 2 &&
					c.Sets[0].Type == Addresses4
			}},
		{"a set without intervals", func(a *Actual) {
			a.Sets["n4/a"] = ActualSet{Set: Set{Name: "n4/a", Type: Addresses4}}
		},
			func(c Changes) bool { return len(c.Sets) == 1 && c.Sets[0].Created && c.Sets[0].Deleted }},
		{"another element", func(a *Actual) {
			s := a.Sets["n4/a"]
			s.Elements = []Element{element("192.168.0.0/16"), other}
			a.Sets["n4/a"] = s
		}, func(c Changes) bool {
			return len(c.Sets) == 1 && !c.Sets[0].Created && !c.Sets[0].Deleted &&
				slices.Equal(c.Sets[0].Remove, []Element{other}) &&
				slices.Equal(c.Sets[0].Add, []Element{element("10.0.0.0/8")})
		}},
		{"an element listed twice", func(a *Actual) {
			s := a.Sets["n4/a"]
			s.Elements = append(s.Elements, s.Elements[0], other, other)
			a.Sets["n4/a"] = s
		}, func(c Changes) bool { return slices.Equal(c.Sets[0].Remove, []Element{other}) && c.Sets[0].Add == nil }},
		{"a set that is not ours", func(a *Actual) { a.Sets["x"] = ActualSet{Elements: []Element{other}} },
			func(c Changes) bool {
				return len(c.Sets) == 1 && c.Sets[0].Name == "x" && c.Sets[0].Deleted && !c.Sets[0].Created &&
					c.Sets[0].Remove == nil
			}},
		{"another verdict", func(a *Actual) { a.Maps["to-workload"]["cali1"] = Verdict{Action: Jump, Chain: "leaf"} },
			func(c Changes) bool {
				return len(c.Maps) == 1 && c.Maps[0].Remove["cali1"].Action == Jump &&
					c.Maps[0].Add["cali1"].Action == Goto
			}},
		{"an interface too many", func(a *Actual) {
			a.Maps["to-workload"]["cali2"] = Verdict{Action: Jump, Chain: "leaf"}
		},
			func(c Changes) bool {
				return len(c.Maps) == 1 && len(c.Maps[0].Remove) == 1 && c.Maps[0].Remove["cali2"].Action == Jump &&
					len(c.Maps[0].Add) == 0
			}},
		{"a map that is not ours", func(a *Actual) { a.Maps["x"] = nil },
			func(c Changes) bool { return len(c.Maps) == 1 && c.Maps[0].Deleted && !c.Maps[0].Created }},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			table := smallTable()
			a := actual(table)
			for name, chain := range a.Chains { // the table's own Base must not be edited
				if chain.Base != nil {
					base := *chain.Base
					chain.Base = &base
					a.Chains[name] = chain
				}
			}
			test.edit(a)
			c := table.Difference(a)
			if len(c.Chains)+len(c.Sets)+len(c.Maps) != 1 || !test.check(c) {
				t.Errorf("got %+v", c)
			}
		})
	}
}
