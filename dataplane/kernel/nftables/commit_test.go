package nftables

import (
	"errors"
	"fmt"
	"math/rand"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/manxnet/manx/dataplane/kernel/netlink"
	"github.com/manxnet/manx/dataplane/ruleset"
)

// nft can read its own output of a table, which is then the same table: names with slashes, sets of all types with
// their elements, rules with comments.
func TestNftReadsWhatItPrints(t *testing.T) {
	ns, n := rulesNS(t)
	w := ruleset.NewTable()
	fillSets(w)
	long := "in/" + strings.Repeat("x", 252)
	w.SetChain(&ruleset.Chain{Name: long})
	w.AddMap(ruleset.Map{Name: "to-workload"})
	w.SetVerdict("to-workload", "cali0123456789a", ruleset.Verdict{Action: ruleset.Goto, Chain: long})
	w.SetVerdict("to-workload", "cali1", ruleset.Verdict{Action: ruleset.Jump, Chain: long})
	w.SetChain(&ruleset.Chain{Name: "forward/0", Base: &ruleset.Base{Hook: ruleset.Forward, Type: ruleset.Filter,
		Priority: 1}, Rules: []ruleset.Rule{
		{Matches: []ruleset.Match{ipv4, {Field: ruleset.DestinationEndpoint, Set: "e4/a"},
			{Field: ruleset.Source, Set: "n4/a"}}, Comment: strings.Repeat("ä", 100)},
		{Verdict: ruleset.Verdict{Action: ruleset.Lookup, Map: "to-workload"}, Comment: `a "quoted" one`},
	}})
	commitRules(t, n, w.TakeChanges())
	sameRules(t, n, w)
	text := nft(t, ns, "-s", "list", "table", "inet", "manx")
	for _, part := range []string{
		"10.0.0.1 . tcp . 80", "fd00::1 . udp . 53", "255.255.255.0/24", "ffff::/16", "65000-65535",
		`"cali0123456789a" : goto ` + long, `"cali1" : jump`,
		"10.0.0.1, 10.0.0.2",
	} {
		if !strings.Contains(strings.Join(strings.Fields(text), " "), part) {
			t.Errorf("nft does not print %s:\n%s", part, text)
		}
	}
	other, o := rulesNS(t)
	cmd := exec.Command("ip", "netns", "exec", other, "nft", "-f", "-")
	cmd.Stdin = strings.NewReader(text)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s\n%s", err, out, text)
	}
	sameRules(t, o, w)
	if again := nft(t, other, "-s", "list", "table", "inet", "manx"); again != text {
		t.Errorf("nft made\n%s\nof\n%s", again, text)
	}
}

// fillSets makes a set of each type, with the first and the last possible elements.
func fillSets(w *ruleset.Table) {
	add := func(s ruleset.Set, elements ...ruleset.Element) {
		w.AddSet(s)
		for _, e := range elements {
			w.AddElement(s.Name, e)
		}
	}
	net := func(s string) ruleset.Element { return ruleset.Element{Prefix: prefix(s)} }
	add(ruleset.Set{Name: "h4/a", Type: ruleset.Addresses4}, net("10.0.0.1/32"), net("10.0.0.2/32"))
	add(ruleset.Set{Name: "h6/a", Type: ruleset.Addresses6}, net("fd00::1/128"))
	add(ruleset.Set{Name: "n4/a", Type: ruleset.Addresses4, Interval: true}, net("10.0.0.0/24"), net("10.0.1.0/24"),
		net("10.0.2.1/32"), net("0.0.0.0/8"), net("255.255.255.0/24"))
	add(ruleset.Set{Name: "n4/all", Type: ruleset.Addresses4, Interval: true}, net("0.0.0.0/0"))
	add(ruleset.Set{Name: "n4/last", Type: ruleset.Addresses4, Interval: true}, net("255.255.255.255/32"))
	add(ruleset.Set{Name: "n6/a", Type: ruleset.Addresses6, Interval: true}, net("fd00::/64"), net("fd00:0:0:1::/64"),
		net("ffff::/16"), net("::/128"))
	add(ruleset.Set{Name: "n6/all", Type: ruleset.Addresses6, Interval: true}, net("::/0"))
	add(ruleset.Set{Name: "p/a", Type: ruleset.Ports, Interval: true}, ruleset.Element{Low: 0, High: 0},
		ruleset.Element{Low: 80, High: 80}, ruleset.Element{Low: 81, High: 90},
		ruleset.Element{Low: 65000, High: 65535})
	add(ruleset.Set{Name: "e4/a", Type: ruleset.Endpoints4}, ruleset.Element{Prefix: prefix("10.0.0.1/32"), Protocol: 6,
		Low: 80})
	add(ruleset.Set{Name: "e6/a", Type: ruleset.Endpoints6}, ruleset.Element{Prefix: prefix("fd00::1/128"),
		Protocol: 17, Low: 53})
}

