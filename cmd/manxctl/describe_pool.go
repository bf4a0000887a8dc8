package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"

	"github.com/manxnet/manx/datastore/ippool"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/datastore/selector"
	"github.com/manxnet/manx/datastore/table"
	"github.com/manxnet/manx/ipam"
)

// mostBlocks bounds the blocks in the text of a description.
const mostBlocks = 50

// poolDescription is an element of "describe pool -o json".
type poolDescription struct {
	Pool      string `json:"pool"`
	CIDR      string `json:"cidr"`
	BlockSize int    `json:"blockSize"`
	// Closed is why it gives nobody an address who does not name it.
	Closed            string           `json:"closed,omitempty"`
	Created           string           `json:"created,omitempty"`
	IPIP              string           `json:"ipipMode,omitempty"`
	VXLAN             string           `json:"vxlanMode,omitempty"`
	NATOutgoing       bool             `json:"natOutgoing"`
	BGPExport         bool             `json:"bgpExport"`
	AllowedUses       []string         `json:"allowedUses"`
	NodeSelector      string           `json:"nodeSelector"`
	SelectedNodes     int              `json:"selectedNodes"`
	Nodes             int              `json:"nodes"`
	NamespaceSelector string           `json:"namespaceSelector"`
	Use               *poolState       `json:"use,omitempty"` // none for a pool that cannot be used
	Blocks            []describedBlock `json:"blocks"`        // the fullest first

	use string
}

// describedBlock is a block of a node or a pool.
type describedBlock struct {
	CIDR     string `json:"cidr"`
	Size     int    `json:"size"`
	Used     int    `json:"used"`
	Reserved int    `json:"reserved"`
	Owner    string `json:"owner,omitempty"` // the node
}

// pool describes an IPPool: what it is for, how full it is, and whose its blocks are.
func (d *describer) pool(name string) (*poolDescription, error) {
	o := d.objects[model.ResourceKey(model.KindIPPool, name)]
	if o == nil {
		return nil, d.noSuch(model.KindIPPool, name)
	}
	stored := o.Value.(*model.IPPool)
	p := stored.WithDefaults()
	x := &poolDescription{Pool: name, CIDR: p.Spec.CIDR, BlockSize: p.Spec.BlockSize, Closed: ipam.WhyClosed(p),
		Created: sinceText(o), NATOutgoing: p.Spec.NATOutgoing, BGPExport: !p.Spec.DisableBGPExport,
		AllowedUses: []string{}, NodeSelector: selectorText(p.Spec.NodeSelector),
		NamespaceSelector: selectorText(p.Spec.NamespaceSelector), Blocks: []describedBlock{}}
	if parsed, err := ippool.Parse(name, &stored.Spec); err == nil {
		x.IPIP, x.VXLAN = encapsulated[parsed.IPIP], encapsulated[parsed.VXLAN]
	}
	for _, use := range p.Spec.AllowedUses {
		x.AllowedUses = append(x.AllowedUses, string(use))
	}
	for _, n := range model.All[model.Node](d.objects, model.KindNode) {
		x.Nodes++
		if ok, err := selectorMatches(p.Spec.NodeSelector, n.Labels); err == nil && ok {
			x.SelectedNodes++
		}
	}
	i := slices.IndexFunc(d.usage, func(u ipam.PoolUsage) bool { return u.Name == name })
	if i < 0 {
		return x, nil
	}
	use := stateOf(d.usage[i], p)
	x.Use, x.use, x.Blocks = &use, d.usage[i].Text(), fullestFirst(d.usage[i].Blocks)
	return x, nil
}

func (x *poolDescription) write(s *sections) error {
	s.heading("IPPool " + x.Pool)
	s.line("CIDR", "%s, blocks of /%d", x.CIDR, x.BlockSize)
	s.line("State", "%s", dashOr(x.Closed, "addresses are assigned"))
	s.line("Created", "%s", x.Created)
	if x.IPIP != "" {
		s.line("Encapsulation", "IPIP %s, VXLAN %s", x.IPIP, x.VXLAN)
	}
	s.line("NAT outgoing", "%s", yesNo(x.NATOutgoing))
	s.line("Announced by BGP", "%s", yesNo(x.BGPExport))
	s.line("Uses", "%s", strings.Join(x.AllowedUses, ", "))
	s.line("Nodes", "%s: %d of %d", x.NodeSelector, x.SelectedNodes, x.Nodes)
	s.line("Namespaces", "%s", x.NamespaceSelector)
	if x.Use == nil {
		return nil
	}
	s.line("Use", "%s", x.use)
	s.line("Blocks", "%d, %s more can be taken", len(x.Blocks), dashOr(x.Use.FreeBlocks, "no"))
	if len(x.Blocks) == 0 {
		return nil
	}
	s.heading("Blocks, fullest first")
	return writeBlocks(s, x.Blocks, true)
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

// fullestFirst returns blocks for a description.
func fullestFirst(blocks []ipam.BlockUsage) []describedBlock {
	blocks = slices.Clone(blocks)
	slices.SortStableFunc(blocks, func(a, b ipam.BlockUsage) int {
		return cmp.Compare(b.InUse*a.Capacity, a.InUse*b.Capacity)
	})
	list := make([]describedBlock, len(blocks))
	for i, b := range blocks {
		list[i] = describedBlock{b.CIDR.String(), b.Capacity, b.InUse, b.Reserved,
			strings.TrimPrefix(b.Owner, string(model.AffinityHost)+":")}
	}
	return list
}

// writeBlocks prints the first blocks, with their owners on request.
func writeBlocks(s *sections, blocks []describedBlock, owners bool) error {
	g := &table.Grid{}
	for _, b := range blocks[:min(len(blocks), mostBlocks)] {
		row := []string{b.CIDR, fmt.Sprintf("%d of %d in use", b.Used, b.Size)}
		if owners {
			row = append(row, dashOr(b.Owner, "(no owner)"))
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

func selectorMatches(text string, labels map[string]string) (bool, error) {
	sel, err := selector.Parse(text)
	if err != nil {
		return false, err
	}
	return sel.Matches(labels), nil
}

// poolChoices returns for each pool whether it gives an asker addresses, by the decision of an ADD, and why the node
// gets no further block of those that do although its own ones are full; empty if it may take one, or needs none.
func (d *describer) poolChoices(a ipam.Asker) (choices []poolChoice, noFurtherBlock string) {
	choices = []poolChoice{}
	var allowed []ipam.PoolUsage
	for _, u := range d.usage {
		pool := d.ipPool(u.Name)
		if pool == nil {
			continue
		}
		x := poolChoice{poolState: stateOf(u, pool.WithDefaults()), use: u.Text()}
		why, err := ipam.WhyNot(pool, a)
		switch {
		case err != nil:
			x.Reason = err.Error()
		case why != "":
			x.Reason = why
		default:
			allowed = append(allowed, u)
			x.Reason = u.WhyNone(ipam.Host(a.Node), d.config.StrictAffinity)
		}
		x.Serves = x.Reason == ""
		choices = append(choices, x)
	}
	return choices, whyNoBlock(ipam.Host(a.Node), allowed, d.config)
}

func whyNoBlock(owner ipam.Owner, pools []ipam.PoolUsage, c model.IPAMConfig) string {
	for _, family := range []ipam.Family{ipam.IPv4, ipam.IPv6} {
		var own []ipam.BlockUsage
		some := false
		for _, u := range pools {
			if ipam.FamilyOf(u.CIDR.Addr()) == family {
				some = true
				own = append(own, ownBlocks(u, owner)...)
			}
		}
		if !some || ipam.HasFree(owner, own) {
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
