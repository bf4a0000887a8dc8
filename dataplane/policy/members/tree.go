package members

import (
	"math/bits"
	"slices"
)

// address is left-aligned: an IPv4 address is the first 32 of the 128 bits.
type address struct{ hi, lo uint64 }

// bit is the bit after the first n.
func (a address) bit(n uint8) int {
	if n < 64 {
		return int(a.hi>>(63-n)) & 1
	}
	return int(a.lo>>(127-n)) & 1
}

// network is an address and how many of its bits count; the others are zero.
type network struct {
	address
	length uint8
}

func (n network) masked() network {
	if n.length < 64 {
		n.hi, n.lo = n.hi&^(^uint64(0)>>n.length), 0
	} else {
		n.lo &^= ^uint64(0) >> (n.length - 64)
	}
	return n
}

// common returns how many leading bits two networks share, at most the shorter one's length.
func (n network) common(o network) uint8 {
	same := bits.LeadingZeros64(n.hi ^ o.hi)
	if same == 64 {
		same += bits.LeadingZeros64(n.lo ^ o.lo)
	}
	return min(n.length, o.length, uint8(same))
}

// tree holds networks of one family in a binary trie without chains: every node is a network that is in it, or a fork.
// Nodes name each other by number, 0 for none, and have no pointers.
type tree struct {
	nodes    []node
	root     uint32
	free     uint32 // the first unused node; child[0] leads to the next
	networks int
}

type node struct {
	network
	count int32 // contributions of the very network; 0 for a fork
	child [2]uint32
}

// insert counts a network. It returns its node and whether it comes to be visible: it was not there, and no other
// covers it.
func (t *tree) insert(n network) (at uint32, visible bool) {
	t.reserve()
	visible = true
	link := &t.root
	for *link != 0 {
		here := &t.nodes[*link]
		common := here.common(n)
		if common < here.length {
			return t.fork(link, n, common), visible
		}
		if here.length == n.length {
			here.count++
			if here.count == 1 {
				t.networks++
			}
			return *link, visible && here.count == 1
		}
		visible = visible && here.count == 0
		link = &here.child[n.bit(common)]
	}
	*link = t.leaf(n)
	return *link, visible
}

// fork puts a network around the node of a link, or beside it when only the first common bits are the same.
func (t *tree) fork(link *uint32, n network, common uint8) uint32 {
	old, made := *link, t.leaf(n)
	side := t.nodes[old].bit(common)
	if common == n.length {
		*link = made
		t.nodes[made].child[side] = old
		return made
	}
	*link = t.take(network{n.address, common}.masked(), 0)
	t.nodes[*link].child[side] = old
	t.nodes[*link].child[1-side] = made
	return made
}

// reserve makes room for two more nodes without moving the others, as links point into them.
func (t *tree) reserve() {
	if len(t.nodes) == 0 {
		t.nodes = append(t.nodes, node{})
	}
	t.nodes = slices.Grow(t.nodes, 2)
}

func (t *tree) leaf(n network) uint32 {
	t.networks++
	return t.take(n, 1)
}

func (t *tree) take(n network, count int32) uint32 {
	at := t.free
	if at == 0 {
		t.nodes = append(t.nodes, node{})
		at = uint32(len(t.nodes) - 1)
	} else {
		t.free = t.nodes[at].child[0]
	}
	t.nodes[at] = node{network: n, count: count}
	return at
}

// delete counts a network one less. If that was the last one and no other covers it, gone is called, and uncovered for
// each of the largest networks inside it.
func (t *tree) delete(n network, gone func(), uncovered func(network)) {
	visible := true
	link, above := &t.root, (*uint32)(nil)
	for *link != 0 {
		here := &t.nodes[*link]
		if here.common(n) < here.length {
			return
		}
		if here.length == n.length {
			break
		}
		visible = visible && here.count == 0
		above, link = link, &here.child[n.bit(here.length)]
	}
	if *link == 0 || t.nodes[*link].count == 0 {
		return
	}
	t.nodes[*link].count--
	if t.nodes[*link].count > 0 {
		return
	}
	t.networks--
	if visible {
		gone()
		t.below(*link, uncovered)
	}
	t.shrink(link)
	if above != nil {
		t.shrink(above)
	}
	if t.networks == 0 {
		*t = tree{}
	}
}

// shrink removes the node of a link if it is neither a network nor a fork.
func (t *tree) shrink(link *uint32) {
	at := *link
	if at == 0 || t.nodes[at].count > 0 {
		return
	}
	child := t.nodes[at].child
	if child[0] != 0 && child[1] != 0 {
		return
	}
	*link = child[0] | child[1]
	t.nodes[at] = node{child: [2]uint32{t.free, 0}}
	t.free = at
}

// below visits the networks inside that of a node which no other one inside it covers.
func (t *tree) below(at uint32, visit func(network)) {
	for _, child := range t.nodes[at].child {
		switch {
		case child == 0:
		case t.nodes[child].count > 0:
			visit(t.nodes[child].network)
		default:
			t.below(child, visit)
		}
	}
}