// The kernel follows any steps of a table.
func TestRulesFollowRandomSteps(t *testing.T) {
	_, n := rulesNS(t)
	r := rand.New(rand.NewSource(1))
	w := ruleset.NewTable()
	for step := range 150 {
		for range 1 + r.Intn(10) {
			randomStep(r, w)
		}
		if err := n.CommitRules(w.TakeChanges()); err != nil {
			t.Fatalf("step %d: %v", step, err)
		}
		sameRules(t, n, w)
	}
	if err := n.DeleteRules(); err != nil {
		t.Fatal(err)
	}
	if a, err := n.ReadRules(); a != nil || err != nil {
		t.Fatalf("after deletion there is %v, %v", a, err)
	}
	commitRules(t, n, w.Difference(nil)) // all at once
	sameRules(t, n, w)
}

// randomStep makes a random change. Rules name only sets 0 to 3 and chains leaf0 to leaf3, which stay once they exist.
func randomStep(r *rand.Rand, w *ruleset.Table) {
	i := r.Intn(4)
	set := ruleset.Set{Name: fmt.Sprint("n4/", i), Type: ruleset.Addresses4, Interval: true}
	leaf := fmt.Sprint("leaf", i)
	w.AddSet(set)
	w.AddMap(ruleset.Map{Name: "map"})
	if w.Chain(leaf) == nil {
		w.SetChain(&ruleset.Chain{Name: leaf})
	}
	e := ruleset.Element{Prefix: randomPrefix(r)}
	switch r.Intn(6) {
	case 0, 1:
		if !slices.ContainsFunc(slices.Collect(w.Elements(set.Name)), func(o ruleset.Element) bool {
			return o.Prefix.Overlaps(e.Prefix)
		}) {
			w.AddElement(set.Name, e)
		}
	case 2:
		for old := range w.Elements(set.Name) {
			w.RemoveElement(set.Name, old)
			break
		}
	case 3:
		iface := fmt.Sprint("cali", r.Intn(10))
		v := ruleset.Verdict{}
		if r.Intn(3) > 0 {
			v = ruleset.Verdict{Action: ruleset.Goto, Chain: leaf}
		}
		w.SetVerdict("map", iface, v)
	case 4:
		c := &ruleset.Chain{Name: fmt.Sprint("chain", r.Intn(6))}
		if r.Intn(2) == 0 {
			c.Base = &ruleset.Base{Hook: ruleset.Hook(1 + r.Intn(5)), Type: ruleset.Filter,
				Priority: int32(r.Intn(5) - 2)}
		}
		for range r.Intn(4) {
			c.Rules = append(c.Rules, ruleset.Rule{
				Matches: []ruleset.Match{ipv4, {Field: ruleset.Source, Set: set.Name, Not: r.Intn(2) == 0}},
				Counter: r.Intn(2) == 0, Verdict: ruleset.Verdict{Action: ruleset.Jump, Chain: leaf},
				Comment: fmt.Sprint("rule ", r.Intn(9))})
		}
		w.SetChain(c)
	case 5:
		w.DeleteChain(fmt.Sprint("chain", r.Intn(6)))
	}
}

