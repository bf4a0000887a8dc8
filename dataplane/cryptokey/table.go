package cryptokey

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/manxnet/manx/dataplane/kernel/wireguard"
	"github.com/manxnet/manx/datastore/model"
)

// Node is what a node publishes for WireGuard, of one family.
type Node struct {
	Name string
	// Address is the node's own, to which encrypted packets are sent.
	Address netip.Addr
	Key     wireguard.Key
}

// Table has what the nodes of the cluster publish for one family, and is kept up to date node by node. Of the nodes
// that publish one key, the oldest has it, since it may be in use, and the others have none. Not safe for concurrent
// use.
type Table struct {
	family model.Family
	nodes  map[string]claim
	owners map[wireguard.Key]map[string]bool
	first  map[wireguard.Key]string // the results of holder, as long as they hold
	hosts  map[netip.Addr]int       // how many nodes have an address
}

// claim is what a node publishes.
type claim struct {
	Node
	err     string // why it cannot be a peer
	created time.Time
}

// NewTable makes a Table without nodes.
func NewTable(f model.Family) *Table {
	return &Table{family: f, nodes: map[string]claim{}, owners: map[wireguard.Key]map[string]bool{},
		first: map[wireguard.Key]string{}, hosts: map[netip.Addr]int{}}
}

func claimOf(name string, n *model.Node, f model.Family) claim {
	c := claim{Node: Node{Name: name, Address: n.HostAddress(f)}, created: n.CreationTimestamp.Time}
	var err error
	switch text := n.PublicKey(f); {
	case text == "":
		c.err = name + " publishes no key"
	case !c.Address.IsValid():
		c.err = fmt.Sprintf("%s has no IPv%d address in its Node", name, f)
	case !c.Address.IsGlobalUnicast() && !c.Address.IsLinkLocalUnicast():
		c.err = fmt.Sprintf("%s has the address %s in its Node, which is no host's", name, c.Address)
	default:
		if c.Key, err = wireguard.ParseKey(text); err != nil {
			c.err = fmt.Sprintf("%s publishes a bad key: %s", name, err)
		}
	}
	return c
}

// Set takes over a node; nil: it is gone. It reports whether that changes anything.
func (t *Table) Set(name string, n *model.Node) (changed bool) {
	old, known := t.nodes[name]
	var next claim
	if n != nil {
		next = claimOf(name, n, t.family)
	}
	if next == old && known == (n != nil) {
		return false
	}
	delete(t.first, old.Key)
	delete(t.first, next.Key)
	if known {
		if delete(t.owners[old.Key], name); len(t.owners[old.Key]) == 0 {
			delete(t.owners, old.Key)
		}
		if t.hosts[old.Address]--; t.hosts[old.Address] == 0 {
			delete(t.hosts, old.Address)
		}
		delete(t.nodes, name)
	}
	if n == nil {
		return true
	}
	t.nodes[name] = next
	t.hosts[next.Address]++
	if !next.Key.IsZero() {
		if t.owners[next.Key] == nil {
			t.owners[next.Key] = map[string]bool{}
		}
		t.owners[next.Key][name] = true
	}
	return true
}

// isHost reports whether an address is the own one of a node.
func (t *Table) isHost(a netip.Addr) bool { return t.hosts[a] > 0 }

// of returns a node, or why packets to it cannot be encrypted.
func (t *Table) of(name string) (n Node, why string) {
	c, ok := t.nodes[name]
	switch {
	case !ok:
		return Node{}, "there is no node " + name
	case c.err != "":
		return Node{}, c.err
	}
	if first := t.holder(c.Key); first != name {
		return Node{}, fmt.Sprintf("%s and %s publish the same key: the older one, %[1]s, has it", first, name)
	}
	return c.Node, ""
}

// holder returns the node that has a key which several may publish: the one that was created first; the name decides
// between two of one age.
func (t *Table) holder(k wireguard.Key) string {
	if first, known := t.first[k]; known {
		return first
	}
	first := slices.MinFunc(slices.Collect(maps.Keys(t.owners[k])), t.compareAge)
	t.first[k] = first
	return first
}

// compareAge orders nodes by their creation; the name decides between two of one age.
func (t *Table) compareAge(a, b string) int {
	return cmp.Or(t.nodes[a].created.Compare(t.nodes[b].created), cmp.Compare(a, b))
}
