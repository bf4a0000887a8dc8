package policy

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	"github.com/projectcalico/api/pkg/lib/numorstring"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/manxnet/manx/dataplane/ruleset"
	"github.com/manxnet/manx/datastore/model"
)

// podOn is a pod of a namespace, whose profile allows everything.
func podOn(namespace, name, node, address string, labels map[string]string) *model.Object {
	all := map[string]string{model.LabelNamespace: namespace, "projectcalico.org/orchestrator": "k8s"}
	maps.Copy(all, labels)
	w := &model.WorkloadEndpoint{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: all}}
	w.Spec = model.WorkloadEndpointSpec{Node: node, InterfaceName: "cali" + name,
		Profiles: []string{model.DefaultAllowProfile}, IPNetworks: []string{address + "/32"}}
	return model.NewObject(model.Key{Kind: model.KindWorkloadEndpoint, Namespace: namespace, Name: name}, w)
}

// allowFrom is an ingress policy of a namespace for all of its pods.
func allowFrom(namespace, name string, sources ...v3.EntityRule) *model.Object {
	p := &v3.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	p.Spec = v3.NetworkPolicySpec{Selector: "all()", Types: []v3.PolicyType{v3.PolicyTypeIngress}}
	for _, s := range sources {
		p.Spec.Ingress = append(p.Spec.Ingress, v3.Rule{Action: v3.Allow, Source: s})
	}
	return model.NewObject(model.Key{Kind: model.KindNetworkPolicy, Namespace: namespace, Name: name}, p)
}

// without are selectors that match all pods, as long as none has one of their labels.
func without(n int) []v3.EntityRule {
	list := make([]v3.EntityRule, n)
	for i := range list {
		list[i] = v3.EntityRule{NamespaceSelector: "all()", Selector: fmt.Sprintf("!has(a%d)", i)}
	}
	return list
}

// cluster is n pods of other nodes, and one here in each of the namespaces evil and good.
func cluster(n int) model.Set {
	set := model.NewSet(podOn("evil", "e", testNode, "10.9.0.1", nil), podOn("good", "g", testNode, "10.9.0.2", nil))
	for i := range n {
		o := podOn(fmt.Sprint("ns", i%7), fmt.Sprint("p", i), "there", fmt.Sprintf("10.1.%d.%d", i/250, i%250), nil)
		set[o.Key] = o
	}
	return set
}

// passes reports whether a packet from a pod of another node reaches a pod here, or with out the other way.
func passes(c *Calculator, iface string, out bool) bool {
	p := ruleset.Packet{In: "eth0", Out: iface, Source: netip.MustParseAddr("10.1.0.0"),
		Destination: netip.MustParseAddr("10.9.0.1"), Protocol: 6}
	if out {
		p.In, p.Out, p.Source, p.Destination = iface, "eth0", p.Destination, p.Source
	}
	return c.Table().Eval(nil, ruleset.Forward, p, nil).Accepted()
}

func closed(c *Calculator) string {
	var list []string
	for k, why := range c.Closed() {
		list = append(list, k.String()+": "+why)
	}
	slices.Sort(list)
	return strings.Join(list, "\n")
}

func (c *Calculator) finish() (steps int) {
	for ; c.Waiting(); steps++ {
		c.Continue()
	}
	return steps
}

