package nft

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/manxnet/manx/dataplane/kernel/kerneltest"
	"github.com/manxnet/manx/dataplane/kernel/nftables"
	"github.com/manxnet/manx/dataplane/ruleset"
)

// bench is a target with a kernel in memory and a manual clock.
type bench struct {
	*testing.T
	fake   *kerneltest.Rules
	target *Target
	table  *ruleset.Table
	time   time.Time
}

func newBench(t *testing.T) *bench {
	b := &bench{T: t, fake: kerneltest.NewRules(), table: ruleset.NewTable(), time: time.Unix(1000, 0)}
	b.target = New(b.fake, func() time.Time { return b.time })
	b.target.Refused = "dropped-refused"
	return b
}

// flush returns the result of Flush, and checks that it requires another call.
func (b *bench) flush() Result {
	b.Helper()
	r, wait := b.target.Flush(b.table)
	if wait <= 0 {
		b.Fatalf("Flush wants to be called after %v", wait)
	}
	return r
}

// later flushes after the time that the target returned.
func (b *bench) later() Result {
	b.Helper()
	_, wait := b.target.Flush(b.table)
	b.time = b.time.Add(wait)
	return b.flush()
}

// checkKernel checks that the kernel has the table as desired.
func (b *bench) checkKernel() {
	b.Helper()
	actual, err := b.fake.ReadRules()
	if err != nil {
		b.Fatal(err)
	}
	if d := b.table.Difference(actual); !d.Empty() {
		b.Errorf("the kernel's table differs: %+v", d)
	}
	if s := b.target.Status(); !s.InSync || s.LastError != "" || len(s.Refused) != 0 {
		b.Errorf("not in sync: %+v", s)
	}
}

func (b *bench) edit(change func(*ruleset.Actual)) {
	b.fake.Edit(func(a *ruleset.Actual) *ruleset.Actual { change(a); return a })
}

// kernelHas returns the IDs of a chain's rules.
func (b *bench) kernelHas(name string) []string {
	b.Helper()
	actual, err := b.fake.ReadRules()
	if err != nil {
		b.Fatal(err)
	}
	c, ok := actual.Chains[name]
	if !ok {
		b.Fatalf("no chain %s", name)
	}
	return c.Rules
}

func (b *bench) isClosed(name string) bool {
	b.Helper()
	return slices.Equal(b.kernelHas(name), []string{closed(name, nil, b.target.Refused).Rules[0].ID()})
}

func rule(comment string, v ruleset.Verdict, m ...ruleset.Match) ruleset.Rule {
	return ruleset.Rule{Counter: true, Comment: comment, Verdict: v, Matches: m}
}

func allowFrom(set string) []ruleset.Match {
	return []ruleset.Match{{Field: ruleset.Family, Low: 4}, {Field: ruleset.Source, Set: set}}
}

var accept = ruleset.Verdict{Action: ruleset.Accept}

func address(i int) ruleset.Element {
	return ruleset.Element{Prefix: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}),
		32)}
}

// fill makes n policies, each with a set, and an endpoint for each.
func fill(t *ruleset.Table, n int) {
	t.AddMap(ruleset.Map{Name: "to-workload"})
	t.SetChain(&ruleset.Chain{Name: "forward", Base: &ruleset.Base{Hook: ruleset.Forward, Type: ruleset.Filter,
		Priority: 1},
		Rules: []ruleset.Rule{rule("dispatch", ruleset.Verdict{Action: ruleset.Lookup, Map: "to-workload",
			Out: true})}})
	for i := range n {
		set, policy, list := fmt.Sprintf("h4/%d", i), fmt.Sprintf("pi/p%d", i), fmt.Sprintf("in/%d", i)
		t.AddSet(ruleset.Set{Name: set, Type: ruleset.Addresses4})
		for k := range 5 {
			t.AddElement(set, address(i*5+k))
		}
		t.SetChain(&ruleset.Chain{Name: policy, Rules: []ruleset.Rule{
			rule(policy+" ingress 1", accept, allowFrom(set)...)}})
		t.SetChain(&ruleset.Chain{Name: list, Rules: []ruleset.Rule{
			rule("policy", ruleset.Verdict{Action: ruleset.Jump, Chain: policy}),
			rule("end", ruleset.Verdict{Action: ruleset.Drop})}})
		t.SetVerdict("to-workload", fmt.Sprintf("cali%d", i), ruleset.Verdict{Action: ruleset.Goto, Chain: list})
	}
}

