package vtep

import (
	"cmp"
	"fmt"
	"iter"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/manxnet/manx/datastore/model"
)

// Table has the VTEPs of the cluster's nodes for one family, and is kept up to date node by node. No two of them share
// an address or a hardware address: of the nodes that claim one, the oldest has it, since it may be in use, and the
// others have no VTEP. Not safe for concurrent use.
type Table struct {
	family model.Family
	nodes  map[string]*claim
	owners map[any]map[string]bool // the nodes that claim an address (netip.Addr) or a hardware address (string)
	first  map[any]string          // the results of holder, as long as they hold
	// contested is how many of these more than one node claims: usually none.
	contested int
	addresses []nodeAddress // sorted
}

// nodeAddress is the own address of a node.
type nodeAddress struct {
	address netip.Addr
	node    string
}

func (a nodeAddress) compare(o nodeAddress) int {
	return cmp.Or(a.address.Compare(o.address), cmp.Compare(a.node, o.node))
}

// claim is the VTEP that a node publishes.
type claim struct {
	VTEP
	err     error      // why it is none
	address netip.Addr // of the node
	created time.Time
}

// NewTable makes a Table without nodes.
func NewTable(f model.Family) *Table {
	return &Table{family: f, nodes: map[string]*claim{}, owners: map[any]map[string]bool{},
		first: map[any]string{}}
}

// Set takes over a node; nil: it is gone. It reports whether a VTEP may differ.
func (t *Table) Set(name string, n *model.Node) (changed bool) {
	var next *claim
	if n != nil {
		next = &claim{created: n.CreationTimestamp.Time, address: n.Spec.BGP.Address(t.family).Addr()}
		next.VTEP, next.err = Of(name, n, t.family)
	}
	old := t.nodes[name]
	if old != nil && next != nil && old.VTEP == next.VTEP && old.address == next.address &&
		fmt.Sprint(old.err) == fmt.Sprint(next.err) && old.created.Equal(next.created) || old == nil && next == nil {
		return false
	}
	if old != nil {
		if i, has := slices.BinarySearchFunc(t.addresses, nodeAddress{old.address, name}, nodeAddress.compare); has {
			t.addresses = slices.Delete(t.addresses, i, i+1)
		}
		for _, k := range old.keys() {
			delete(t.first, k)
			delete(t.owners[k], name)
			switch len(t.owners[k]) {
			case 0:
				delete(t.owners, k)
			case 1:
				t.contested--
			}
		}
		delete(t.nodes, name)
	}
	if next != nil {
		if a := (nodeAddress{next.address, name}); a.address.IsValid() {
			i, _ := slices.BinarySearchFunc(t.addresses, a, nodeAddress.compare)
			t.addresses = slices.Insert(t.addresses, i, a)
		}
		t.nodes[name] = next
		for _, k := range next.keys() {
			delete(t.first, k)
			if t.owners[k] == nil {
				t.owners[k] = map[string]bool{}
			}
			if t.owners[k][name] = true; len(t.owners[k]) == 2 {
				t.contested++
			}
		}
	}
	return true
}

// keys are what no two VTEPs may share.
func (c *claim) keys() []any {
	if c.err != nil {
		return nil
	}
	return []any{c.Address, c.Tunnel, c.MAC}
}

// Of returns the VTEP of a node, or why it has none.
func (t *Table) Of(name string) (VTEP, error) {
	c := t.nodes[name]
	switch {
	case c == nil:
		return VTEP{}, fmt.Errorf("there is no node %s", name)
	case c.err != nil:
		return VTEP{}, c.err
	case t.contested == 0:
		return c.VTEP, nil
	}
	for _, k := range c.keys() {
		switch first := t.holder(k); {
		case first == name:
		case MAC(first, t.family) == k && MAC(name, t.family) != k:
			return VTEP{}, fmt.Errorf("node %s has published %v, which follows from the name of node %s, as its "+
				"hardware address", name, k, first)
		case t.nodes[first].Address == k && c.Address != k:
			return VTEP{}, fmt.Errorf("node %s has published %v, which is the address of node %s, as its tunnel "+
				"address", name, k, first)
		default:
			return VTEP{}, fmt.Errorf("nodes %s and %s both claim %v for VXLAN: the older one, %[1]s, has it",
				first, name, k)
		}
	}
	return c.VTEP, nil
}

// Within returns a node other than one of that name whose own address is in a prefix; empty for none.
func (t *Table) Within(p netip.Prefix, other string) (node string, address netip.Addr) {
	i, _ := slices.BinarySearchFunc(t.addresses, nodeAddress{address: p.Masked().Addr()}, nodeAddress.compare)
	for _, a := range t.addresses[i:] {
		if !p.Contains(a.address) {
			break
		}
		if a.node != other {
			return a.node, a.address
		}
	}
	return "", netip.Addr{}
}

// holder returns the node that has what several may claim: the one that was created first; the name decides between two
// of one age. No node gets the own address of another as its tunnel address, nor the hardware address that follows from
// another's name.
func (t *Table) holder(k any) string {
	nodes := t.owners[k]
	if len(nodes) == 1 {
		for name := range nodes {
			return name
		}
	}
	if first, known := t.first[k]; known {
		return first
	}
	rank := func(name string) int {
		if t.nodes[name].Address == k || MAC(name, t.family) == k {
			return 0
		}
		return 1
	}
	first := slices.MinFunc(slices.Collect(maps.Keys(nodes)), func(a, b string) int {
		return cmp.Or(rank(a)-rank(b), t.nodes[a].created.Compare(t.nodes[b].created), cmp.Compare(a, b))
	})
	t.first[k] = first
	return first
}

// Address returns the own address of a node, invalid if it has none of the family. It need not have a VTEP.
func (t *Table) Address(name string) netip.Addr {
	if c := t.nodes[name]; c != nil {
		return c.address
	}
	return netip.Addr{}
}

// Addresses visits the nodes with the address that each has as its own, in no order; several may have one address.
func (t *Table) Addresses() iter.Seq2[string, netip.Addr] {
	return func(yield func(string, netip.Addr) bool) {
		for name, c := range t.nodes {
			if c.address.IsValid() && !yield(name, c.address) {
				return
			}
		}
	}
}

// At returns the VTEP of the node that has an address, or why there is none.
func (t *Table) At(address netip.Addr) (VTEP, error) {
	none := fmt.Errorf("no node with the address %s has published a tunnel address for VXLAN", address)
	if len(t.owners[address]) == 0 {
		return VTEP{}, none
	}
	v, err := t.Of(t.holder(address))
	if err == nil && v.Address != address { // it is the tunnel address of that node
		return VTEP{}, none
	}
	return v, err
}

// Contested reports whether several nodes claim one address: then the change of a node may be one of others, too.
func (t *Table) Contested() bool { return t.contested > 0 }

// Nodes visits the names of all nodes, in no order.
func (t *Table) Nodes() iter.Seq[string] { return maps.Keys(t.nodes) }

// All visits the VTEPs, in no order.
func (t *Table) All() iter.Seq[VTEP] {
	return func(yield func(VTEP) bool) {
		for name := range t.nodes {
			if v, err := t.Of(name); err == nil && !yield(v) {
				return
			}
		}
	}
}

// Refused returns, by node, why nodes have no VTEP.
func (t *Table) Refused() map[string]error {
	list := map[string]error{}
	for name := range t.nodes {
		if _, err := t.Of(name); err != nil {
			list[name] = err
		}
	}
	return list
}