// A tenant's policy with thousands of selectors closes its own pods in its direction, before one of them is evaluated.
// It opens them when it is smaller.
func TestPolicyAboveTheBudgetClosesItsOwnPodsAlone(t *testing.T) {
	set := cluster(1000)
	small := allowFrom("good", "small", v3.EntityRule{NamespaceSelector: "all()"})
	set[small.Key] = small
	c := Build(Config{Node: testNode, Budget: DefaultBudget}, set, nil)
	before := c.sets.peers.Tried()
	for _, n := range []int{2000, 10_000} {
		large := allowFrom("evil", "large", without(n)...)
		set[large.Key] = large
		c.Update(set, large.Key)
		if passes(c, "calie", false) || !passes(c, "calie", true) || !passes(c, "calig", false) {
			t.Errorf("%d rules: to the author's pod %v, from it %v, to another tenant's %v", n,
				passes(c, "calie", false), passes(c, "calie", true), passes(c, "calig", false))
		}
		if got := closed(c); !strings.Contains(got, "NetworkPolicy evil/large") ||
			!strings.Contains(got, "namespace evil") {
			t.Errorf("closed: %q", got)
		}
		p, _ := c.Policy(ID{model.KindNetworkPolicy, "evil", "large"})
		if n > DefaultBudget.Rules && len(p.Ingress.Rules) > 0 {
			t.Error("rules above the limit are compiled")
		}
		if c.Waiting() || c.sets.peers.Tried() != before || len(c.sets.of) != 1 {
			t.Errorf("%d selectors were evaluated, there are %d sets", c.sets.peers.Tried()-before, len(c.sets.of))
		}
	}
	if policies, selectors := c.Active(); policies != 2 || selectors != 1 {
		t.Errorf("%d policies are active, and use %d selectors", policies, selectors)
	}
	shrunk := allowFrom("evil", "large", without(2)...)
	set[shrunk.Key] = shrunk
	c.Update(set, shrunk.Key)
	c.finish()
	if !passes(c, "calie", false) || closed(c) != "" || len(c.spaces.of) != 2 {
		t.Errorf("after it has shrunk: %v, %q", passes(c, "calie", false), closed(c))
	}
	for _, name := range []string{"e", "g"} {
		delete(set, podOn(map[string]string{"e": "evil", "g": "good"}[name], name, "", "", nil).Key)
	}
	if c.Update(set); len(c.spaces.of) != 0 || len(c.sets.of) != 0 {
		t.Errorf("%d namespaces and %d sets are left without pods", len(c.spaces.of), len(c.sets.of))
	}
	if policies, selectors := c.Active(); policies != 0 || selectors != 0 {
		t.Errorf("without pods %d policies are active, and use %d selectors", policies, selectors)
	}
}

// Each limit closes the largest policies of a namespace, staged ones too, and no others.
func TestLargestPoliciesAreClosedFirst(t *testing.T) {
	nets := func(n int) (e v3.EntityRule) {
		for i := range n {
			e.Nets = append(e.Nets, fmt.Sprintf("10.%d.0.0/16", 2*i))
		}
		return e
	}
	long := v3.EntityRule{Selector: strings.Repeat("!has(a) && ", 1000) + "!has(b)"}
	plain := []v3.EntityRule{{Selector: "has(x)"}, {Selector: "has(x)"}}
	for _, test := range []struct {
		what   string
		budget Budget
		large  []v3.EntityRule
		why    string
	}{
		{"nothing", Budget{}, without(50), ""},
		{"within", Budget{14, 11, 0}, without(10), ""},
		{"rules", Budget{Rules: 13}, without(10), "have at least 14 rules on this node, and --policy-max-rules is 13"},
		{"sets", Budget{Sets: 10}, without(10), "have at least 11 sets on this node, and --policy-max-sets is 10"},
		{"a long selector", Budget{Sets: 10}, []v3.EntityRule{long, long}, "have at least 12 sets"},
		{"networks", Budget{Elements: 30}, []v3.EntityRule{nets(20), nets(11)}, "have at least 31 elements"},
		{"members", Budget{Elements: 30}, without(10), "have at least 31 elements"},
	} {
		set := cluster(4)
		for _, o := range []*model.Object{allowFrom("evil", "a-large", test.large...),
			allowFrom("evil", "small", plain...)} {
			set[o.Key] = o
		}
		c := Build(Config{Node: testNode, Budget: test.budget}, set, nil)
		if got := closed(c); (got == "") != (test.why == "") || !strings.Contains(got, test.why) ||
			strings.Contains(got, "small") {
			t.Errorf("%s: %q, want %q", test.what, got, test.why)
		}
		if why := c.WhyClosed(ID{model.KindNetworkPolicy, "evil", "a-large"}); (why == "") != (test.why == "") {
			t.Errorf("%s: %q", test.what, why)
		}
	}
}

