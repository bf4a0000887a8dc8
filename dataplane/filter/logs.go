package filter

import (
	"errors"
	"fmt"

	"github.com/manxnet/manx/dataplane/kernel/nftables"
	"github.com/manxnet/manx/dataplane/ruleset"
)

// withoutLogs removes from the rules the logs that this kernel does not support, and returns why. A policy whose rules
// the kernel refuses is replaced by dropping all; a rule that only logs must not cause that.
func (c *Config) withoutLogs() (missing []string) {
	for _, l := range []struct {
		log  ruleset.Log
		off  func()
		what string
	}{
		{ruleset.Log{Kernel: "check"}, func() { c.Policy.NoKernelLog = true },
			"rules with the action Log write nothing to the kernel's log"},
		{ruleset.Log{Group: c.Policy.FlowLog}, func() { c.Policy.FlowLog = 0 }, "the flow log records nothing"},
	} {
		if !l.log.Enabled() {
			continue
		}
		if err := cannotLog(c.Rules, l.log); err != nil {
			l.off()
			text := fmt.Sprintf("%s until manxd is started with a kernel that can: %v", l.what, err)
			missing = append(missing, text)
			c.Logger.Warn(text)
		}
	}
	return missing
}

// cannotLog returns why the kernel refuses a rule that logs; nil if it takes it, or refuses one that does not log as
// well.
func cannotLog(k nftables.Rules, l ruleset.Log) error {
	check := func(r ruleset.Rule) error {
		chain := &ruleset.Chain{Name: "check", Rules: []ruleset.Rule{r}}
		return k.CheckRules(ruleset.Changes{Chains: []ruleset.ChainChange{{Name: chain.Name, New: chain}}})
	}
	l.Rate, l.Burst = 1, 1 // logActionRateLimit may come any time
	err := check(ruleset.Rule{Log: l})
	if err == nil || errors.Is(err, nftables.ErrUncertain) || check(ruleset.Rule{}) != nil {
		return nil
	}
	return err
}
