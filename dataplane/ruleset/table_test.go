package ruleset

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
)

// apply changes a plain model like a kernel, with the same checks.
func apply(t *testing.T, a *Actual, c Changes) {
	t.Helper()
	for _, ch := range c.Chains {
		old, ok := a.Chains[ch.Name]
		if ok != (ch.Old != nil) || ok && !old.is(ch.Old) {
			t.Fatalf("chain %s changes from what it is not", ch.Name)
		}
		if ch.New == nil {
			delete(a.Chains, ch.Name)
		} else {
			a.Chains[ch.Name] = actualChain(ch.New)
		}
	}
	for _, sc := range c.Sets {
		s, ok := a.Sets[sc.Name]
		switch {
		case ok == (sc.Created && !sc.Deleted):
			t.Fatalf("set %s: created %v, deleted %v, but there is one: %v", sc.Name, sc.Created, sc.Deleted, ok)
		case sc.Created:
			s = ActualSet{Set: Set{Name: sc.Name, Type: sc.Type, Interval: sc.Interval}}
		case sc.Deleted:
			delete(a.Sets, sc.Name)
			continue
		case len(sc.Add)+len(sc.Remove) == 0:
			t.Fatalf("set %s does not change", sc.Name)
		}
		for _, e := range sc.Remove {
			i := slices.Index(s.Elements, e)
			if i < 0 {
				t.Fatalf("set %s: %v is to be removed and is not there", sc.Name, e)
			}
			s.Elements = slices.Delete(s.Elements, i, i+1)
		}
		for _, e := range sc.Add {
			if slices.Contains(s.Elements, e) {
				t.Fatalf("set %s: %v is to be added and is there", sc.Name, e)
			}
			s.Elements = append(s.Elements, e)
		}
		a.Sets[sc.Name] = s
	}
	for _, mc := range c.Maps {
		m, ok := a.Maps[mc.Name]
		switch {
		case ok == mc.Created:
			t.Fatalf("map %s: created %v, but there is one: %v", mc.Name, mc.Created, ok)
		case mc.Created:
			m = map[string]Verdict{}
		case mc.Deleted:
			delete(a.Maps, mc.Name)
			continue
		case len(mc.Add)+len(mc.Remove) == 0:
			t.Fatalf("map %s does not change", mc.Name)
		}
		for k, v := range mc.Remove {
			if m[k] != v {
				t.Fatalf("map %s: %s has %v and not %v", mc.Name, k, m[k], v)
			}
			delete(m, k)
		}
		for k, v := range mc.Add {
			if _, ok := m[k]; ok {
				t.Fatalf("map %s: %s is there", mc.Name, k)
			}
			m[k] = v
		}
		a.Maps[mc.Name] = m
	}
}

func equalActual(a, b *Actual) bool {
	return maps.EqualFunc(a.Chains, b.Chains, func(x, y ActualChain) bool {
		return sameBase(x.Base, y.Base) &&
			slices.Equal(x.Rules, y.Rules)
	}) &&
		maps.EqualFunc(a.Sets, b.Sets, func(x, y ActualSet) bool {
			slices.SortFunc(x.Elements, CompareElements)
			slices.SortFunc(y.Elements, CompareElements)
			return x.sameKind(y.Set) && slices.Equal(x.Elements, y.Elements)
		}) && maps.EqualFunc(a.Maps, b.Maps, func(x, y map[string]Verdict) bool { return maps.Equal(x, y) })
}

func emptyActual() *Actual { return actual(NewTable()) }

// randomElement returns one of few values, so that elements repeat.
func randomElement(r *rand.Rand, s Set) Element {
	four, six := netip.AddrFrom4([4]byte{10, 0, 0, byte(r.IntN(4))}),
		netip.AddrFrom16([16]byte{0xfd, 15: byte(r.IntN(4))})
	switch s.Type {
	case Addresses4:
		if s.Interval {
			return Element{Prefix: netip.PrefixFrom(four, 30+r.IntN(3))}
		}
		return Element{Prefix: netip.PrefixFrom(four, 32)}
	case Addresses6:
		return Element{Prefix: netip.PrefixFrom(six, 128)}
	case Endpoints4:
		return Element{Prefix: netip.PrefixFrom(four, 32), Protocol: 6, Low: uint16(r.IntN(2))}
	case Endpoints6:
		return Element{Prefix: netip.PrefixFrom(six, 128), Protocol: 17, Low: uint16(r.IntN(2))}
	}
	low := uint16(r.IntN(4))
	return Element{Low: low, High: low + uint16(r.IntN(2))}
}