// A staged policy costs as much as another one. Above the budget it is not evaluated, and drops nothing.
func TestStagedPoliciesAboveTheBudgetDropNothing(t *testing.T) {
	set := cluster(4)
	p := &v3.StagedNetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "evil", Name: "staged"}}
	p.Spec = v3.StagedNetworkPolicySpec{Selector: "all()", Types: []v3.PolicyType{v3.PolicyTypeIngress},
		Ingress: allowFrom("evil", "", without(10)...).Value.(*v3.NetworkPolicy).Spec.Ingress}
	o := model.NewObject(model.Key{Kind: model.KindStagedNetworkPolicy, Namespace: "evil", Name: "staged"}, p)
	set[o.Key] = o
	c := Build(Config{Node: testNode, Budget: Budget{Sets: 9}}, set, nil)
	if got := closed(c); !passes(c, "calie", false) || len(c.sets.of) > 0 ||
		!strings.Contains(got, "it is not evaluated") {
		t.Errorf("packets pass: %v, %d sets, %q", passes(c, "calie", false), len(c.sets.of), got)
	}
}

// The members of sets count as pods come. Those that other namespaces list in a network set do not: their authors would
// close the policies of this one.
func TestMembersCountAsTheyCome(t *testing.T) {
	set := cluster(20)
	p := allowFrom("evil", "p", without(10)...)
	set[p.Key] = p
	c := Build(Config{Node: testNode, Budget: Budget{Elements: 300}}, set, nil)
	expect := func(what string, open bool) {
		t.Helper()
		c.finish()
		sum := 0
		for _, s := range c.sets.of {
			sum += s.weight("evil")
		}
		sp := c.spaces.of["evil"]
		if passes(c, "calie", false) != open || (closed(c) == "") != open || c.HasFull() == open ||
			sp.elements != sum || sum > 300 || open != (sum > 0) {
			t.Fatalf("%s: open %v, closed: %q, %d elements, counted %d", what, passes(c, "calie", false), closed(c),
				sum, sp.elements)
		}
	}
	put := func(o *model.Object) {
		set[o.Key] = o
		c.Update(set, o.Key)
	}
	expect("at first", true)
	sets := func(namespace string, nets int) *model.Object {
		n := &v3.NetworkSet{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "n"}}
		for i := range nets {
			n.Spec.Nets = append(n.Spec.Nets, fmt.Sprintf("172.16.%d.0/24", i))
		}
		return model.NewObject(model.Key{Kind: model.KindNetworkSet, Namespace: namespace, Name: "n"}, n)
	}
	put(sets("good", 200))
	expect("a large network set of another namespace", true)
	put(sets("evil", 20))
	expect("a large one of its own", false)
	put(sets("evil", 1))
	expect("the own one is small again, but nobody has looked", false)
	c.Reconsider()
	expect("after a look", true)
	for i := range 6 {
		put(podOn("good", fmt.Sprint("x", i), "there", fmt.Sprintf("10.5.0.%d", i), nil))
	}
	expect("too many pods", true)
	put(podOn("good", "x6", "there", "10.5.0.6", nil))
	expect("one more", false)
	c.Reconsider()
	expect("a look finds the same", false)
	if c.Update(set); !c.HasFull() {
		t.Error("opened without a reason")
	}
}

