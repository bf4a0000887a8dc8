package policy

import (
	"strings"

	"github.com/manxnet/manx/dataplane/ruleset"
	"github.com/manxnet/manx/datastore/model"
)

// loggedMark begins the flow-log prefix of a rule that logs; the prefix of one that drops begins with the kind of a
// policy or with words.
const loggedMark = "log "

// ParseLogPrefix parses the flow-log prefix of a packet: it returns the rule, and whether the rule logs the packet or
// drops it.
func ParseLogPrefix(prefix string) (rule string, logged bool) {
	return strings.CutPrefix(prefix, loggedMark)
}

// dropLog reports to the flow log, if there is one, which rule drops a packet.
func (s *settings) dropLog(comment string) ruleset.Log {
	if s.flowLog == 0 {
		return ruleset.Log{}
	}
	return ruleset.Log{Group: s.flowLog, Prefix: shortened(comment, longestPrefix)}
}

// longestPrefix is the kernel's limit.
const longestPrefix = 127

// shortened leaves out the middle of a text that is too long.
func shortened(text string, longest int) string {
	if len(text) <= longest {
		return text
	}
	half := (longest - 2) / 2
	return text[:half] + ".." + text[len(text)-half:]
}

// log is the effect of a rule with the Log action: it writes to the kernel's log, and to the flow log if there is one,
// within one limit. If there is neither, the rule stays, and only counts.
func (s *settings) log(p *policyState, comment string) ruleset.Log {
	l := ruleset.Log{Rate: s.logRate, Burst: s.logBurst, Per: s.logPer}
	if !s.noKernelLog {
		l.Kernel = s.kernelPrefix(p)
	}
	if s.flowLog != 0 {
		l.Group, l.Prefix = s.flowLog, shortened(loggedMark+comment, longestPrefix)
	}
	if !l.Enabled() {
		return ruleset.Log{}
	}
	return l
}

// kernelPrefix begins a line in the kernel's log: %t, %k, %n and %p stand for tier, kind ("gnp"), name and
// namespace/name.
func (s *settings) kernelPrefix(p *policyState) string {
	full := p.id.Name
	if p.id.Namespace != "" {
		full = p.id.Namespace + "/" + p.id.Name
	}
	return shortened(strings.NewReplacer("%t", p.Tier, "%k", shortKind(p.id.Kind), "%n", p.id.Name, "%p",
		full).Replace(s.logPrefix)+": ", longestPrefix)
}

// shortKind is Calico's short name for a kind of policy.
func shortKind(k model.Kind) string {
	switch k {
	case model.KindNetworkPolicy:
		return "np"
	case model.KindGlobalNetworkPolicy:
		return "gnp"
	case model.KindKubernetesNetworkPolicy:
		return "knp"
	case model.KindClusterNetworkPolicy:
		return "kcnp"
	case model.KindProfile:
		return "pro"
	}
	return string(k) // staged ones log nothing
}
