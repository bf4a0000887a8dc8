package validation

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	"github.com/projectcalico/api/pkg/lib/numorstring"
)

func checkRules(c *check, p policy, field string, rules []v3.Rule, ingress bool) {
	c.failIf(len(rules) > maxRules, field, len(rules), fmt.Sprintf("can have at most %d rules", maxRules))
	for i := range rules {
		r := ruleCheck{check: c, field: at(field, i), rule: &rules[i], ingress: ingress, global: p.global != nil}
		r.run()
	}
}

// ruleCheck checks one rule.
type ruleCheck struct {
	*check
	field           string
	rule            *v3.Rule
	ingress, global bool
}

var actions = []v3.Action{v3.Allow, v3.Deny, v3.Log, v3.Pass}

func (c ruleCheck) run() {
	r := c.rule
	if !slices.Contains(actions, r.Action) {
		c.broken(c.field+".action", r.Action, "must be one of %s", list(actions))
	}
	if v := r.IPVersion; v != nil && *v != 4 && *v != 6 {
		c.broken(c.field+".ipVersion", *v, "must be 4 or 6")
	}
	c.protocol(c.field+".protocol", r.Protocol)
	c.protocol(c.field+".notProtocol", r.NotProtocol)
	c.icmp(c.field+".icmp", r.ICMP)
	c.icmp(c.field+".notICMP", r.NotICMP)
	c.entity(c.field+".source", &r.Source, c.ingress)
	c.entity(c.field+".destination", &r.Destination, !c.ingress)
	c.families()
	c.http()
	if r.Metadata != nil {
		c.annotations(c.field+".metadata.annotations", r.Metadata.Annotations)
	}
}

var protocolNames = []string{
	numorstring.ProtocolTCP, numorstring.ProtocolUDP, numorstring.ProtocolICMP, numorstring.ProtocolICMPv6,
	numorstring.ProtocolSCTP, numorstring.ProtocolUDPLite,
}

func (c ruleCheck) protocol(field string, p *numorstring.Protocol) {
	if p == nil {
		return
	}
	if n, err := p.NumValue(); (err == nil && n == 0) || (err != nil && !slices.Contains(protocolNames, p.StrVal)) {
		c.broken(field, p, "must be a number from 1 to 255 or one of %s", strings.Join(protocolNames, ", "))
	}
}

const (
	protocolICMP   = 1
	protocolICMPv6 = 58
)

// icmpFamily returns the family of an ICMP protocol: 4 or 6, 0 for any other protocol.
func icmpFamily(p *numorstring.Protocol) int {
	if p == nil {
		return 0
	}
	n, err := p.NumValue()
	switch {
	case err == nil && n == protocolICMP, err != nil && p.StrVal == numorstring.ProtocolICMP:
		return 4
	case err == nil && n == protocolICMPv6, err != nil && p.StrVal == numorstring.ProtocolICMPv6:
		return 6
	}
	return 0
}

func (c ruleCheck) icmp(field string, f *v3.ICMPFields) {
	if f == nil {
		return
	}
	if icmpFamily(c.rule.Protocol) == 0 {
		c.broken(field, "set", "needs protocol ICMP or ICMPv6 in the same rule")
	}
	if f.Type != nil && (*f.Type < 0 || *f.Type > 254) {
		c.broken(field+".type", *f.Type, "must be from 0 to 254")
	}
	if f.Code != nil && (*f.Code < 0 || *f.Code > 255) {
		c.broken(field+".code", *f.Code, "must be from 0 to 255")
	}
	if f.Code != nil && f.Type == nil {
		c.broken(field+".code", *f.Code, "needs a type: each type has its own codes")
	}
}

// families requires a rule to be for one address family. A mixed rule is safe to use: each family gets the parts that
// apply to it.
func (c ruleCheck) families() {
	r := c.rule
	want, reason := 0, ""
	expect := func(field string, value any, family int, why string) {
		switch {
		case family == 0:
		case want == 0:
			want, reason = family, why
		case want != family:
			c.fail(field, value, "is of another family than IPv%d, as %s calls for", want, reason)
		}
	}
	if r.IPVersion != nil {
		expect(c.field+".ipVersion", *r.IPVersion, *r.IPVersion, "ipVersion")
	}
	expect(c.field+".protocol", r.Protocol, icmpFamily(r.Protocol), "protocol")
	for _, x := range []struct {
		field string
		nets  []string
	}{
		{".source.nets", r.Source.Nets}, {".source.notNets", r.Source.NotNets},
		{".destination.nets", r.Destination.Nets}, {".destination.notNets", r.Destination.NotNets},
	} {
		for i, n := range x.nets {
			if p, rule := parseNet(n, 0); rule == "" {
				expect(at(c.field+x.field, i), n, netFamily(p), n)
			}
		}
	}
}

func netFamily(p netip.Prefix) int {
	if p.Addr().Is4() {
		return 4
	}
	return 6
}

const maxHTTP = 20

func (c ruleCheck) http() {
	h := c.rule.HTTP
	if h == nil {
		return
	}
	field := c.field + ".http"
	if c.rule.Action != v3.Allow {
		c.broken(field, "set", "can only be in a rule with action Allow, not %s: the kernel cannot match it, so "+
			"the rule would match all traffic", c.rule.Action)
	}
	c.failIf(!c.ingress, field, "set", "can only be in an ingress rule")
	if p := c.rule.Protocol; p != nil {
		n, err := p.NumValue()
		c.failIf((err == nil && n != 6) || (err != nil && p.StrVal != numorstring.ProtocolTCP), c.field+".protocol", p,
			"must be TCP, or be left out, in a rule with http")
	}
	c.failIf(len(h.Methods) > maxHTTP, field+".methods", len(h.Methods),
		fmt.Sprintf("can have at most %d entries", maxHTTP))
	c.failIf(len(h.Paths) > maxHTTP, field+".paths", len(h.Paths), fmt.Sprintf("can have at most %d entries", maxHTTP))
	for i, m := range h.Methods {
		c.failIf(slices.Contains(h.Methods[:i], m), at(field+".methods", i), m, "must not stand there twice")
	}
	for i, p := range h.Paths {
		c.failIf((p.Exact == "") == (p.Prefix == ""), at(field+".paths", i), p.Exact+p.Prefix,
			"must have exactly one of exact and prefix")
		for _, path := range []string{p.Exact, p.Prefix} {
			c.failIf(path != "" && (path[0] != '/' || strings.ContainsAny(path, "?# ")), at(field+".paths", i), path,
				"must begin with '/' and be without '?', '#' and blanks")
		}
	}
}