// randomOperation makes one change of the table.
func randomOperation(r *rand.Rand, t *Table) {
	set, m, chain := fmt.Sprint("s", r.IntN(3)), fmt.Sprint("m", r.IntN(2)), fmt.Sprint("c", r.IntN(3))
	switch r.IntN(12) {
	case 0:
		t.AddSet(Set{Name: set, Type: SetType(1 + r.IntN(int(Endpoints6))), Interval: r.IntN(2) == 0})
	case 1:
		t.DeleteSet(set)
	case 2, 3, 4:
		if s, _, ok := t.Set(set); ok {
			t.AddElement(set, randomElement(r, s))
		}
	case 5, 6:
		if s, _, ok := t.Set(set); ok {
			t.RemoveElement(set, randomElement(r, s))
		}
	case 7:
		t.AddMap(Map{Name: m})
	case 8:
		if r.IntN(3) == 0 {
			t.DeleteMap(m)
		}
	case 9:
		v := Verdict{Action: Goto, Chain: fmt.Sprint(r.IntN(2))}
		if r.IntN(3) == 0 {
			v = Verdict{}
		}
		if slices.Contains(t.Maps(), m) {
			t.SetVerdict(m, fmt.Sprint("cali", r.IntN(2)), v)
		}
	case 10:
		c := &Chain{Name: chain}
		if r.IntN(2) == 0 {
			c.Base = &Base{Hook: Hook(1 + r.IntN(5)), Type: Filter, Priority: int32(r.IntN(2))}
		}
		for range r.IntN(3) {
			c.Rules = append(c.Rules, Rule{Verdict: Verdict{Action: Action(1 + r.IntN(2))}})
		}
		t.SetChain(c)
	case 11:
		t.DeleteChain(chain)
	}
}

// Changes may be taken at any time, after any number of steps: applying them ends in the content of the table.
func TestChangesLeadToTheTable(t *testing.T) {
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 1))
		always, sometimes, once := NewTable(), NewTable(), NewTable()
		modelA, modelS, modelO := emptyActual(), emptyActual(), emptyActual()
		for range 100 {
			step := r.Uint64()
			for _, table := range []*Table{always, sometimes, once} {
				randomOperation(rand.New(rand.NewPCG(step, 2)), table)
			}
			apply(t, modelA, always.TakeChanges())
			if r.IntN(6) == 0 {
				apply(t, modelS, sometimes.TakeChanges())
			}
			if !equalActual(modelA, actual(always)) {
				t.Fatalf("seed %d: got %+v, want %+v", seed, modelA, actual(always))
			}
		}
		apply(t, modelS, sometimes.TakeChanges())
		apply(t, modelO, once.TakeChanges())
		want := actual(always)
		for i, got := range []*Actual{modelA, modelS, modelO, actual(sometimes), actual(once)} {
			if !equalActual(got, want) {
				t.Fatalf("seed %d, way %d: got %+v, want %+v", seed, i, got, want)
			}
		}
		if c := once.TakeChanges(); !c.Empty() {
			t.Fatalf("seed %d: taken twice: %+v", seed, c)
		}
		if c := once.Difference(modelO); !c.Empty() {
			t.Fatalf("seed %d: what was applied differs: %+v", seed, c)
		}
		checkHooks(t, once)
	}
}

// The differences between two random tables lead from one to the other.
func TestDifferenceLeadsToTheTable(t *testing.T) {
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 3))
		from, to := NewTable(), NewTable()
		for range 60 {
			randomOperation(r, from)
			randomOperation(r, to)
		}
		c := to.Difference(actual(from))
		for i := range c.Chains {
			if c.Chains[i].Old != nil {
				c.Chains[i].Old = from.Chain(c.Chains[i].Name) // a kernel returns no rules, the model needs them
			}
		}
		model := actual(from)
		apply(t, model, c)
		if !equalActual(model, actual(to)) {
			t.Fatalf("seed %d: got %+v, want %+v", seed, model, actual(to))
		}
	}
}

func checkHooks(t *testing.T, table *Table) {
	t.Helper()
	hooked := 0
	for h, list := range table.hooked {
		hooked += len(list)
		for _, c := range list {
			if table.Chain(c.Name) != c || c.Base.Hook != Hook(h) {
				t.Errorf("hook %d has chain %s, which is another", h, c.Name)
			}
		}
		if !slices.IsSortedFunc(list, compareBases) {
			t.Errorf("hook %d is not in order", h)
		}
	}
	for _, name := range table.Chains() {
		if table.Chain(name).Base != nil {
			hooked--
		}
	}
	if hooked != 0 {
		t.Errorf("%d base chains too many are hooked", hooked)
	}
}