// refuseContent refuses real content of the objects, as long as they are in the map.
func (b *bench) refuseContent(objects map[string]error) {
	b.fake.Refuse(func(c ruleset.Changes) error {
		for _, ch := range c.Chains {
			if err := objects[ch.Name]; err != nil && ch.New != nil && ch.New.Rules[0].Comment != refusedComment {
				return err
			}
		}
		for _, s := range c.Sets {
			if err := objects[s.Name]; err != nil {
				return err
			}
		}
		for _, m := range c.Maps {
			if err := objects[m.Name]; err != nil && len(m.Add) > 0 {
				return err
			}
		}
		return nil
	})
}

func (b *bench) refusedObjects() string {
	var names []string
	for _, r := range b.target.Status().Refused {
		names = append(names, r.Object)
	}
	return strings.Join(names, ", ")
}

func TestOneTransactionPerFlushAndNoneWithoutChange(t *testing.T) {
	b := newBench(t)
	fill(b.table, 20)
	var commits int
	b.target.OnCommit = func(time.Duration, ruleset.Changes) { commits++ }
	for i, want := range []int{1, 0, 1} {
		if i == 2 {
			b.table.AddElement("h4/3", address(9999))
			b.table.DeleteSet("h4/none")
			b.table.SetChain(&ruleset.Chain{Name: "pi/p3", Rules: []ruleset.Rule{rule("x", accept)}})
		}
		if r := b.flush(); r.Transactions != want || r.Err != nil {
			t.Errorf("flush %d: %+v, want %d transactions", i+1, r, want)
		}
		b.checkKernel()
	}
	if s := b.target.Status(); commits != 2 || s.Transactions != 2 || s.Chains != 41 || s.Rules != 61 || s.Sets != 20 ||
		s.Elements != 101 || s.Entries != 20 {
		t.Errorf("%d commits; %+v", commits, s)
	}
	if b.fake.Reads() != 1+3 { // three by same
		t.Errorf("%d reads", b.fake.Reads()-3)
	}
}

func TestResyncOfAnUnchangedTableWritesNothing(t *testing.T) {
	b := newBench(t)
	fill(b.table, 5)
	b.flush()
	b.target.Resync()
	commits := b.fake.Commits()
	if r := b.flush(); !r.Compared || r.Transactions != 0 || b.fake.Commits() != commits {
		t.Errorf("%+v, %d commits", r, b.fake.Commits()-commits)
	}
	if list, _ := b.target.Repairs(); len(list) != 0 {
		t.Errorf("repairs: %v", list)
	}
}

func TestTheTableIsComparedFromTimeToTime(t *testing.T) {
	b := newBench(t)
	fill(b.table, 2)
	b.flush()
	b.edit(func(a *ruleset.Actual) { delete(a.Maps["to-workload"], "cali1") })
	if r := b.flush(); r.Compared {
		t.Errorf("compared at once: %+v", r)
	}
	if r := b.later(); !r.Compared || b.target.Status().DriftRepairs != 1 {
		t.Errorf("%+v, %+v", r, b.target.Status())
	}
	b.checkKernel()
}

func TestWhatOthersChangedIsBroughtBack(t *testing.T) {
	cases := map[string]struct {
		change  func(*ruleset.Actual)
		repairs []string
	}{
		"rule edited": {func(a *ruleset.Actual) { a.Chains["pi/p1"].Rules[0] = "" }, []string{"chain pi/p1"}},
		"chain added": {func(a *ruleset.Actual) { a.Chains["mine"] = ruleset.ActualChain{} }, []string{"chain mine"}},
		"set emptied": {func(a *ruleset.Actual) {
			s := a.Sets["h4/1"]
			s.Elements = nil
			a.Sets["h4/1"] = s
		}, []string{"set h4/1"}},
		"entry gone": {func(a *ruleset.Actual) { delete(a.Maps["to-workload"], "cali2") }, []string{"map to-workload"}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			fill(b.table, 3)
			b.flush()
			b.edit(c.change)
			b.target.Resync()
			b.table.AddElement("h4/0", address(77777)) // our own change is no repair
			if r := b.flush(); r.Transactions != 1 {
				t.Errorf("%+v", r)
			}
			b.checkKernel()
			list, more := b.target.Repairs()
			var got []string
			for _, r := range list {
				got = append(got, r.Key)
			}
			if !slices.Equal(got, c.repairs) || more != 0 {
				t.Errorf("repairs %v and %d more, want %v", list, more, c.repairs)
			}
		})
	}
}

