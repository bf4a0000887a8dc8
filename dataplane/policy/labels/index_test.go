package labels

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/manxnet/manx/datastore/selector"
)

// model is a plain implementation of the index, and the calls of the real one's callbacks.
type model struct {
	t         *testing.T
	items     map[int]modelItem
	parents   map[string]map[string]string
	selectors map[string]*selector.Selector
	matched   map[string]map[int]bool
	calls     int
}

type modelItem struct {
	own     map[string]string
	parents []string
}

func newModel(t *testing.T) (*model, *Index[int, string]) {
	m := &model{t: t, items: map[int]modelItem{}, parents: map[string]map[string]string{},
		selectors: map[string]*selector.Selector{}, matched: map[string]map[int]bool{}}
	return m, New(m.started, m.stopped)
}

func (m *model) started(s string, i int) {
	m.calls++
	if m.matched[s][i] {
		m.t.Fatalf("%s starts to match %d twice", s, i)
	}
	if m.matched[s] == nil {
		m.matched[s] = map[int]bool{}
	}
	m.matched[s][i] = true
}

func (m *model) stopped(s string, i int) {
	m.calls++
	if !m.matched[s][i] {
		m.t.Fatalf("%s ceases to match %d, which it did not", s, i)
	}
	delete(m.matched[s], i)
}

func (m *model) labels(i int) map[string]string {
	all := map[string]string{}
	for _, p := range slices.Backward(m.items[i].parents) {
		maps.Copy(all, m.parents[p])
	}
	maps.Copy(all, m.items[i].own)
	return all
}

// check compares the callbacks and the results of the index with the model.
func (m *model) check(x *Index[int, string]) {
	m.t.Helper()
	of := map[int]map[string]bool{}
	for i := range m.items {
		of[i] = map[string]bool{}
		labels := m.labels(i)
		got := x.items[i].class
		for _, l := range labelNames {
			v, ok := got.Get(l)
			if want, has := labels[l]; v != want || ok != has {
				m.t.Fatalf("label %s of item %d is %q (%v), want %q (%v)", l, i, v, ok, want, has)
			}
		}
		for s, sel := range m.selectors {
			if sel.Matches(labels) {
				of[i][s] = true
			}
			if m.matched[s][i] != of[i][s] {
				m.t.Fatalf("%s %s: reported for item %d %v: %v", s, sel, i, labels, m.matched[s][i])
			}
		}
		if got := slices.Sorted(x.Selectors(i)); !slices.Equal(got, slices.Sorted(maps.Keys(of[i]))) {
			m.t.Fatalf("selectors of item %d are %v, want %v", i, got, of[i])
		}
	}
	for s, items := range m.matched {
		if got := slices.Sorted(x.Matches(s)); !slices.Equal(got, slices.Sorted(maps.Keys(items))) {
			m.t.Fatalf("%s matches %v, want %v", s, got, items)
		}
		for i := range items {
			if !of[i][s] {
				m.t.Fatalf("%s still matches %d, one of which is gone", s, i)
			}
		}
	}
}

var (
	labelNames  = []string{"a", "b", "c", "d"}
	labelValues = []string{"", "x", "y", "xy", "yx", "z"}
)

func randomLabels(r *rand.Rand) map[string]string {
	if r.IntN(8) == 0 {
		return nil
	}
	labels := map[string]string{}
	for _, l := range labelNames {
		if r.IntN(3) == 0 {
			labels[l] = labelValues[r.IntN(len(labelValues))]
		}
	}
	return labels
}

// randomSelector uses the whole language.
func randomSelector(r *rand.Rand, depth int) selector.Node {
	label := labelNames[r.IntN(len(labelNames))]
	value := labelValues[r.IntN(len(labelValues))]
	kinds := 10
	if depth == 0 {
		kinds = 7
	}
	switch r.IntN(kinds) {
	case 0:
		return []selector.Node{selector.All{}, selector.Global{}}[r.IntN(2)]
	case 1:
		return selector.Has{Label: label}
	case 2:
		return selector.Comparison{Label: label, Op: selector.Equal, Value: value}
	case 3:
		ops := []selector.Op{selector.NotEqual, selector.Contains, selector.StartsWith, selector.EndsWith}
		return selector.Comparison{Label: label, Op: ops[r.IntN(len(ops))], Value: value}
	case 4, 5:
		var values []string
		for _, v := range labelValues {
			if r.IntN(3) == 0 {
				values = append(values, v)
			}
		}
		slices.Sort(values)
		return selector.In{Label: label, Values: values, Not: r.IntN(2) == 0}
	case 6, 7:
		return selector.Not{Operand: randomSelector(r, max(0, depth-1))}
	case 8:
		return selector.And{Operands: []selector.Node{randomSelector(r, depth-1), randomSelector(r, depth-1)}}
	default:
		return selector.Or{Operands: []selector.Node{randomSelector(r, depth-1), randomSelector(r, depth-1),
			randomSelector(r, depth-1)}}
	}
}