func TestWhatCameAndWentIsNoChange(t *testing.T) {
	table := smallTable()
	table.AddSet(Set{Name: "p/1", Type: Ports, Interval: true})
	table.AddElement("p/1", Element{Low: 80, High: 80})
	table.TakeChanges()

	e := element("172.16.0.0/12")
	accept := Verdict{Action: Goto, Chain: "leaf"}
	tests := []struct {
		name string
		do   func()
	}{
		{"a set", func() { table.AddSet(Set{Name: "x", Type: Ports, Interval: true}); table.DeleteSet("x") }},
		{"a map", func() { table.AddMap(Map{Name: "x"}); table.SetVerdict("x", "a", accept); table.DeleteMap("x") }},
		{"a chain", func() { table.SetChain(&Chain{Name: "x"}); table.DeleteChain("x") }},
		{"an element", func() { table.AddElement("n4/a", e); table.RemoveElement("n4/a", e) }},
		{"an element that goes and comes", func() {
			table.RemoveElement("n4/a", element("10.0.0.0/8"))
			table.AddElement("n4/a", element("10.0.0.0/8"))
		}},
		{"an entry", func() {
			table.SetVerdict("to-workload", "cali2", accept)
			table.SetVerdict("to-workload", "cali2", Verdict{})
		}},
		{"another verdict", func() {
			table.SetVerdict("to-workload", "cali1", Verdict{Action: Jump, Chain: "leaf"})
			table.SetVerdict("to-workload", "cali1", Verdict{})
			table.SetVerdict("to-workload", "cali1", accept)
		}},
		{"a set that is made again as it was", func() {
			table.AddElement("n4/a", e)
			table.DeleteSet("n4/a")
			table.AddSet(Set{Name: "n4/a", Type: Addresses4, Interval: true})
			table.AddElement("n4/a", element("192.168.0.0/16"))
			table.AddElement("n4/a", element("10.0.0.0/8"))
		}},
		{"a map that is made again as it was", func() {
			table.SetVerdict("to-workload", "cali2", accept)
			table.DeleteMap("to-workload")
			table.AddMap(Map{Name: "to-workload"})
			table.SetVerdict("to-workload", "cali1", accept)
		}},
		{"a chain that is made again as it was", func() {
			old := *table.Chain("leaf")
			table.DeleteChain("leaf")
			table.SetChain(&Chain{Name: "leaf", Rules: slices.Clone(old.Rules)})
		}},
		{"a chain that is changed and changed back", func() {
			old := *table.Chain("leaf")
			table.SetChain(&Chain{Name: "leaf"})
			table.SetChain(&old)
		}},
		{"an element of the other family", func() { table.AddElement("n4/a", element("fd00::/8")) }},
		{"the same network with host bits",
			func() { table.AddElement("n4/a", Element{Prefix: netip.MustParsePrefix("10.1.2.3/8"), Low: 7}) }},
		{"the same port without an end", func() { table.AddElement("p/1", Element{Low: 80}) }},
		{"the comment", func() { table.AddSet(Set{Name: "n4/a", Type: Addresses4, Interval: true, Comment: "other"}) }},
		{"removing what is not there", func() {
			table.DeleteSet("no")
			table.DeleteMap("no")
			table.DeleteChain("no")
			table.RemoveElement("no", e)
			table.RemoveElement("n4/a", e)
			table.SetVerdict("no", "x", Verdict{})
		}},
	}
	for _, test := range tests {
		test.do()
		if c := table.TakeChanges(); !c.Empty() {
			t.Errorf("%s: %+v", test.name, c)
		}
	}
}

func TestSetOfAnotherTypeIsReplaced(t *testing.T) {
	table := smallTable()
	table.TakeChanges()
	table.AddSet(Set{Name: "n4/a", Type: Addresses6})
	table.AddElement("n4/a", element("fd00::1/128"))
	c := table.TakeChanges()
	if len(c.Sets) != 1 || !c.Sets[0].Created || !c.Sets[0].Deleted ||
		!slices.Equal(c.Sets[0].Add, []Element{element("fd00::1/128")}) {
		t.Errorf("got %+v", c)
	}
}

func TestElementsComeBackAsTheyWere(t *testing.T) {
	tests := []struct {
		set      Set
		elements []Element
	}{
		{Set{Type: Addresses4}, []Element{element("0.0.0.0/32"), element("255.255.255.255/32")}},
		{Set{Type: Addresses4, Interval: true}, []Element{element("0.0.0.0/0")}},
		{Set{Type: Addresses6, Interval: true}, []Element{element("::/1"), element("8000::/128"),
			element("ffff::/16")}},
		{Set{Type: Endpoints4}, []Element{{Prefix: netip.MustParsePrefix("255.0.0.1/32"), Protocol: 255, Low: 65535}}},
		{Set{Type: Endpoints6}, []Element{{Prefix: netip.MustParsePrefix("ff::1/128"), Protocol: 132, Low: 0}}},
		{Set{Type: Ports, Interval: true}, []Element{{Low: 0, High: 0}, {Low: 1, High: 65535}}},
	}
	for _, test := range tests {
		table := NewTable()
		test.set.Name = "s"
		table.AddSet(test.set)
		for _, e := range test.elements {
			table.AddElement("s", e)
		}
		if got := slices.SortedFunc(table.Elements("s"), CompareElements); !slices.Equal(got, test.elements) {
			t.Errorf("%+v: got %v, want %v", test.set, got, test.elements)
		}
		for _, e := range test.elements {
			if !table.Contains("s", e) {
				t.Errorf("%+v does not contain %v", test.set, e)
			}
		}
	}
}
