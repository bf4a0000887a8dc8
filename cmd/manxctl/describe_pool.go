package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"

	"github.com/manxnet/manx/cmd/manxctl/table"
	"github.com/manxnet/manx/datastore/ippool"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/datastore/selector"
	"github.com/manxnet/manx/ipam"
)

// mostBlocks bounds the blocks in a description.
const mostBlocks = 50

// pool describes an IPPool: what it is for, how full it is, and whose its blocks are.
func (d *describer) pool(name string) (string, error) {
	o := d.objects[model.ResourceKey(model.KindIPPool, name)]
	if o == nil {
		return "", d.noSuch(model.KindIPPool, name)
	}
	stored := o.Value.(*model.IPPool)
	p := stored.WithDefaults()
	var s sections
	s.heading("IPPool " + name)
	s.line("CIDR", "%s, blocks of /%d", p.Spec.CIDR, p.Spec.BlockSize)
	s.line("State", "%s", dashOr(ipam.WhyClosed(p), "addresses are assigned"))
	s.line("Created", "%s", sinceText(o))
	if parsed, err := ippool.Parse(name, &stored.Spec); err == nil {
		s.line("Encapsulation", "IPIP %s, VXLAN %s", encapsulated[parsed.IPIP], encapsulated[parsed.VXLAN])
	}
	s.line("NAT outgoing", "%s", yesNo(p.Spec.NATOutgoing))
	s.line("Announced by BGP", "%s", yesNo(!p.Spec.DisableBGPExport))
	var uses []string
	for _, use := range p.Spec.AllowedUses {
		uses = append(uses, string(use))
	}
	s.line("Uses", "%s", strings.Join(uses, ", "))
	s.line("Nodes", "%s", d.selectedNodes(p))
	s.line("Namespaces", "%s", selectorText(p.Spec.NamespaceSelector))
	i := slices.IndexFunc(d.usage, func(u ipam.PoolUsage) bool { return u.Name == name })
	if i < 0 {
		return s.String(), nil
	}
	u := d.usage[i]
	s.line("Use", "%s", u.Text())
	s.line("Blocks", "%d, %s more can be taken", len(u.Blocks), dashOr(stateOf(u, p).FreeBlocks, "no"))
	if len(u.Blocks) == 0 {
		return s.String(), nil
	}
	s.heading("Blocks, fullest first")
	err := writeBlocks(&s, u.Blocks, true)
	return s.String(), err
}

// encapsulated are Calico's words for the condition of an encapsulation.
var encapsulated = map[ippool.Mode]string{ippool.Never: "Never", ippool.Always: "Always",
	ippool.CrossSubnet: "CrossSubnet"}

// noSuch is the error for an object that does not exist, with the names that do.
func (d *describer) noSuch(kind model.Kind, name string) error {
	const most = 10
	var names []string
	for o := range d.objects.All(kind) {
		names = append(names, o.Key.Name)
	}
	slices.Sort(names)
	if more := len(names) - most; more > 0 {
		names = append(names[:most], fmt.Sprintf("and %d more", more))
	}
	return fmt.Errorf("there is no %s %q; there are: %s", kind, name, table.OneLine(orNone(strings.Join(names, ", "))))
}

// writeBlocks prints the fullest blocks, with their owners on request.
func writeBlocks(s *sections, blocks []ipam.BlockUsage, owners bool) error {
	blocks = slices.Clone(blocks)
	slices.SortStableFunc(blocks, func(a, b ipam.BlockUsage) int {
		return cmp.Compare(b.InUse*a.Capacity, a.InUse*b.Capacity)
	})
	g := &table.Grid{}
	for _, b := range blocks[:min(len(blocks), mostBlocks)] {
		owner := strings.TrimPrefix(b.Owner, string(model.AffinityHost)+":")
		row := []string{b.CIDR.String(), fmt.Sprintf("%d of %d in use", b.InUse, b.Capacity)}
		if owners {
			row = append(row, dashOr(owner, "(no owner)"))
		}
		g.Add(row...)
	}
	if more := len(blocks) - mostBlocks; more > 0 {
		g.Add(fmt.Sprintf("and %d more", more))
	}
	var b strings.Builder
	err := g.Write(&b, false)
	for line := range strings.Lines(b.String()) {
		s.WriteString("  " + line)
	}
	return err
}

// selectedNodes returns the selector of a pool, and how many nodes it selects.
func (d *describer) selectedNodes(p *model.IPPool) string {
	nodes, selected := 0, 0
	for _, n := range model.All[model.Node](d.objects, model.KindNode) {
		nodes++
		if ok, err := selectorMatches(p.Spec.NodeSelector, n.Labels); err == nil && ok {
			selected++
		}
	}
	return fmt.Sprintf("%s: %d of %d", selectorText(p.Spec.NodeSelector), selected, nodes)
}

func selectorMatches(text string, labels map[string]string) (bool, error) {
	sel, err := selector.Parse(text)
	if err != nil {
		return false, err
	}
	return sel.Matches(labels), nil
}

// serving are the pools of which an asker can have an address, as far as their rules go.
type serving struct {
	asker ipam.Asker
	pools []ipam.PoolUsage
}

// whyNot returns why a pool gives the asker no address, by the decision of an ADD; empty if it can have one.
func (v *serving) whyNot(o *model.IPPool, u ipam.PoolUsage, strict bool) string {
	why, err := ipam.WhyNot(o, v.asker)
	switch {
	case err != nil:
		return err.Error()
	case why != "":
		return why
	}
	v.pools = append(v.pools, u)
	return u.WhyNone(ipam.Host(v.asker.Node), strict)
}

// whyNoBlock returns why the node gets no further block of these pools although its own ones are full; empty if it may
// take one, or needs none.
func (v *serving) whyNoBlock(c model.IPAMConfig) string {
	owner := ipam.Host(v.asker.Node)
	for _, family := range []ipam.Family{ipam.IPv4, ipam.IPv6} {
		var own []ipam.BlockUsage
		pools := 0
		for _, u := range v.pools {
			if ipam.FamilyOf(u.CIDR.Addr()) == family {
				pools++
				own = append(own, ownBlocks(u, owner)...)
			}
		}
		if pools == 0 || ipam.HasFree(owner, own) {
			continue
		}
		if err := ipam.WhyNoBlock(owner, len(own), ipam.BlockLimit(0, c.MaxBlocksPerHost), c); err != nil {
			return err.Error()
		}
	}
	return ""
}

// ownBlocks returns the blocks of a pool that an owner has.
func ownBlocks(u ipam.PoolUsage, owner ipam.Owner) (own []ipam.BlockUsage) {
	for _, b := range u.Blocks {
		if b.Owner == owner.String() {
			own = append(own, b)
		}
	}
	return own
}

// namespaceLabels returns the labels of a namespace, from its profile; nil if there is none.
func namespaceLabels(objects model.Reader, namespace string) map[string]string {
	p := model.Get[v3.Profile](objects, model.ResourceKey(model.KindProfile, "kns."+namespace))
	if p == nil {
		return nil
	}
	labels := map[string]string{}
	for k, v := range p.Spec.LabelsToApply {
		if name, ok := strings.CutPrefix(k, model.NamespaceLabelPrefix); ok {
			labels[name] = v
		}
	}
	return labels
}