func TestATableThatOthersDeletedIsOneRepair(t *testing.T) {
	b := newBench(t)
	fill(b.table, 30)
	b.flush()
	b.fake.Edit(func(*ruleset.Actual) *ruleset.Actual { return nil })
	b.target.Resync()
	b.flush()
	b.checkKernel()
	if list, more := b.target.Repairs(); len(list) != 1 || more != 0 || list[0].Key != "table inet manx" {
		t.Errorf("repairs: %v, %d more", list, more)
	}
	if !b.target.TakeLost() || b.target.TakeLost() {
		t.Error("it is not reported once that rules were away")
	}
}

// Packets pass without a base chain, and by one that another program emptied. They do not pass by other changes.
func TestBaseChainsThatOthersRemoved(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*ruleset.Actual, string)
		lost   bool
	}{
		"removed": {func(a *ruleset.Actual, base string) { delete(a.Chains, base) }, true},
		"emptied": {func(a *ruleset.Actual, base string) {
			c := a.Chains[base]
			c.Rules = nil
			a.Chains[base] = c
		}, true},
		"another chain": {func(a *ruleset.Actual, _ string) { a.Chains["mine"] = ruleset.ActualChain{} }, false},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			fill(b.table, 3)
			base := ""
			for _, ch := range b.table.Chains() {
				if b.table.Chain(ch).Base != nil && len(b.table.Chain(ch).Rules) > 0 {
					base = ch
				}
			}
			b.flush()
			if b.target.TakeLost() {
				t.Error("lost at the start")
			}
			b.edit(func(a *ruleset.Actual) { c.change(a, base) })
			b.target.Resync()
			b.flush()
			if lost := b.target.TakeLost(); lost != c.lost || base == "" {
				t.Errorf("base chain %q: rules were away: %v, want %v", base, lost, c.lost)
			}
		})
	}
}

func TestAChangeThatFailsBecauseOthersChangedTheTableRepairsIt(t *testing.T) {
	b := newBench(t)
	fill(b.table, 3)
	b.flush()
	b.fake.Edit(func(*ruleset.Actual) *ruleset.Actual { return nil })
	b.table.RemoveElement("h4/1", address(5))
	if r := b.flush(); r.Err != nil || !r.Compared {
		t.Errorf("%+v", r)
	}
	b.checkKernel()
}

func TestARefusedChainDropsAllAndTheRestIsMade(t *testing.T) {
	b := newBench(t)
	fill(b.table, 50)
	wrong := map[string]error{"pi/p7": unix.EINVAL, "pi/p33": unix.EOPNOTSUPP}
	b.refuseContent(wrong)
	if r := b.flush(); r.Err != nil || r.Refused != 2 {
		t.Fatalf("%+v", r)
	}
	if got := b.refusedObjects(); got != "chain pi/p33, chain pi/p7" {
		t.Fatalf("refused: %s", got)
	}
	if r := b.target.Status().Refused[1]; r.Comment != "pi/p7 ingress 1" || r.Reason != unix.EINVAL.Error() ||
		!r.Since.Equal(b.time) {
		t.Errorf("%+v", r)
	}
	actual, _ := b.fake.ReadRules()
	for _, ch := range b.table.Difference(actual).Chains {
		if !b.isClosed(ch.Name) || wrong[ch.Name] == nil {
			t.Errorf("chain %s differs", ch.Name)
		}
	}
	// Other units can change meanwhile, by one transaction and without a full read.
	reads := b.fake.Reads()
	b.table.AddElement("h4/1", address(4444))
	if r := b.flush(); r.Transactions != 1 || r.Compared || b.fake.Reads() != reads {
		t.Errorf("a change of others: %+v, %d reads", r, b.fake.Reads()-reads)
	}
	// A comparison does not report the replacement as another program's change.
	b.target.Resync()
	if r := b.flush(); r.Transactions != 0 || !r.Compared {
		t.Errorf("comparison: %+v", r)
	}
	if list, _ := b.target.Repairs(); len(list) != 0 {
		t.Errorf("repairs: %v", list)
	}
	// A unit that the kernel accepts later is created when it is due; a changed unit is tried at once.
	delete(wrong, "pi/p33")
	b.table.SetChain(&ruleset.Chain{Name: "pi/p7", Rules: []ruleset.Rule{rule("wrong again", accept)}})
	if r := b.flush(); r.Err != nil || r.Refused != 2 {
		t.Errorf("still wrong: %+v", r)
	}
	b.later()
	delete(wrong, "pi/p7")
	b.table.SetChain(&ruleset.Chain{Name: "pi/p7", Rules: []ruleset.Rule{rule("right", accept)}})
	b.flush()
	b.later()
	b.checkKernel()
	if list, _ := b.target.Repairs(); len(list) != 0 {
		t.Errorf("repairs: %v", list)
	}
}

