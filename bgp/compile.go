package bgp

import (
	"errors"
	"fmt"
	"net/netip"
	"path"
	"slices"
	"strings"

	"github.com/projectcalico/api/pkg/lib/numorstring"

	"github.com/manxnet/manx/datastore/model"
)

// compiled is a compiled BGPFilter, with the notices for the case that a session uses it.
type compiled struct {
	Filter
	problems []Notice
}

// compileFilters makes all BGPFilters ready, by name.
func compileFilters(r model.Reader) map[string]compiled {
	filters := map[string]compiled{}
	for k, v := range model.All[model.BGPFilter](r, model.KindBGPFilter) {
		f := compiled{Filter: Filter{Name: k.Name}}
		f.ImportV4 = f.compile("importV4", ipv4, v.Spec.ImportV4)
		f.ExportV4 = f.compile("exportV4", ipv4, v.Spec.ExportV4)
		f.ImportV6 = f.compile("importV6", ipv6, v.Spec.ImportV6)
		f.ExportV6 = f.compile("exportV6", ipv6, v.Spec.ExportV6)
		filters[k.Name] = f
	}
	return filters
}

// compile compiles a list of rules. An unusable rule is left out as a whole, so that no rule ever matches more than its
// text, or accepts a route without its changes. Writers check all of this before: such a rule comes from another
// program.
func (f *compiled) compile(list string, family int, rules []model.BGPFilterRule) []Rule {
	var ready []Rule
	for i, spec := range rules {
		field := fmt.Sprintf("%s[%d]", list, i)
		rule, err := compileRule(family, spec)
		if err != nil {
			f.problems = append(f.problems, Notice{Object: "BGPFilter/" + f.Name,
				Reason: fmt.Sprintf("spec.%s is skipped: %v", field, err)})
			continue
		}
		rule.Name = fmt.Sprintf("BGPFilter/%s %s", f.Name, field)
		ready = append(ready, rule)
	}
	return ready
}

func compileRule(family int, spec model.BGPFilterRule) (r Rule, err error) {
	switch spec.Action {
	case model.FilterAccept:
		r.Accept = true
	case model.FilterReject:
	default:
		return r, fmt.Errorf("action = %q: want Accept or Reject", spec.Action)
	}
	if r.Prefix, err = compilePrefix(family, spec); err != nil {
		return r, err
	}
	switch spec.Source {
	case "":
	case model.FilterRemotePeers:
		r.RemotePeers = true
	default:
		return r, fmt.Errorf("source = %q: want RemotePeers or none", spec.Source)
	}
	switch spec.PeerType {
	case "", model.FilterExternalPeers, model.FilterInternalPeers:
		r.PeerType = spec.PeerType
	default:
		return r, fmt.Errorf("peerType = %q: want eBGP, iBGP or none", spec.PeerType)
	}
	if _, err := path.Match(spec.Interface, ""); err != nil {
		return r, fmt.Errorf(`interface = %q: want a name, or a pattern with "*"`, spec.Interface)
	}
	r.Interface = spec.Interface
	if m := spec.Communities; m != nil {
		if len(m.Values) != 1 {
			return r, fmt.Errorf("communities.values has %d entries: want exactly one", len(m.Values))
		}
		if r.Community, r.Large, err = oneCommunity("communities.values[0]", m.Values[0]); err != nil {
			return r, err
		}
	}
	r.ASPathPrefix = asNumbers(spec.ASPathPrefix)
	if spec.Priority != nil {
		if r.Priority, err = priority("priority", *spec.Priority); err != nil {
			return r, err
		}
	}
	r.Operations, err = compileOperations(r.Accept, spec.Operations)
	return r, err
}

func compilePrefix(family int, spec model.BGPFilterRule) (*PrefixMatch, error) {
	switch {
	case spec.CIDR == "" && (spec.MatchOperator != "" || spec.PrefixLength != nil):
		return nil, errors.New("matchOperator and prefixLength need cidr")
	case spec.CIDR == "":
		return nil, nil
	}
	p, err := netip.ParsePrefix(spec.CIDR)
	if err != nil || familyOf(p.Addr()) != family || p.Addr().Is4In6() {
		return nil, fmt.Errorf("cidr = %q: want an %s prefix, ADDRESS/LENGTH", spec.CIDR, familyNames[family])
	}
	m := &PrefixMatch{CIDR: p.Masked(), Min: p.Bits(), Max: p.Bits()}
	switch spec.MatchOperator {
	case model.FilterEqual, model.FilterNotEqual:
		if spec.PrefixLength != nil {
			return nil, fmt.Errorf("prefixLength goes with matchOperator In and NotIn, not with %s", spec.MatchOperator)
		}
	case model.FilterIn, model.FilterNotIn:
		m.Max = p.Addr().BitLen()
		if err := m.narrow(spec.PrefixLength); err != nil {
			return nil, err
		}
	default:
		return nil, fmt.Errorf("matchOperator = %q: want Equal, NotEqual, In or NotIn", spec.MatchOperator)
	}
	m.Not = spec.MatchOperator == model.FilterNotEqual || spec.MatchOperator == model.FilterNotIn
	return m, nil
}