// randomPrefix prefers those at the ends of the space and next to each other.
func randomPrefix(r *rand.Rand) netip.Prefix {
	bytes := []byte{0, 1, 127, 128, 254, 255}
	var a [4]byte
	for i := range a {
		a[i] = bytes[r.Intn(len(bytes))]
	}
	return netip.PrefixFrom(netip.AddrFrom4(a), r.Intn(33)).Masked()
}

// Sets of many elements have all of them, also those beyond one message.
func TestRulesWithManyElements(t *testing.T) {
	for _, count := range []int{5000, 100_000} {
		for _, interval := range []bool{false, true} {
			t.Run(fmt.Sprintf("%d interval %v", count, interval), func(t *testing.T) {
				_, n := rulesNS(t)
				w := tableOfMany(count, interval)
				commitRules(t, n, w.TakeChanges())
				sameRules(t, n, w)
				for i := 0; i < count; i += 2 {
					w.RemoveElement("s", manyElement(i))
				}
				commitRules(t, n, w.TakeChanges())
				sameRules(t, n, w)
			})
		}
	}
}

func tableOfMany(count int, interval bool) *ruleset.Table {
	w := ruleset.NewTable()
	w.AddSet(ruleset.Set{Name: "s", Type: ruleset.Addresses4, Interval: interval})
	for i := range count {
		w.AddElement("s", manyElement(i))
	}
	return w
}

func manyElement(i int) ruleset.Element {
	return ruleset.Element{Prefix: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}),
		32)}
}

// Reads and commits may be concurrent.
func TestRulesConcurrently(t *testing.T) {
	_, n := rulesNS(t)
	w := tableOfMany(500, false)
	commitRules(t, n, w.TakeChanges())
	done := make(chan error)
	for worker := range 4 {
		go func() {
			e := manyElement(1000 + worker)
			s := ruleset.Set{Name: "s", Type: ruleset.Addresses4}
			for range 50 {
				add := ruleset.Changes{Sets: []ruleset.SetChange{{Set: s, Add: []ruleset.Element{e}}}}
				remove := ruleset.Changes{Sets: []ruleset.SetChange{{Set: s, Remove: []ruleset.Element{e}}}}
				if err := errors.Join(n.CommitRules(add), n.CommitRules(remove)); err != nil {
					done <- err
					return
				}
			}
			done <- nil
		}()
	}
	for running := 4; running > 0; {
		select {
		case err := <-done:
			if err != nil {
				t.Error(err)
			}
			running--
		default:
			if _, err := n.ReadRules(); err != nil && !errors.Is(err, unix.EINTR) && !errors.Is(err, unix.EAGAIN) {
				t.Error(err)
			}
		}
	}
	sameRules(t, n, w)
}

// Thousands of entries of a map, each with a long name of a chain, do not fit into a message either.
func TestRulesWithManyVerdicts(t *testing.T) {
	_, n := rulesNS(t)
	w := ruleset.NewTable()
	w.AddMap(ruleset.Map{Name: "m"})
	chain := "in/" + strings.Repeat("x", 200)
	w.SetChain(&ruleset.Chain{Name: chain})
	for i := range 3000 {
		w.SetVerdict("m", fmt.Sprint("cali", i), ruleset.Verdict{Action: ruleset.Goto, Chain: chain})
	}
	commitRules(t, n, w.TakeChanges())
	sameRules(t, n, w)
}