func TestARefusedChainIsTriedAgainWithBackOff(t *testing.T) {
	b := newBench(t)
	fill(b.table, 3)
	b.refuseContent(map[string]error{"pi/p1": unix.EINVAL})
	b.flush()
	last := time.Duration(0)
	for range 12 {
		_, wait := b.target.Flush(b.table)
		if wait < last {
			t.Errorf("waits %v after %v", wait, last)
		}
		last = wait
		b.time = b.time.Add(wait)
		if r := b.flush(); r.Err != nil || r.Refused != 1 {
			t.Errorf("%+v", r)
		}
	}
	if last != 30*time.Second {
		t.Errorf("waits %v in the end", last)
	}
	b.refuseContent(nil)
	b.later()
	b.checkKernel()
}

func TestARefusedSetKeepsItsContentAndItsPoliciesDropAll(t *testing.T) {
	b := newBench(t)
	fill(b.table, 10)
	b.flush()
	before, _ := b.fake.ReadRules()
	wrong := map[string]error{"h4/4": unix.EINVAL, "h4/new": unix.EINVAL}
	b.refuseContent(wrong)
	b.table.RemoveElement("h4/4", address(20))
	b.table.AddSet(ruleset.Set{Name: "h4/new", Type: ruleset.Addresses4, Comment: "all()"})
	b.table.SetChain(&ruleset.Chain{Name: "pi/p5", Rules: []ruleset.Rule{rule("new", accept, allowFrom("h4/new")...)}})
	b.table.AddElement("h4/6", address(333))
	if r := b.flush(); r.Err != nil || r.Refused != 2 {
		t.Fatalf("%+v", r)
	}
	if got := b.refusedObjects(); got != "chain pi/p4, chain pi/p5, set h4/4, set h4/new" {
		t.Errorf("refused: %s", got)
	}
	if !b.isClosed("pi/p4") || !b.isClosed("pi/p5") || b.isClosed("pi/p6") {
		t.Error("not the very chains that name refused sets drop all")
	}
	after, _ := b.fake.ReadRules()
	if !slices.Equal(before.Sets["h4/4"].Elements, after.Sets["h4/4"].Elements) ||
		len(after.Sets["h4/6"].Elements) != 6 {
		t.Errorf("sets: %v, %v", after.Sets["h4/4"], after.Sets["h4/6"])
	}
	b.target.Resync()
	if r := b.flush(); r.Transactions != 0 {
		t.Errorf("comparison: %+v", r)
	}
	clear(wrong)
	b.later()
	b.checkKernel()
}

func TestARefusedMapLosesWhatChanges(t *testing.T) {
	b := newBench(t)
	fill(b.table, 4)
	b.flush()
	wrong := map[string]error{"to-workload": unix.EINVAL}
	b.refuseContent(wrong)
	b.table.SetVerdict("to-workload", "cali1", ruleset.Verdict{Action: ruleset.Goto, Chain: "in/2"})
	b.table.AddElement("h4/1", address(99))
	if r := b.flush(); r.Err != nil || b.refusedObjects() != "map to-workload" {
		t.Fatalf("%+v, %s", r, b.refusedObjects())
	}
	actual, _ := b.fake.ReadRules()
	if got := slices.Sorted(maps.Keys(actual.Maps["to-workload"])); !slices.Equal(got,
		[]string{"cali0", "cali2", "cali3"}) {
		t.Errorf("entries: %v", got)
	}
	clear(wrong)
	b.later()
	b.checkKernel()
}

