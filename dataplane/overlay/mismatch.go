package overlay

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/manxnet/manx/datastore/felixconfig"
	"github.com/manxnet/manx/datastore/ippool"
	"github.com/manxnet/manx/datastore/model"
)

// Bounds of a text about other nodes.
const (
	mostNodes  = 3 // with one value
	mostValues = 3
)

// Mismatches returns the settings of which this node and others must have one value, and do not. own are this node's,
// with those of its host; the others' are those of the FelixConfigurations. The cost follows the number of different
// configurations, not that of nodes, unless many differ.
func Mismatches(r model.Reader, node string, own *model.FelixConfigurationSpec) (list []Conflict) {
	c := comparison{Reader: r, node: node, self: model.Get[model.Node](r, model.ResourceKey(model.KindNode, node)),
		pools: ippool.Read(r), own: own, stored: felixconfig.Merge(r, node, nil), found: map[string]*mismatch{}}
	for _, g := range felixconfig.Groups(r) {
		for _, o := range all {
			if o.carries(own, c.pools) && o.carries(&g.Spec, c.pools) {
				c.compare(o, g)
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(c.found)) {
		if m := c.found[name]; len(m.others) > 0 {
			list = append(list, Conflict{name, m.text()})
		}
	}
	return list
}

// comparison compares the settings of a node with those of others.
type comparison struct {
	model.Reader
	node   string
	self   *model.Node
	pools  ippool.Table
	own    *model.FelixConfigurationSpec
	stored model.FelixConfigurationSpec // own ones without those of the host
	found  map[string]*mismatch         // by setting
}

// compare takes over the differences for an overlay that both this node and a group have.
func (c *comparison) compare(o Overlay, g felixconfig.Group) {
	here, there, stored := o.Settings(c.own).Shared, o.Settings(&g.Spec).Shared, o.Settings(&c.stored).Shared
	for i, s := range here {
		if there[i].Value == s.Value {
			continue
		}
		m := c.found[s.Name]
		if m == nil {
			m = &mismatch{Shared: s, carried: o.Packets(c.own).Name, byHost: stored[i].Value != s.Value,
				others: map[int]map[string]bool{}}
			c.found[s.Name] = m
		}
		for _, name := range g.Nodes {
			if name != c.node && c.reaches(o, name) {
				m.add(there[i].Value, name)
			}
		}
	}
}

// reaches reports whether this node and another one send each other packets in the overlay.
func (c *comparison) reaches(o Overlay, name string) bool {
	other := model.Get[model.Node](c.Reader, model.ResourceKey(model.KindNode, name))
	if !o.joined(c.self) || !o.joined(other) {
		return false
	}
	here, there := c.self.Spec.BGP.Address(o.Family), other.Spec.BGP.Address(o.Family)
	return !here.Contains(there.Addr()) || !there.Contains(here.Addr()) || o.Encapsulation == noPool ||
		slices.ContainsFunc(c.pools, func(p ippool.Pool) bool {
			return o.serves(p) && p.IPIP != ippool.CrossSubnet && p.VXLAN != ippool.CrossSubnet
		})
}

// carries reports whether packets travel in the overlay with these settings: if it is on, and a pool needs it.
func (o Overlay) carries(f *model.FelixConfigurationSpec, pools ippool.Table) bool {
	return o.Used(f, pools) && (o.Encapsulation == noPool || slices.ContainsFunc(pools, o.serves))
}

// joined reports whether a node has published that it takes part in the overlay.
func (o Overlay) joined(n *model.Node) bool {
	if o.Encapsulation == noPool {
		return n.PublicKey(o.Family) != ""
	}
	return n.TunnelAddress(o.Device).IsValid() && n.Spec.BGP.Address(o.Family).IsValid()
}

// mismatch is a setting of this node that others have another value of.
type mismatch struct {
	Shared
	carried string                  // the name of the packets that are lost
	byHost  bool                    // the value is none of the FelixConfigurations
	others  map[int]map[string]bool // nodes by value
}

func (m *mismatch) add(value int, node string) {
	if m.others[value] == nil {
		m.others[value] = map[string]bool{}
	}
	m.others[value][node] = true
}

// text names the values, of which those of the most nodes come first, and the remedy.
func (m *mismatch) text() string {
	variable := "FELIX_" + strings.ToUpper(m.Name)
	text := fmt.Sprintf("it is %d on this node", m.Value)
	if m.byHost {
		text += fmt.Sprintf(", set on the host (%s)", variable)
	}
	values := slices.SortedFunc(maps.Keys(m.others), func(a, b int) int {
		return cmp.Or(len(m.others[b])-len(m.others[a]), a-b)
	})
	for _, v := range values[:min(len(values), mostValues)] {
		text += fmt.Sprintf(", and %d on %s", v, nodesText(slices.Sorted(maps.Keys(m.others[v]))))
	}
	if more := len(values) - mostValues; more > 0 {
		text += fmt.Sprintf(", and %d more values on others", more)
	}
	text += fmt.Sprintf(": packets of %s between this node and these are lost", m.carried)
	if m.byHost {
		text += ", unless their hosts set the same"
	}
	return text + fmt.Sprintf(". Set it in the FelixConfiguration default alone, and remove it from the others "+
		"(node.NAME) and from the hosts (%s)", variable)
}

// nodesText names the first of some nodes, and counts the others.
func nodesText(names []string) string {
	switch more := len(names) - mostNodes; {
	case len(names) == 1:
		return "node " + names[0]
	case more > 0:
		return fmt.Sprintf("nodes %s and %d more", strings.Join(names[:mostNodes], ", "), more)
	}
	return "nodes " + strings.Join(names, ", ")
}
