package validation

import (
	"regexp"
	"strings"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"

	"github.com/manxnet/manx/datastore/selector"
)

// The limits of Calico's CRDs.
const (
	maxRules = 1024
	maxNets  = 256
	maxPorts = 50
)

func checkNetworkPolicy(c *check, v *v3.NetworkPolicy)                         { checkPolicy(c, v) }
func checkGlobalNetworkPolicy(c *check, v *v3.GlobalNetworkPolicy)             { checkPolicy(c, v) }
func checkStagedNetworkPolicy(c *check, v *v3.StagedNetworkPolicy)             { checkPolicy(c, v) }
func checkStagedGlobalNetworkPolicy(c *check, v *v3.StagedGlobalNetworkPolicy) { checkPolicy(c, v) }

func checkPolicy(c *check, value any) {
	p, _ := policyOf(value)
	checkPolicyName(c, p)
	if p.staged != nil {
		brokenEnum(c, "spec.stagedAction", *p.staged, stagedActions...)
		if p.deletes() {
			checkNothingBeside(c, p)
			return
		}
	}
	c.tierName("spec.tier", *p.tier)
	c.plainSelector("spec.selector", p.selector)
	c.plainSelector("spec.serviceAccountSelector", p.serviceAccountSelector)
	checkTypes(c, "spec.types", *p.types, v3.PolicyTypeIngress, v3.PolicyTypeEgress)
	seen := map[v3.PolicyPerformanceHint]bool{}
	for i, h := range p.hints {
		enum(c, at("spec.performanceHints", i), h, v3.PerfHintAssumeNeededOnEveryNode)
		c.failIf(seen[h], at("spec.performanceHints", i), h, "must not stand there twice")
		seen[h] = true
	}
	if p.global != nil {
		c.plainSelector("spec.namespaceSelector", p.global.namespaceSelector)
		checkStages(c, p)
	}
	checkRules(c, p, "spec.ingress", p.ingress, true)
	checkRules(c, p, "spec.egress", p.egress, false)
}

var stagedActions = []v3.StagedAction{v3.StagedActionSet, v3.StagedActionDelete, v3.StagedActionLearn,
	v3.StagedActionIgnore}

var (
	policyNameFormat     = regexp.MustCompile(`^` + dnsLabel + `(\.` + dnsLabel + `)?$`)
	controllerNameFormat = regexp.MustCompile(`^(knp|ossg)\.default\.[a-z0-9]([-a-z0-9.]*[a-z0-9])?$`)
)

const dnsLabel = `[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?`

// checkPolicyName adds a rule to those for names of all kinds: a policy's name is a DNS label, optionally after its
// tier, or a name that Calico's controllers give.
func checkPolicyName(c *check, p policy) {
	name := p.meta.Name
	if name == "" || policyNameFormat.MatchString(name) || (p.global == nil && controllerNameFormat.MatchString(name)) {
		return
	}
	c.fail("metadata.name", name, "must be NAME or TIER.NAME, each of at most 63 lower-case letters, digits and '-'")
}

func (c *check) tierName(field, tier string) {
	if tier != "" && (!policyNameFormat.MatchString(tier) || strings.Contains(tier, ".")) {
		c.fail(field, tier, "must be the name of a tier: at most 63 lower-case letters, digits and '-'")
	}
}

// checkNothingBeside refuses other content in a staged policy for a removal.
func checkNothingBeside(c *check, p policy) {
	c.tierName("spec.tier", *p.tier)
	g := globalPolicy{}
	if p.global != nil {
		g = *p.global
	}
	var beside []string
	for _, x := range []struct {
		set   bool
		field string
	}{
		{p.order != nil, "order"}, {len(p.ingress) > 0, "ingress"}, {len(p.egress) > 0, "egress"},
		{p.selector != "", "selector"},
		{len(*p.types) > 0, "types"}, {p.serviceAccountSelector != "", "serviceAccountSelector"},
		{len(p.hints) > 0, "performanceHints"},
		{g.namespaceSelector != "", "namespaceSelector"}, {g.doNotTrack, "doNotTrack"}, {g.preDNAT, "preDNAT"},
		{g.applyOnForward, "applyOnForward"},
	} {
		if x.set {
			beside = append(beside, x.field)
		}
	}
	c.failIf(len(beside) > 0, "spec", strings.Join(beside, ", "), "stagedAction Delete allows nothing else but tier")
}

// checkTypes requires known directions, each once.
func checkTypes[T ~string](c *check, field string, types []T, allowed ...T) {
	seen := map[T]bool{}
	for i, t := range types {
		if t == "" {
			c.broken(at(field, i), t, "must be one of %s", list(allowed))
		}
		brokenEnum(c, at(field, i), t, allowed...)
		c.failIf(seen[t], at(field, i), t, "must not stand there twice")
		seen[t] = true
	}
}

// checkStages applies the rules for policies before address translation or connection tracking.
func checkStages(c *check, p policy) {
	g := p.global
	if g.doNotTrack && g.preDNAT {
		c.broken("spec.doNotTrack", true, "cannot be set together with preDNAT")
	}
	c.failIf(g.doNotTrack && !g.applyOnForward, "spec.applyOnForward", false,
		"must be true in a policy with doNotTrack")
	c.failIf(g.preDNAT && !g.applyOnForward, "spec.applyOnForward", false, "must be true in a policy with preDNAT")
	if !g.preDNAT {
		return
	}
	c.failIf(len(p.egress) > 0, "spec.egress", len(p.egress), "a policy with preDNAT cannot have egress rules")
	for i, t := range *p.types {
		c.failIf(t == v3.PolicyTypeEgress, at("spec.types", i), t, "a policy with preDNAT can only be of type Ingress")
	}
}

// plainSelector is selector for a field in which global() is undefined.
func (c *check) plainSelector(field, text string) {
	if s := c.selector(field, text); s != nil && hasGlobal(s) {
		c.broken(field, text, "cannot contain global(), which has its place in the namespaceSelector of a rule's "+
			"source or destination")
	}
}

// namespaceSelector allows global() as the whole selector.
func (c *check) namespaceSelector(field, text string) {
	s := c.selector(field, text)
	if s == nil {
		return
	}
	if _, alone := s.Root().(selector.Global); !alone && hasGlobal(s) {
		c.broken(field, text, "global() must stand alone: it excludes namespaces, so no other selector can "+
			"apply to them")
	}
}

func hasGlobal(s *selector.Selector) bool {
	for n := range s.Conditions() {
		if n == selector.Node(selector.Global{}) {
			return true
		}
	}
	return false
}