// A large policy is computed in many steps, each of which stops soon. Meanwhile its pods are closed, or stay under the
// former rules; new pods and small policies of other namespaces come first.
func TestLargePoliciesAreComputedInSteps(t *testing.T) {
	set := cluster(500)
	c := Build(Config{Node: testNode, Budget: DefaultBudget}, set, nil)
	put := func(o *model.Object) {
		set[o.Key] = o
		c.Update(set, o.Key)
	}
	bits := func(n, from int) (list []v3.EntityRule) { // sets of members of their own
		for i := range n {
			list = append(list, v3.EntityRule{NamespaceSelector: "all()",
				Selector: fmt.Sprintf("projectcalico.org/name != 'x' && !has(x%d)", from+i)})
			o := podOn("other", fmt.Sprint("x", from+i), "there", fmt.Sprintf("10.7.%d.%d", from/100, i),
				map[string]string{fmt.Sprint("x", from+i): ""})
			set[o.Key] = o
			c.Update(set, o.Key)
		}
		return list
	}
	first := allowFrom("evil", "large", bits(80, 0)...)
	put(first)
	steps, most := 0, 0
	for ; c.Waiting(); steps++ {
		if passes(c, "calie", false) || c.Complete("calie") {
			t.Fatal("the policy is in force before it is complete")
		}
		for _, s := range c.Table().TakeChanges().Sets {
			most = max(most, len(s.Add))
		}
		sets := len(c.Table().Sets())
		name := fmt.Sprint("new", steps)
		put(podOn("good", name, testNode, "10.9.1.1", nil))
		put(allowFrom("good", name, v3.EntityRule{Selector: "has(app)"}))
		chain := ChainName(ID{model.KindNetworkPolicy, "good", name}, true)
		if !c.Complete("cali"+name) || c.Table().Chain(chain) == nil {
			t.Fatal("another tenant's new pod or policy waits")
		}
		if c.Continue(); len(c.Table().Sets())-sets > 12 {
			t.Fatalf("%d sets in one step", len(c.Table().Sets())-sets)
		}
	}
	if steps < 8 || most > 700 || !passes(c, "calie", false) || !c.Complete("calie") {
		t.Errorf("%d steps, up to %d elements of one set, in force in the end: %v", steps, most,
			passes(c, "calie", false))
	}
	put(allowFrom("evil", "large", append(bits(80, 100), v3.EntityRule{Nets: []string{"192.0.2.0/24"}})...))
	if !c.Waiting() || !passes(c, "calie", false) {
		t.Error("a changed policy is not in force until it is complete")
	}
	if n := c.finish(); n < 8 || !passes(c, "calie", false) {
		t.Errorf("the changed policy is computed in %d steps, and in force afterwards: %v, %q", n,
			passes(c, "calie", false), closed(c))
	}
	delete(set, first.Key)
	if c.Update(set, first.Key); len(c.policies.waiting) > 0 || c.spaces.of["evil"] != nil || len(c.sets.twins.of) > 0 {
		t.Error("something is left of a deleted policy")
	}
}

// Sets with the same members are in the table once, whatever comes and goes, and each rule names one with the right
// members.
func TestSetsOfEqualContentExistOnce(t *testing.T) {
	set := cluster(100)
	many := allowFrom("evil", "many", without(300)...)
	set[many.Key] = many
	c := Build(Config{Node: testNode}, set, nil)
	memberSets := func() (n int) {
		for _, name := range c.Table().Sets() {
			if s, _, _ := c.Table().Set(name); s.Origin == MemberSet {
				n++
			}
		}
		return n
	}
	if n := memberSets(); n != 1 {
		t.Errorf("300 selectors of all pods make %d sets", n)
	}
	c.Table().TakeChanges()
	put := func(o *model.Object) {
		set[o.Key] = o
		c.Update(set, o.Key)
	}
	put(podOn("other", "plain", "there", "10.8.0.1", nil))
	if ch := c.Table().TakeChanges(); len(ch.Sets) != 1 || len(ch.Sets[0].Add) != 1 || len(ch.Chains) != 0 {
		t.Errorf("a pod costs changes of %d sets and %d chains", len(ch.Sets), len(ch.Chains))
	}
	put(podOn("other", "own", "there", "10.8.0.2", map[string]string{"a7": ""}))
	if n := memberSets(); n != 2 {
		t.Errorf("one selector of 300 has other members: %d sets", n)
	}
}

