package members

import (
	"math/bits"
	"net/netip"
)

// tree holds networks of one family in a binary trie without chains: every node is a network that is in it, or a fork.
type tree struct{ root *node }

type node struct {
	prefix netip.Prefix
	in     bool
	child  [2]*node
}

// insert adds a network. It reports whether another one covers it, and if not, the largest ones inside it.
func (t *tree) insert(p netip.Prefix) (covered bool, below []netip.Prefix) {
	at := &t.root
	for {
		n := *at
		if n == nil {
			*at = &node{prefix: p, in: true}
			return covered, nil
		}
		common := commonBits(n.prefix, p)
		switch {
		case common == n.prefix.Bits() && common == p.Bits(): // the very network
			n.in = true
			if !covered {
				below = largest(n.child[0], largest(n.child[1], nil))
			}
			return covered, below
		case common == n.prefix.Bits(): // inside n
			covered = covered || n.in
			at = &n.child[bit(p.Addr(), common)]
		case common == p.Bits(): // around n
			around := &node{prefix: p, in: true}
			around.child[bit(n.prefix.Addr(), common)] = n
			*at = around
			if !covered {
				below = largest(n, nil)
			}
			return covered, below
		default: // beside n
			fork := &node{prefix: netip.PrefixFrom(p.Addr(), common).Masked()}
			fork.child[bit(n.prefix.Addr(), common)] = n
			fork.child[bit(p.Addr(), common)] = &node{prefix: p, in: true}
			*at = fork
			return covered, nil
		}
	}
}

// delete removes a network that is there. It reports whether another one covers it, and if not, the largest ones inside it.
func (t *tree) delete(p netip.Prefix) (covered bool, below []netip.Prefix) {
	var path []**node
	at := &t.root
	for *at != nil && (*at).prefix != p {
		n := *at
		if commonBits(n.prefix, p) < n.prefix.Bits() || n.prefix.Bits() >= p.Bits() {
			return true, nil // not there: nothing to tell
		}
		covered = covered || n.in
		path = append(path, at)
		at = &n.child[bit(p.Addr(), n.prefix.Bits())]
	}
	if *at == nil || !(*at).in {
		return true, nil
	}
	n := *at
	n.in = false
	if !covered {
		below = largest(n.child[0], largest(n.child[1], nil))
	}
	for path = append(path, at); len(path) > 0 && shrink(path[len(path)-1]); path = path[:len(path)-1] {
	}
	return covered, below
}

// shrink removes a node that is neither a network nor a fork. It reports whether it did.
func shrink(at **node) bool {
	n := *at
	switch {
	case n == nil || n.in || n.child[0] != nil && n.child[1] != nil:
		return false
	case n.child[0] != nil:
		*at = n.child[0]
	default:
		*at = n.child[1]
	}
	return true
}

// largest appends the networks under n that no other one under n covers.
func largest(n *node, list []netip.Prefix) []netip.Prefix {
	switch {
	case n == nil:
		return list
	case n.in:
		return append(list, n.prefix)
	}
	return largest(n.child[1], largest(n.child[0], list))
}

// commonBits is how many leading bits two networks of one family have in common, at most the shorter one's length.
func commonBits(a, b netip.Prefix) int {
	limit := min(a.Bits(), b.Bits())
	if a.Addr().Is4() {
		x, y := a.Addr().As4(), b.Addr().As4()
		return min(limit, leading(x[:], y[:]))
	}
	x, y := a.Addr().As16(), b.Addr().As16()
	return min(limit, leading(x[:], y[:]))
}

func leading(a, b []byte) int {
	for i := range a {
		if d := a[i] ^ b[i]; d != 0 {
			return 8*i + bits.LeadingZeros8(d)
		}
	}
	return 8 * len(a)
}

// bit is the bit after the first n.
func bit(a netip.Addr, n int) int {
	if a.Is4() {
		x := a.As4()
		return int(x[n/8]>>(7-n%8)) & 1
	}
	x := a.As16()
	return int(x[n/8]>>(7-n%8)) & 1
}
