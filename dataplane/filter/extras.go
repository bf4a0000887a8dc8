package filter

import (
	"errors"
	"fmt"

	"github.com/manxnet/manx/dataplane/kernel/nftables"
	"github.com/manxnet/manx/dataplane/policy"
	"github.com/manxnet/manx/dataplane/ruleset"
)

// withoutExtras removes from the rules the logs and counters that this kernel does not support, and returns why. A
// policy whose rules the kernel refuses is replaced by dropping all; a rule that only logs or counts must not cause
// that.
func (c *Config) withoutExtras() (missing []string) {
	for _, x := range []struct {
		rule ruleset.Rule
		off  func()
		what string
	}{
		{ruleset.Rule{Log: ruleset.Log{Kernel: "check"}}, func() { c.Policy.NoKernelLog = true },
			"rules with the action Log write nothing to the kernel's log"},
		{ruleset.Rule{Log: ruleset.Log{Group: c.Policy.FlowLog}}, func() { c.Policy.FlowLog = 0 },
			"the flow log records nothing"},
		{ruleset.Rule{CountedBy: policy.DroppedByPolicy.Counter()}, func() { c.Policy.NoNamedCounters = true },
			"manx_dropped_packets_total counts nothing"},
	} {
		if !x.rule.Log.Enabled() && x.rule.CountedBy == "" {
			continue
		}
		if err := refused(c.Rules, x.rule); err != nil {
			x.off()
			text := fmt.Sprintf("%s until manxd is started with a kernel that can: %v", x.what, err)
			missing = append(missing, text)
			c.Logger.Warn(text)
		}
	}
	return missing
}

// checks is how often a rule is checked while the kernel's answer is lost.
const checks = 3

// refused returns why the kernel refuses a rule that logs or counts; nil if it takes it, or refuses one that does
// neither as well. It may be refused if all answers are lost: without logs and counters there is still a filter.
func refused(k nftables.Rules, r ruleset.Rule) error {
	check := func(r ruleset.Rule) error {
		chain := &ruleset.Chain{Name: "check", Rules: []ruleset.Rule{r}}
		return k.CheckRules(ruleset.Changes{Chains: []ruleset.ChainChange{{Name: chain.Name, New: chain}}})
	}
	if r.Log.Enabled() {
		r.Log.Rate, r.Log.Burst = 1, 1 // logActionRateLimit may come any time
	}
	err := check(r)
	for n := 1; n < checks && errors.Is(err, nftables.ErrUncertain); n++ {
		err = check(r)
	}
	if err == nil || !errors.Is(err, nftables.ErrUncertain) && check(ruleset.Rule{}) != nil {
		return nil
	}
	return err
}
