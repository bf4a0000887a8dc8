package policy

import (
	"strings"

	"github.com/manxnet/manx/dataplane/ruleset"
	"github.com/manxnet/manx/datastore/model"
)

// loggedMark begins what the flow log is told by a rule that logs; what it is told by one that drops begins with the
// kind of a policy or with words.
const loggedMark = "log "

// ParseLogPrefix reads the prefix by which a rule tells the flow log of a packet: which rule it is, and whether it logs
// the packet or drops it.
func ParseLogPrefix(prefix string) (rule string, logged bool) {
	return strings.CutPrefix(prefix, loggedMark)
}

// dropLog tells the flow log, if there is one, which rule drops a packet.
func (s *settings) dropLog(comment string) ruleset.Log {
	if s.flowLog == 0 {
		return ruleset.Log{}
	}
	return ruleset.Log{Group: s.flowLog, Prefix: shortened(comment, longestPrefix)}
}

// longestPrefix is what the kernel takes.
const longestPrefix = 127

// shortened leaves out the middle of a text that is too long.
func shortened(text string, longest int) string {
	if len(text) <= longest {
		return text
	}
	half := (longest - 2) / 2
	return text[:half] + ".." + text[len(text)-half:]
}

// log is what a rule with the Log action does: it tells the kernel's log, and the flow log if there is one, within one
// limit. Where there is neither, the rule stays, and only counts.
func (s *settings) log(p *policyState, comment string) ruleset.Log {
	l := ruleset.Log{Rate: s.logRate, Burst: s.logBurst, Per: s.logPer}
	if !s.noKernelLog {
		l.Kernel = s.kernelPrefix(p)
	}
	if s.flowLog != 0 {
		l.Group, l.Prefix = s.flowLog, shortened(loggedMark+comment, longestPrefix)
	}
	if !l.Tells() {
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

// shortKind is what Calico calls a kind of policy where room is scarce.
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