func TestSetsThatAreSharedHaveTheirMembers(t *testing.T) {
	for seed := range uint64(25) {
		r := rand.New(rand.NewPCG(seed, 9))
		set := cluster(5)
		c := New(Config{Node: testNode, Budget: Budget{Elements: 40 + int(seed)}})
		c.sets.twins.least = 1
		c.Update(set)
		random := func() (e v3.EntityRule) {
			switch r.IntN(6) {
			case 0:
				e.NotSelector = fmt.Sprintf("has(l%d)", r.IntN(4))
			case 1:
				e.Ports = []numorstring.Port{numorstring.NamedPort("web")}
			default:
				e.NamespaceSelector = []string{"all()", ""}[r.IntN(2)]
				e.Selector = fmt.Sprintf([]string{"!has(l%d)", "has(l%d)", "l%d != 'x'"}[r.IntN(3)], r.IntN(4))
			}
			return e
		}
		for range 60 {
			var o *model.Object
			switch r.IntN(4) {
			case 0:
				o = allowFrom([]string{"evil", "good"}[r.IntN(2)], fmt.Sprint("n", r.IntN(3)))
				p := o.Value.(*v3.NetworkPolicy)
				for range r.IntN(6) {
					tcp := numorstring.ProtocolFromString("TCP")
					p.Spec.Ingress = append(p.Spec.Ingress, v3.Rule{Action: v3.Allow, Protocol: &tcp,
						Destination: random()})
				}
			case 1:
				n := &v3.NetworkSet{ObjectMeta: metav1.ObjectMeta{Namespace: "good", Name: fmt.Sprint("n", r.IntN(3)),
					Labels: map[string]string{fmt.Sprint("l", r.IntN(4)): "y"}}}
				n.Spec.Nets = []string{fmt.Sprintf("10.4.%d.0/%d", r.IntN(3), 24+8*r.IntN(2))}
				o = model.NewObject(model.Key{Kind: model.KindNetworkSet, Namespace: "good", Name: n.Name}, n)
			default:
				labels := map[string]string{}
				for range r.IntN(3) {
					labels[fmt.Sprint("l", r.IntN(4))] = []string{"x", "y"}[r.IntN(2)]
				}
				if i := r.IntN(8); i == 0 { // all policies of evil come and go
					o = podOn("evil", "e", testNode, "10.9.0.1", nil)
					break
				}
				i := r.IntN(8)
				namespace := []string{"evil", "good", "ns"}[r.IntN(3)]
				o = podOn(namespace, fmt.Sprint("r", i), "there", fmt.Sprint("10.3.0.", i), labels)
			}
			if r.IntN(4) == 0 {
				delete(set, o.Key)
			} else {
				set[o.Key] = o
			}
			if c.Update(set, o.Key); r.IntN(3) == 0 {
				c.Reconsider()
			}
			if r.IntN(2) == 0 {
				c.sets.allowance = 0
				c.finish()
			}
			checkSets(t, c)
		}
	}
}

// checkSets compares the table with what each set ought to have, and the sums with what they add up.
func checkSets(t *testing.T, c *Calculator) {
	t.Helper()
	for key, s := range c.sets.of {
		for i, h := range s.inTable().half {
			want := map[ruleset.Element]bool{}
			for it := range c.sets.peers.Matches(key) {
				for _, e := range it.contribute(nil, key) {
					want[e] = want[e] || index(e.Prefix) == i
				}
			}
			maps.DeleteFunc(want, func(e ruleset.Element, own bool) bool {
				for wider := range want {
					own = own && !(wider.Prefix.Bits() < e.Prefix.Bits() && wider.Prefix.Contains(e.Prefix.Addr()))
				}
				return !own
			})
			have := 0
			for e := range c.Table().Elements(h.name) {
				if have++; !want[e] {
					t.Fatalf("set of %s has %v", key, e)
				}
			}
			if have != len(want) {
				t.Fatalf("set of %s has %d elements, want %d", key, have, len(want))
			}
		}
		if len(s.users)+len(s.followers) == 0 {
			t.Fatalf("the set of %s is not used", key)
		}
		for sp := range s.spaces {
			if c.spaces.of[sp.name] != sp {
				t.Fatalf("the set of %s is used by namespace %s, which has no policies", key, sp.name)
			}
		}
	}
	for _, name := range c.Table().Chains() {
		for _, r := range c.Table().Chain(name).Rules {
			for _, m := range r.Matches {
				if _, _, ok := c.Table().Set(m.Set); m.Set != "" && !ok {
					t.Fatalf("chain %s names the set %s, which is not in the table", name, m.Set)
				}
			}
		}
	}
	for _, sp := range c.spaces.of {
		sum := 0
		for _, s := range c.sets.of {
			if s.spaces[sp] != nil {
				sum += s.weight(sp.name)
			}
		}
		if sp.elements != sum {
			t.Fatalf("namespace %s has %d elements, counted %d", sp.name, sum, sp.elements)
		}
		for p := range sp.policies {
			needs := map[setKey]bool{}
			for _, n := range p.cost.needs {
				needs[n.key] = true
			}
			for key := range p.sets {
				if !needs[key] && !c.policies.waiting[p] {
					t.Fatalf("%s uses the set of %s, which does not count", p.id, key)
				}
			}
		}
	}
}