func TestARefusedBaseChainStaysAsItWas(t *testing.T) {
	b := newBench(t)
	input := func(comment string) *ruleset.Chain {
		return &ruleset.Chain{Name: "input", Base: &ruleset.Base{Hook: ruleset.Input, Type: ruleset.Filter},
			Rules: []ruleset.Rule{rule(comment, accept)}}
	}
	fill(b.table, 2)
	b.table.SetChain(input("one"))
	b.flush()
	before := b.kernelHas("input")
	wrong := map[string]error{"input": unix.EINVAL}
	b.refuseContent(wrong)
	b.table.SetChain(input("two"))
	if r := b.flush(); r.Err != nil || b.refusedObjects() != "chain input" ||
		!slices.Equal(b.kernelHas("input"), before) {
		t.Errorf("%+v, %s, %v", r, b.refusedObjects(), b.kernelHas("input"))
	}
	clear(wrong)
	b.later()
	b.checkKernel()
}

func TestANewBaseChainOfForwardThatIsRefusedDropsAll(t *testing.T) {
	b := newBench(t)
	fill(b.table, 2)
	b.refuseContent(map[string]error{"forward": unix.EINVAL})
	if r := b.flush(); r.Err != nil || b.refusedObjects() != "chain forward" || !b.isClosed("forward") {
		t.Errorf("%+v, %s", r, b.refusedObjects())
	}
}

func TestALostAnswerIsFoundOutByReading(t *testing.T) {
	for _, done := range []bool{true, false} {
		b := newBench(t)
		fill(b.table, 3)
		b.flush()
		lose := 1
		if done {
			b.fake.Lose(func(ruleset.Changes) bool { lose--; return lose >= 0 })
		} else {
			b.fake.Refuse(func(ruleset.Changes) error {
				if lose--; lose >= 0 {
					return fmt.Errorf("commit: %w", nftables.ErrUncertain)
				}
				return nil
			})
		}
		b.table.AddElement("h4/1", address(7777))
		commits := b.fake.Commits()
		if r := b.flush(); !errors.Is(r.Err, nftables.ErrUncertain) || b.fake.Commits() != commits+1 ||
			b.target.Status().InSync {
			t.Errorf("done %v: %+v, %d commits", done, r, b.fake.Commits()-commits)
		}
		if r := b.later(); r.Err != nil || !r.Compared {
			t.Errorf("done %v: %+v", done, r)
		}
		b.checkKernel()
		if list, _ := b.target.Repairs(); len(list) != 0 {
			t.Errorf("done %v: repairs %v", done, list)
		}
	}
}

func TestErrorsThatPassAreWaitedFor(t *testing.T) {
	for _, e := range []error{unix.EAGAIN, unix.EBUSY, unix.ENOMEM, unix.EINTR} {
		b := newBench(t)
		fill(b.table, 3)
		left := 2
		b.fake.Refuse(func(ruleset.Changes) error {
			if left--; left >= 0 {
				return e
			}
			return nil
		})
		b.flush()
		b.later()
		if b.fake.Commits() != 2 || b.target.Status().LastError == "" {
			t.Errorf("%v: %d commits, %+v", e, b.fake.Commits(), b.target.Status())
		}
		b.later()
		b.checkKernel()
	}
}

func TestABusyErrorThatLastsIsARefusal(t *testing.T) {
	b := newBench(t)
	fill(b.table, 6)
	wrong := map[string]error{"pi/p2": unix.EBUSY}
	b.refuseContent(wrong)
	for range 4 {
		b.later()
	}
	if got := b.refusedObjects(); got != "chain pi/p2" {
		t.Fatalf("refused: %q, %+v", got, b.target.Status())
	}
	if r := b.later(); r.Err != nil || r.Refused != 1 {
		t.Errorf("tried again: %+v", r)
	}
	clear(wrong)
	b.later()
	b.checkKernel()
}

func TestAKernelWithoutNFTablesIsAskedSlowly(t *testing.T) {
	b := newBench(t)
	fill(b.table, 6)
	b.fake.Refuse(func(ruleset.Changes) error { return fmt.Errorf("commit: %w", nftables.ErrMissing) })
	b.flush()
	b.table.AddElement("h4/1", address(9))
	_, wait := b.target.Flush(b.table)
	if b.fake.Commits() != 1 || wait != slow ||
		!strings.Contains(b.target.Status().LastError, nftables.ErrMissing.Error()) {
		t.Errorf("%d commits, waits %v, %+v", b.fake.Commits(), wait, b.target.Status())
	}
	b.fake.Refuse(nil)
	b.later()
	b.checkKernel()
}

