package nft

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/manxnet/manx/dataplane/ruleset"
)

// After any changes, refusals, lost responses and edits by other programs, only refused units differ; at the end none
// does.
func TestOnlyWhatIsRefusedDiffers(t *testing.T) {
	for seed := range uint64(40) {
		r := rand.New(rand.NewPCG(seed, 7))
		b := newBench(t)
		fill(b.table, 12)
		wrong := map[string]error{}
		b.refuseContent(wrong)
		for step := range 40 {
			b.fake.Lose(nil)
			b.change(r, step)
			switch r.IntN(6) {
			case 0:
				wrong[fmt.Sprintf("pi/p%d", r.IntN(12))] = unix.EINVAL
			case 1:
				wrong[fmt.Sprintf("h4/%d", r.IntN(12))] = unix.ERANGE
			case 2:
				clear(wrong)
			case 3:
				b.fake.Lose(func(ruleset.Changes) bool { return r.IntN(3) == 0 })
			case 4:
				b.editForeign(r)
			}
			b.flush()
			b.fake.Lose(nil)
			for range 20 {
				if b.target.Status().LastError == "" {
					break
				}
				b.later()
			}
			b.onlyRefusedDiffers(fmt.Sprintf("seed %d, step %d", seed, step))
			if t.Failed() {
				return
			}
		}
		clear(wrong)
		b.target.Resync()
		for range 10 {
			b.later()
		}
		b.checkKernel()
	}
}

func (b *bench) change(r *rand.Rand, step int) {
	for range r.IntN(5) {
		i := r.IntN(12)
		set, policy := fmt.Sprintf("h4/%d", i), fmt.Sprintf("pi/p%d", i)
		switch r.IntN(4) {
		case 0:
			b.table.AddElement(set, address(r.IntN(1000)))
		case 1:
			b.table.RemoveElement(set, address(r.IntN(60)))
		case 2:
			b.table.SetChain(&ruleset.Chain{Name: policy,
				Rules: []ruleset.Rule{rule(fmt.Sprint(step), accept, allowFrom(set)...)}})
		case 3:
			b.table.SetVerdict("to-workload", fmt.Sprintf("cali%d", i),
				ruleset.Verdict{Action: ruleset.Goto, Chain: fmt.Sprintf("in/%d", r.IntN(12))})
		}
	}
}

// editForeign edits the table like another program.
func (b *bench) editForeign(r *rand.Rand) {
	b.fake.Edit(func(a *ruleset.Actual) *ruleset.Actual {
		if a == nil || r.IntN(4) == 0 {
			return nil
		}
		name := fmt.Sprintf("pi/p%d", r.IntN(12))
		if c, ok := a.Chains[name]; ok {
			c.Rules = append(c.Rules, "")
			a.Chains[name] = c
		}
		delete(a.Maps["to-workload"], fmt.Sprintf("cali%d", r.IntN(12)))
		return a
	})
	b.target.Resync()
}

func (b *bench) onlyRefusedDiffers(when string) {
	b.Helper()
	actual, err := b.fake.ReadRules()
	if err != nil {
		b.Fatal(err)
	}
	refused := map[string]bool{}
	for _, r := range b.target.Status().Refused {
		refused[r.Object] = true
	}
	for _, u := range units(b.table.Difference(actual)) {
		if !refused[u.String()] {
			b.Errorf("%s: %v differs, but refused are only %v", when, u, refused)
		}
	}
	for object := range refused {
		if name, ok := strings.CutPrefix(object, "chain "); ok && !b.isClosed(name) {
			b.Errorf("%s: %s is refused and does not drop all", when, object)
		}
	}
}