// narrow bounds the lengths. A prefix inside a CIDR is never shorter than the CIDR.
func (m *PrefixMatch) narrow(l *model.BGPFilterPrefixLength) error {
	if l == nil {
		return nil
	}
	longest := m.Max
	for _, n := range []*int32{l.Min, l.Max} {
		if n != nil && (*n < 0 || int(*n) > longest) {
			return fmt.Errorf("prefixLength %d: want 0 to %d", *n, longest)
		}
	}
	if l.Min != nil {
		m.Min = max(m.Min, int(*l.Min))
	}
	if l.Max != nil {
		m.Max = int(*l.Max)
	}
	return nil
}

func compileOperations(accept bool, specs []model.BGPFilterOperation) ([]Operation, error) {
	if len(specs) > 0 && !accept {
		return nil, errors.New("operations go with action Accept only")
	}
	var ready []Operation
	for i, spec := range specs {
		o, err := compileOperation(fmt.Sprintf("operations[%d]", i), spec)
		if err != nil {
			return nil, err
		}
		ready = append(ready, o)
	}
	if n := growth(ready); n > mostGrowth {
		return nil, fmt.Errorf("operations add %d bytes to each route: want at most %d", n, mostGrowth)
	}
	return ready, nil
}

func compileOperation(field string, spec model.BGPFilterOperation) (o Operation, err error) {
	set := 0
	if a := spec.AddCommunity; a != nil {
		set++
		o.AddCommunity, o.AddLarge, err = oneCommunity(field+".addCommunity.value", a.Value)
	}
	if a := spec.PrependASPath; a != nil {
		set++
		if len(a.Prefix) == 0 {
			err = errors.New(field + ".prependASPath.prefix is empty: want 1 to 10 AS numbers")
		}
		o.PrependASPath = asNumbers(a.Prefix)
	}
	if a := spec.SetPriority; a != nil {
		set++
		if o.SetPriority, err = priority(field+".setPriority.value", a.Value); err != nil {
			return o, err
		}
	}
	if set != 1 && err == nil {
		err = fmt.Errorf("%s: want exactly one of addCommunity, prependASPath and setPriority", field)
	}
	return o, err
}

func oneCommunity(field, text string) (standard *uint32, large *[3]uint32, err error) {
	n, err := parseCommunity(text)
	switch {
	case err != nil:
		return nil, nil, fmt.Errorf("%s = %q: want AA:NN or AA:NN:MM", field, text)
	case len(n) == 2:
		v := n[0]<<16 | n[1]
		return &v, nil, nil
	}
	v := [3]uint32(n)
	return nil, &v, nil
}

func priority(field string, value int) (uint32, error) {
	if value < 1 || value >= MaxPriority {
		return 0, fmt.Errorf("%s = %d: want 1 to %d", field, value, MaxPriority-1)
	}
	return uint32(value), nil
}

func asNumbers(list []numorstring.ASNumber) []uint32 {
	var out []uint32
	for _, as := range list {
		out = append(out, uint32(as))
	}
	return out
}

// existing keeps the names of filters that exist, in order. A BGPPeer acts as if it did not name the others, as in
// Calico.
func (c *cluster) existing(object string, names []string) []string {
	var kept []string
	for _, name := range names {
		if _, ok := c.filters[name]; !ok {
			c.note(object, fmt.Sprintf("spec.filters: BGPFilter/%s does not exist or cannot be read, so its rules do "+
				"not apply; create it, or take it off the list", name))
			continue
		}
		kept = append(kept, name)
	}
	return kept
}

// usedFilters lists the filters that sessions name, and adds notices about their errors.
func (c *cluster) usedFilters(sessions []Session) []Filter {
	used := map[string]bool{}
	var list []Filter
	for _, s := range sessions {
		for _, name := range s.Filters {
			if used[name] {
				continue
			}
			used[name] = true
			list = append(list, c.filters[name].Filter)
			c.notices = append(c.notices, c.filters[name].problems...)
		}
	}
	slices.SortFunc(list, func(a, b Filter) int { return strings.Compare(a.Name, b.Name) })
	return list
}
