package validation

import (
	"cmp"
	"regexp"

	"github.com/manxnet/manx/datastore/model"
)

// checkBGPFilter has no rule that breaks an object: readers skip single unusable rules, which is safer than a missing
// filter.
func checkBGPFilter(c *check, f *model.BGPFilter) {
	for _, x := range []struct {
		field  string
		family int
		rules  []model.BGPFilterRule
	}{
		{"spec.exportV4", 4, f.Spec.ExportV4}, {"spec.importV4", 4, f.Spec.ImportV4},
		{"spec.exportV6", 6, f.Spec.ExportV6}, {"spec.importV6", 6, f.Spec.ImportV6},
	} {
		for i, r := range x.rules {
			c.filterRule(at(x.field, i), x.family, r)
		}
	}
}

// filterInterface is an interface name, or a pattern with "*".
var filterInterface = regexp.MustCompile(`^[a-zA-Z0-9_.*-]{1,15}$`)

func (c *check) filterRule(field string, family int, r model.BGPFilterRule) {
	c.failIf(r.Action == "", field+".action", "", "is required: Accept or Reject")
	enum(c, field+".action", r.Action, model.FilterAccept, model.FilterReject)
	c.filterPrefix(field, family, r)
	enum(c, field+".source", r.Source, model.FilterRemotePeers)
	c.failIf(r.Interface != "" && !filterInterface.MatchString(r.Interface), field+".interface", r.Interface,
		`must be an interface name or a pattern with "*", of at most 15 characters`)
	enum(c, field+".peerType", r.PeerType, model.FilterExternalPeers, model.FilterInternalPeers)
	if r.Communities != nil {
		c.failIf(len(r.Communities.Values) != 1, field+".communities.values", r.Communities.Values,
			"must have exactly one community")
		for i, v := range r.Communities.Values {
			c.community(at(field+".communities.values", i), v)
		}
	}
	c.priority(field+".priority", r.Priority)
	c.failIf(len(r.Operations) > 0 && r.Action == model.FilterReject, field+".operations", len(r.Operations),
		"go with action Accept only")
	c.failIf(len(r.Operations) > 10, field+".operations", len(r.Operations), "can have at most 10 entries")
	for i, o := range r.Operations {
		c.filterOperation(at(field+".operations", i), o)
	}
}

func (c *check) filterPrefix(field string, family int, r model.BGPFilterRule) {
	enum(c, field+".matchOperator", r.MatchOperator, model.FilterEqual, model.FilterNotEqual, model.FilterIn,
		model.FilterNotIn)
	c.failIf(r.CIDR != "" && r.MatchOperator == "", field+".matchOperator", "", "is required with cidr")
	c.failIf(r.CIDR == "" && r.MatchOperator != "", field+".cidr", "", "is required with matchOperator")
	if r.CIDR != "" {
		p, rule := parseNet(r.CIDR, family)
		if rule = cmp.Or(rule, strictNet(r.CIDR, p)); rule != "" {
			c.fail(field+".cidr", r.CIDR, "%s", rule)
		}
	}
	l := r.PrefixLength
	if l == nil {
		return
	}
	c.failIf(r.CIDR == "", field+".cidr", "", "is required with prefixLength")
	c.failIf(r.MatchOperator == model.FilterEqual || r.MatchOperator == model.FilterNotEqual, field+".prefixLength",
		r.MatchOperator,
		"goes with matchOperator In and NotIn only")
	longest := map[int]int32{4: 32, 6: 128}[family]
	for _, x := range []struct {
		name  string
		value *int32
	}{{"min", l.Min}, {"max", l.Max}} {
		if x.value != nil && (*x.value < 0 || *x.value > longest) {
			c.fail(field+".prefixLength."+x.name, *x.value, "must be from 0 to %d", longest)
		}
	}
	if l.Min != nil && l.Max != nil && *l.Min > *l.Max {
		c.fail(field+".prefixLength.min", *l.Min, "must not exceed max, which is %d", *l.Max)
	}
}

func (c *check) filterOperation(field string, o model.BGPFilterOperation) {
	set := 0
	if o.AddCommunity != nil {
		set++
		c.community(field+".addCommunity.value", o.AddCommunity.Value)
	}
	if o.PrependASPath != nil {
		set++
		n := len(o.PrependASPath.Prefix)
		c.failIf(n < 1 || n > 10, field+".prependASPath.prefix", n, "must have 1 to 10 AS numbers")
	}
	if o.SetPriority != nil {
		set++
		c.priority(field+".setPriority.value", &o.SetPriority.Value)
	}
	c.failIf(set != 1, field, set, "must be exactly one of addCommunity, prependASPath and setPriority")
}

func (c *check) community(field, text string) {
	if err := checkCommunity(text); err != nil {
		c.fail(field, text, "%s", err)
	}
}