// A refused transaction changes nothing, and the error names the refused part.
func TestRulesRefused(t *testing.T) {
	_, n := rulesNS(t)
	w := ruleset.NewTable()
	w.SetChain(&ruleset.Chain{Name: "used"})
	w.SetChain(&ruleset.Chain{Name: "other"})
	w.SetChain(&ruleset.Chain{Name: "c", Base: &ruleset.Base{Hook: ruleset.Forward, Type: ruleset.Filter},
		Rules: []ruleset.Rule{verdictRule(ruleset.Verdict{Action: ruleset.Jump, Chain: "used"})}})
	w.AddSet(ruleset.Set{Name: "n4/a", Type: ruleset.Addresses4, Interval: true})
	w.AddElement("n4/a", ruleset.Element{Prefix: prefix("10.0.0.0/8")})
	w.AddMap(ruleset.Map{Name: "m"})
	w.SetVerdict("m", "cali1", ruleset.Verdict{Action: ruleset.Goto, Chain: "used"})
	commitRules(t, n, w.TakeChanges())
	interval := ruleset.Set{Name: "n4/a", Type: ruleset.Addresses4, Interval: true}
	chain := func(rules ...ruleset.Rule) ruleset.Changes {
		return ruleset.Changes{Chains: []ruleset.ChainChange{
			{Name: "new", New: &ruleset.Chain{Name: "new", Rules: rules}}}}
	}
	for _, c := range []struct {
		name    string
		changes ruleset.Changes
		errno   error // nil: never sent
		text    string
	}{
		{"a rule that names no set", chain(ruleset.Rule{},
			matching(ipv4, ruleset.Match{Field: ruleset.Source, Set: "h4/x"})), unix.ENOENT, "add rule 2 of chain new"},
		{"a rule that jumps nowhere", chain(verdictRule(ruleset.Verdict{Action: ruleset.Jump, Chain: "nowhere"})),
			unix.ENOENT, "add rule 1 of chain new"},
		{"a chain that others jump to", ruleset.Changes{
			Chains: []ruleset.ChainChange{{Name: "used", Old: &ruleset.Chain{Name: "used"}}}}, unix.EBUSY,
			"delete chain used"},
		{"a loop", ruleset.Changes{Chains: []ruleset.ChainChange{
			{Name: "used", Old: &ruleset.Chain{Name: "used"},
				New: &ruleset.Chain{Name: "used",
					Rules: []ruleset.Rule{verdictRule(ruleset.Verdict{Action: ruleset.Jump, Chain: "used"})}}}}},
			unix.EMLINK,
			""},
		{"an element that overlaps", ruleset.Changes{
			Sets: []ruleset.SetChange{{Set: interval, Add: []ruleset.Element{{Prefix: prefix("10.1.0.0/16")}}}}},
			unix.EEXIST, "add elements to set n4/a"},
		{"an element that is not there", ruleset.Changes{
			Sets: []ruleset.SetChange{{Set: interval, Remove: []ruleset.Element{{Prefix: prefix("11.0.0.0/8")}}}}},
			unix.ENOENT, "remove elements from set n4/a"},
		{"an entry that is there", ruleset.Changes{
			Maps: []ruleset.MapChange{
				{Map: ruleset.Map{Name: "m"}, Add: map[string]ruleset.Verdict{
					"cali1": {Action: ruleset.Goto, Chain: "other"}}}}}, unix.EEXIST, "add elements to map m"},
		{"an entry that leads nowhere", ruleset.Changes{
			Maps: []ruleset.MapChange{
				{Map: ruleset.Map{Name: "m"}, Add: map[string]ruleset.Verdict{
					"cali2": {Action: ruleset.Goto, Chain: "nowhere"}}}}}, unix.ENOENT, "add elements to map m"},
		{"a name that is too long", ruleset.Changes{
			Chains: []ruleset.ChainChange{{Name: "x", New: &ruleset.Chain{Name: strings.Repeat("x", 256)}}}},
			unix.ERANGE, "add chain xxx"},
		{"an element of the other family", ruleset.Changes{
			Sets: []ruleset.SetChange{{Set: interval, Add: []ruleset.Element{{Prefix: prefix("fd00::/8")}}}}}, nil,
			"not of the set's family"},
		{"ports without a protocol", chain(matching(ruleset.Match{Field: ruleset.SourcePort, Low: 1})), nil,
			"rule 1 of chain new: it matches ports without a protocol"},
		{"a VNI without a protocol", chain(matching(ruleset.Match{Field: ruleset.VNI, Low: 1})), nil,
			"rule 1 of chain new: it matches a VNI without a protocol"},
		{"a VNI of 25 bits", chain(matching(udp, ruleset.Match{Field: ruleset.VNI, Low: 1 << 24})), nil,
			"more than 24 bits"},
		{"a set without a family", chain(matching(ruleset.Match{Field: ruleset.Source, Set: "n4/a"})), nil,
			"without a family"},
		{"a limited log with a verdict",
			chain(ruleset.Rule{Log: ruleset.Log{Group: 1, Rate: 1}, Verdict: ruleset.Verdict{Action: ruleset.Drop}}),
			nil, "a rule of its own"},
		{"both families", chain(matching(ipv4, ruleset.Match{Field: ruleset.Source, Prefix: prefix("fd00::/8")})), nil,
			"both IPv4 and IPv6"},
	} {
		t.Run(c.name, func(t *testing.T) {
			err, check := n.CommitRules(c.changes), n.CheckRules(c.changes)
			if check == nil || c.errno != nil && !errors.Is(check, c.errno) ||
				!strings.Contains(check.Error(), c.text) {
				t.Errorf("the check got %v, want %v: %s", check, c.errno, c.text)
			}
			if err == nil || c.errno != nil && !errors.Is(err, c.errno) || !strings.Contains(err.Error(), c.text) {
				t.Errorf("got %v, want %v: %s", err, c.errno, c.text)
			}
			if errors.Is(err, ErrUncertain) || errors.Is(err, ErrMissing) {
				t.Errorf("%v is neither uncertain nor for lack of nftables", err)
			}
			sameRules(t, n, w)
		})
	}
	w.SetChain(&ruleset.Chain{Name: "after"})
	commitRules(t, n, w.TakeChanges())
	sameRules(t, n, w)
}

