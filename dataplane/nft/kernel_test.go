package nft

import (
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/manxnet/manx/dataplane/kernel/nftables"
	"github.com/manxnet/manx/dataplane/ruleset"
	"github.com/manxnet/manx/integration/namespace"
)

// host is a network namespace with a target for its table.
type host struct {
	*testing.T
	namespace string
	rules     nftables.Rules
	target    *Target
	table     *ruleset.Table
}

func newHost(t *testing.T) *host {
	t.Helper()
	namespace.Require(t, "nft")
	h := &host{T: t, namespace: namespace.New(t, "manxnft"), table: ruleset.NewTable()}
	rules, err := nftables.Open("/run/netns/" + h.namespace)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = rules.Close() })
	h.rules, h.target = rules, New(rules, time.Now)
	return h
}

func (h *host) nft(args ...string) string {
	h.Helper()
	out, err := exec.Command("ip", append([]string{"netns", "exec", h.namespace, "nft"}, args...)...).CombinedOutput()
	if err != nil {
		h.Fatalf("nft %v: %v: %s", args, err, out)
	}
	return string(out)
}

func (h *host) flush() Result {
	h.Helper()
	r, _ := h.target.Flush(h.table)
	if r.Err != nil {
		h.Fatal(r.Err)
	}
	return r
}

// differing returns the units in which the kernel's table differs.
func (h *host) differing() []unit {
	h.Helper()
	actual, err := h.rules.ReadRules()
	if err != nil {
		h.Fatal(err)
	}
	return units(h.table.Difference(actual))
}

func (h *host) checkKernel() {
	h.Helper()
	if d := h.differing(); len(d) != 0 {
		h.Errorf("the kernel's table differs: %v", d)
	}
	if s := h.target.Status(); !s.InSync {
		h.Errorf("not in sync: %+v", s)
	}
}

func TestKernelGetsBackWhatOthersChanged(t *testing.T) {
	h := newHost(t)
	fill(h.table, 60)
	for i := range 20000 {
		h.table.AddElement("h4/7", address(100000+i))
	}
	if r := h.flush(); r.Transactions != 1 {
		t.Errorf("%+v", r)
	}
	h.checkKernel()
	for _, c := range []struct {
		name, edit string
		repairs    []string
	}{
		{"nothing", "list tables", nil},
		{"ruleset flushed", "flush ruleset", []string{"table inet manx"}},
		{"table deleted", "delete table inet manx", []string{"table inet manx"}},
		{"element deleted", "delete element inet manx h4/1 { 10.0.0.5 }", []string{"set h4/1"}},
		{"element added", "add element inet manx h4/1 { 10.9.9.9 }", []string{"set h4/1"}},
		{"entry deleted", `delete element inet manx to-workload { "cali7" }`, []string{"map to-workload"}},
		{"chain flushed", "flush chain inet manx pi/p9", []string{"chain pi/p9"}},
		{"rule inserted", "insert rule inet manx pi/p9 accept", []string{"chain pi/p9"}},
		{"chain added", "add chain inet manx mine", []string{"chain mine"}},
		{"set added", "add set inet manx mine { type ipv4_addr; }", []string{"set mine"}},
	} {
		h.nft(strings.Fields(c.edit)...)
		h.target.Resync()
		r := h.flush()
		if want := min(1, len(c.repairs)); r.Transactions != want {
			t.Errorf("%s: %d transactions, want %d", c.name, r.Transactions, want)
		}
		h.checkKernel()
		list, _ := h.target.Repairs()
		var got []string
		for _, r := range list {
			got = append(got, r.Key)
		}
		if !slices.Equal(got, c.repairs) {
			t.Errorf("%s: repairs %v, want %v", c.name, list, c.repairs)
		}
	}
}

func TestKernelRefusesAChainAndTakesTheRest(t *testing.T) {
	for _, c := range []struct {
		name    string
		verdict ruleset.Verdict
	}{
		{"loop", ruleset.Verdict{Action: ruleset.Jump, Chain: "in/5"}},
		{"address translation where packets are filtered", ruleset.Verdict{Action: ruleset.Masquerade}},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := newHost(t)
			fill(h.table, 60)
			h.flush()
			h.table.SetChain(&ruleset.Chain{Name: "pi/p5", Rules: []ruleset.Rule{rule("bad", c.verdict)}})
			for i := range 40 {
				name := fmt.Sprintf("pi/p%d", i+10)
				h.table.SetChain(&ruleset.Chain{Name: name, Rules: []ruleset.Rule{rule("other", accept)}})
			}
			h.table.AddElement("h4/6", address(5555))
			if r := h.flush(); r.Refused != 1 {
				t.Errorf("%+v, %+v", r, h.target.Status())
			}
			if d := h.differing(); !slices.Equal(d, []unit{{chain, "pi/p5"}}) {
				t.Errorf("differ: %v", d)
			}
			if out := h.nft("list", "chain", "inet", "manx", "pi/p5"); !strings.Contains(out, "drop") ||
				strings.Count(out, "counter") != 1 {
				t.Errorf("the refused chain is %s", out)
			}
			h.target.Resync()
			if r := h.flush(); r.Refused != 1 || h.target.Status().DriftRepairs != 0 {
				t.Errorf("compared: %+v, %+v", r, h.target.Status())
			}
			h.table.SetChain(&ruleset.Chain{Name: "pi/p5", Rules: []ruleset.Rule{rule("good", accept)}})
			h.flush()
			h.checkKernel()
		})
	}
}

// Objects that an unchanged base chain uses must stay too.
func TestKernelKeepsWhatARefusedBaseChainUses(t *testing.T) {
	h := newHost(t)
	input := func(v ruleset.Verdict) *ruleset.Chain {
		return &ruleset.Chain{Name: "input", Base: &ruleset.Base{Hook: ruleset.Input, Type: ruleset.Filter},
			Rules: []ruleset.Rule{rule("input", v)}}
	}
	fill(h.table, 20)
	h.table.AddSet(ruleset.Set{Name: "h4/old", Type: ruleset.Addresses4})
	h.table.SetChain(&ruleset.Chain{Name: "old", Rules: []ruleset.Rule{
		rule("failsafe", accept, allowFrom("h4/old")...)}})
	h.table.SetChain(input(ruleset.Verdict{Action: ruleset.Jump, Chain: "old"}))
	h.flush()
	before := h.nft("list", "chain", "inet", "manx", "old") + h.nft("list", "chain", "inet", "manx", "input")
	h.table.DeleteChain("old")
	h.table.DeleteSet("h4/old")
	h.table.SetChain(input(ruleset.Verdict{Action: ruleset.Masquerade}))
	h.table.AddElement("h4/6", address(5555))
	h.flush()
	if d, want := h.differing(), []unit{{chain, "input"}, {chain, "old"}, {set, "h4/old"}}; !slices.Equal(d, want) {
		t.Errorf("differ: %v, want %v", d, want)
	}
	if after := h.nft("list", "chain", "inet", "manx", "old") + h.nft("list", "chain", "inet", "manx",
		"input"); after != before {
		t.Errorf("was %s, is %s", before, after)
	}
	h.table.SetChain(input(accept))
	h.flush()
	for range 50 { // deferred units are due after a while
		if _, wait := h.target.Flush(h.table); h.target.Status().InSync {
			break
		} else {
			time.Sleep(min(wait, time.Second)) // as long as the target waits
		}
	}
	h.checkKernel()
}