// After any events in any order, the callbacks are exactly the matches that begin or end. After all removals the index
// is empty.
func TestMatchesAreThoseOfTheWholeEvaluation(t *testing.T) {
	parentNames := []string{"kns.1", "kns.2", "ksa.1", "never set"}
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 4))
		m, x := newModel(t)
		for step := range 150 {
			item, name := r.IntN(12), fmt.Sprint("s", r.IntN(12))
			switch r.IntN(9) {
			case 0, 1, 2:
				it := modelItem{own: randomLabels(r)}
				for range r.IntN(4) {
					it.parents = append(it.parents, parentNames[r.IntN(len(parentNames))])
				}
				m.items[item] = it
				x.SetItem(item, it.own, it.parents)
			case 3:
				delete(m.items, item)
				x.DeleteItem(item)
			case 4, 5:
				p := parentNames[r.IntN(3)]
				m.parents[p] = randomLabels(r)
				x.SetParent(p, m.parents[p])
			case 6, 7:
				sel := selector.New(randomSelector(r, 3))
				m.selectors[name] = sel
				x.SetSelector(name, sel)
			case 8:
				delete(m.selectors, name)
				x.DeleteSelector(name)
			}
			if step%3 == 0 {
				m.check(x)
			}
		}
		m.check(x)
		for i := range m.items {
			x.DeleteItem(i)
		}
		for s := range m.selectors {
			x.DeleteSelector(s)
		}
		for _, p := range parentNames {
			x.SetParent(p, nil)
		}
		for s, items := range m.matched {
			if len(items) > 0 {
				t.Fatalf("seed %d: %s matches %v after all is gone", seed, s, items)
			}
		}
		if n := len(x.items) + len(x.classes) + len(x.parents) + len(x.names) + len(x.selectors) +
			x.always.len(); n > 0 {
			t.Fatalf("seed %d: %d things are left in the index", seed, n)
		}
	}
}

// A selector that requires one of some labels is never indexed by other labels, for any cheapest operand.
func TestRestrictionsAreNecessary(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	for range 20000 {
		node := randomSelector(r, 3)
		got := restrict(node, false, func(key) int { return r.IntN(10) })
		labels := randomLabels(r)
		if !got.restricted || !node.Matches(selector.Map(labels)) {
			continue
		}
		if !slices.ContainsFunc(got.keys, func(k key) bool {
			v, ok := labels[k.label]
			return ok && (k.any || v == k.value)
		}) {
			t.Fatalf("%s matches %v, which has none of %v", selector.New(node), labels, got.keys)
		}
	}
}

func TestRestriction(t *testing.T) {
	sizes := map[key]int{{label: "rare", value: "1"}: 1, {label: "common", value: "1"}: 1000,
		{label: "common", value: "2"}: 10}
	for _, test := range []struct{ selector, want string }{
		{"", "always"},
		{"a != 'x'", "always"},
		{"a not in {'x'}", "always"},
		{"!has(a)", "always"},
		{"a == 'x' || b != 'y'", "always"},
		{"!(a == 'x' && b == 'y')", "always"},
		{"a == 'x'", "[{a x false}]"},
		{"a in {'x', 'y'}", "[{a x false} {a y false}]"},
		{"has(a)", "[{a  true}]"},
		{"a starts with 'x'", "[{a  true}]"},
		{"a == 'x' || has(b)", "[{a x false} {b  true}]"},
		{"!(a != 'x')", "[{a x false}]"},
		{"!(a not in {'x'} || b == 'y')", "[{a x false}]"},
		{"!all()", "[]"},
		{"has(a) && a == 'x'", "[{a x false}]"},
		{"common == '1' && (b != 'x' && rare == '1')", "[{rare 1 false}]"},
		{"common in {'1', '2'} && has(a) && !has(c)", "[{a  true}]"},
	} {
		sel, err := selector.Parse(test.selector)
		if err != nil {
			t.Fatal(err)
		}
		got := "always"
		if r := restrict(sel.Root(), false, func(k key) int { return sizes[k] }); r.restricted {
			got = fmt.Sprint(r.keys)
		}
		if got != test.want {
			t.Errorf("%q is restricted to %s, want %s", test.selector, got, test.want)
		}
	}
}

func TestWhatStaysTheSameIsNotTold(t *testing.T) {
	m, x := newModel(t)
	sel, _ := selector.Parse("a == 'x' && has(n)")
	same, _ := selector.Parse(`(a=="x")&&has(n)`)
	wider, _ := selector.Parse("a == 'x'")
	x.SetParent("p", map[string]string{"n": "1"})
	x.SetItem(1, map[string]string{"a": "x"}, []string{"p"})
	x.SetItem(2, map[string]string{"a": "x"}, []string{"p"})
	x.SetSelector("s", sel)
	if m.calls != 2 {
		t.Fatalf("%d calls, want one for each item", m.calls)
	}
	tried := x.tried
	x.SetItem(1, map[string]string{"a": "x"}, []string{"p"})
	x.SetParent("p", map[string]string{"n": "1"})
	x.SetSelector("s", same)
	if m.calls != 2 || x.tried != tried {
		t.Fatalf("nothing changed, but there were %d calls and %d evaluations", m.calls-2, x.tried-tried)
	}
	x.SetItem(1, map[string]string{"a": "x", "b": "y"}, []string{"p"})
	x.SetParent("p", map[string]string{"n": "2"})
	x.SetSelector("s", wider)
	if m.calls != 2 {
		t.Fatalf("the same items match, but there were %d calls", m.calls-2)
	}
}