// A check gets a response and changes nothing: it does not create the table.
func TestRulesChecked(t *testing.T) {
	ns, n := rulesNS(t)
	w := textTable()
	all := w.TakeChanges()
	check := func(c ruleset.Changes) {
		t.Helper()
		before := nft(t, ns, "-a", "list", "ruleset")
		if err := n.CheckRules(c); err != nil {
			t.Error(err)
		}
		if now := nft(t, ns, "-a", "list", "ruleset"); now != before {
			t.Errorf("it was\n%s\nand is\n%s", before, now)
		}
	}
	check(all)
	commitRules(t, n, all)
	w.SetChain(&ruleset.Chain{Name: "text"})
	check(w.TakeChanges())
}

// Without the privilege, the error names it.
func TestRulesNeedCapNetAdmin(t *testing.T) {
	if os.Getenv("MANX_RULES_UNPRIVILEGED") != "" {
		n, err := New()
		if err != nil {
			t.Fatal(err)
		}
		_, readErr := n.ReadRules()
		for _, err := range []error{n.CommitRules(ruleset.Changes{}), n.DeleteRules(), readErr} {
			if !errors.Is(err, unix.EPERM) || errors.Is(err, ErrMissing) ||
				!strings.Contains(err.Error(), "CAP_NET_ADMIN") {
				t.Errorf("without privileges: %v", err)
			}
		}
		return
	}
	if os.Getuid() != 0 {
		t.Skip("changing the user needs root")
	}
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	copied, err := os.CreateTemp("/tmp", "manx-kernel-test-*")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Remove(copied.Name()) })
	_, err = copied.Write(self)
	if err := errors.Join(err, copied.Chmod(0o755), copied.Close()); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(copied.Name(), "-test.run=^TestRulesNeedCapNetAdmin$")
	cmd.Dir = "/"
	cmd.Env = []string{"MANX_RULES_UNPRIVILEGED=1"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

// Without a response, the outcome is unknown. After an error, nothing was done.
func TestOutcomeOfTransactions(t *testing.T) {
	b := &batch{}
	if err := b.outcome(nil, false); !errors.Is(err, ErrUncertain) {
		t.Errorf("no answer: %v", err)
	}
	if err := b.outcome([]error{unix.ENOENT}, false); !errors.Is(err, unix.ENOENT) || errors.Is(err, ErrUncertain) {
		t.Errorf("refused: %v", err)
	}
	if err := b.outcome(nil, true); err != nil {
		t.Errorf("done: %v", err)
	}
	many := []error{unix.ENOENT, unix.ENOENT, unix.ENOENT, unix.ENOENT, unix.ENOENT}
	if err := b.outcome(many, false); !strings.Contains(err.Error(), "and 2 more") {
		t.Errorf("five refused: %v", err)
	}
}

// The responses of a kernel without nf_tables, or without a part of it.
func TestNoNFTables(t *testing.T) {
	b := &batch{}
	b.begin()
	b.table(unix.NFT_MSG_NEWTABLE)
	if err := b.addRule("c", 1, matching(ruleset.Match{Field: ruleset.NoReturnRoute})); err != nil {
		t.Fatal(err)
	}
	op := b.ops[1]
	fib := strings.Index(string(b.Buf), "fib\x00") - op.at - 8 // the list element that holds the name
	answer := func(offset int) netlink.Message {
		m := netlink.Message{Kind: unix.NLMSG_ERROR, Flags: unix.NLM_F_ACK_TLVS | unix.NLM_F_CAPPED}
		var x netlink.Builder
		x.Buf = make([]byte, 4+unix.SizeofNlMsghdr)
		x.Attr32(unix.NLMSGERR_ATTR_OFFS, uint32(offset))
		m.Data = x.Buf
		return m
	}
	for _, c := range []struct {
		name    string
		message uint32
		offset  int
		errno   error
		lacks   string // empty: others can do without
	}{
		{"no nf_tables", 0, 0, unix.EOPNOTSUPP, "no such transactions"},
		{"no inet family", 1, 0, unix.EAFNOSUPPORT, "it lacks the inet family"},
		{"no fib", 2, fib, unix.ENOENT, ""},
		{"no set of that name", 2, 0, unix.ENOENT, ""},
	} {
		err := b.refusal(c.message, answer(c.offset), c.errno)
		if want := "add rule 1 of chain c: the kernel's nf_tables lacks the expression fib"; c.offset == fib &&
			!strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
		if errors.Is(err, ErrMissing) != (c.lacks != "") || !strings.Contains(err.Error(), c.lacks) ||
			!errors.Is(err, c.errno) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

// A closed connection returns an error about that.
func TestRulesClosed(t *testing.T) {
	_, n := rulesNS(t)
	if err := errors.Join(n.Close(), n.Close()); err != nil {
		t.Fatal(err)
	}
	if err := n.CommitRules(ruleset.Changes{}); !errors.Is(err, os.ErrClosed) {
		t.Error(err)
	}
	if err := n.WatchRules(t.Context(), func() {}); !errors.Is(err, os.ErrClosed) {
		t.Error(err)
	}
}

// Comments keep both ends and the ID.
func TestRuleComments(t *testing.T) {
	r := ruleset.Rule{Comment: "NetworkPolicy/" + strings.Repeat("namespace", 20) + "/web ingress 12"}
	data := ruleUserdata(r)
	comment := text(data[2:])
	if len(comment) > maxComment || !strings.HasPrefix(comment, "NetworkPolicy/") ||
		!strings.HasSuffix(comment, "/web ingress 12 #"+r.ID()) {
		t.Errorf("the comment is %q (%d bytes)", comment, len(comment))
	}
	if id := ruleID(data); id != r.ID() {
		t.Errorf("its ID is read as %q", id)
	}
	for _, foreign := range [][]byte{nil, {0}, {0, 200, 'x'}, {1, 1, 0}, {0, 2, 'x', 0}} {
		if id := ruleID(foreign); id != "" {
			t.Errorf("%v has the ID %q", foreign, id)
		}
	}
}