func TestAKernelThatRefusesAllKeepsWhatItHas(t *testing.T) {
	b := newBench(t)
	fill(b.table, 100)
	b.flush()
	b.fake.Refuse(func(ruleset.Changes) error { return unix.EINVAL })
	for i := range 100 {
		b.table.AddElement(fmt.Sprintf("h4/%d", i), address(100000+i))
	}
	commits := b.fake.Commits()
	if r := b.flush(); r.Err == nil || r.Refused != 0 || b.fake.Commits()-commits > 12 {
		t.Errorf("%+v, %d commits", r, b.fake.Commits()-commits)
	}
	b.fake.Refuse(nil)
	b.later()
	b.checkKernel()
}

func TestWithoutReadingNothingIsWritten(t *testing.T) {
	b := newBench(t)
	fill(b.table, 2)
	b.fake.FailRead(func() error { return unix.EIO })
	for range 3 {
		if r := b.later(); !errors.Is(r.Err, unix.EIO) || b.fake.Commits() != 0 {
			t.Errorf("%+v, %d commits", r, b.fake.Commits())
		}
	}
	b.fake.FailRead(nil)
	b.later()
	b.checkKernel()
}

func TestARefusedChainThatGoesIsForgotten(t *testing.T) {
	b := newBench(t)
	fill(b.table, 3)
	b.table.SetChain(&ruleset.Chain{Name: "pi/odd", Rules: []ruleset.Rule{rule("odd", accept)}})
	b.refuseContent(map[string]error{"pi/odd": unix.EINVAL})
	b.flush()
	b.table.DeleteChain("pi/odd")
	b.flush()
	b.checkKernel()
}

// A transaction is not atomic for packets: new interval sets are empty at first, and new entries of verdict maps may
// lead to empty chains. So both come before the rules that name them.
func TestWhatIsNewIsThereBeforeWhatNamesIt(t *testing.T) {
	b := newBench(t)
	b.table.AddMap(ruleset.Map{Name: "to-workload"})
	b.table.SetChain(&ruleset.Chain{Name: "pi/x"})
	b.flush()
	var order []string
	b.fake.Refuse(func(c ruleset.Changes) error {
		order = append(order, fmt.Sprintf("%d sets, %d chains, %d maps", len(c.Sets), len(c.Chains), len(c.Maps)))
		return nil
	})
	check := func(what string, want ...string) {
		t.Helper()
		order = nil
		if r := b.flush(); r.Transactions != len(want) || !slices.Equal(order, want) {
			t.Errorf("%s: %d transactions: %q, want %q", what, r.Transactions, order, want)
		}
		b.checkKernel()
	}
	ten := ruleset.Element{Prefix: netip.MustParsePrefix("10.0.0.0/8")}
	uses := func(set string) []ruleset.Rule {
		return []ruleset.Rule{
			{Matches: []ruleset.Match{{Field: ruleset.Family, Low: 4}, {Field: ruleset.Source, Set: set}},
				Verdict: ruleset.Verdict{Action: ruleset.Accept}}}
	}
	b.table.AddSet(ruleset.Set{Name: "c4/a", Type: ruleset.Addresses4, Interval: true})
	b.table.AddElement("c4/a", ten)
	b.table.SetChain(&ruleset.Chain{Name: "pi/x", Rules: uses("c4/a")})
	check("a new interval set", "1 sets, 0 chains, 0 maps", "0 sets, 1 chains, 0 maps")

	b.table.AddSet(ruleset.Set{Name: "h4/b", Type: ruleset.Addresses4})
	b.table.AddElement("h4/b", ruleset.Element{Prefix: netip.MustParsePrefix("10.0.0.1/32")})
	b.table.SetChain(&ruleset.Chain{Name: "in/y", Rules: uses("h4/b")})
	b.table.SetVerdict("to-workload", "cali1", ruleset.Verdict{Action: ruleset.Goto, Chain: "in/y"})
	check("a new chain in a map", "1 sets, 1 chains, 0 maps", "0 sets, 0 chains, 1 maps")

	b.table.SetVerdict("to-workload", "cali2", ruleset.Verdict{Action: ruleset.Goto, Chain: "in/y"})
	check("a chain that is there", "0 sets, 0 chains, 1 maps")
	b.table.RemoveElement("c4/a", ten)
	check("an element less", "1 sets, 0 chains, 0 maps")
}
