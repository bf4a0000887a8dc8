package route

import (
	"net/netip"
	"strconv"

	"github.com/manxnet/manx/dataplane/kernel"
	"github.com/manxnet/manx/dataplane/prefixtable"
)

// shapes numbers the shapes of routes; 0 is none.
type shapes struct {
	prefixtable.Interned[shapeKey, *shape]
}

// number returns that of a route's shape; r may be nil.
func (s *shapes) number(r *kernel.Route) uint32 {
	if r == nil {
		return 0
	}
	return s.Number(keyOfShape(r), func() *shape {
		x := &shape{*r}
		x.Dst = netip.Prefix{}
		return x
	})
}

// get returns the shape of a number.
func (s *shapes) get(number uint32) *shape { return *s.At(number) }

// equal reports whether two shapes are.
func (s *shapes) equal(a, b uint32) bool {
	return a == b || a != 0 && b != 0 && s.get(a).Equal(s.get(b).Route)
}

// shape is the part that many routes share: all but the prefix.
type shape struct{ kernel.Route }

// shapeKey is the identity of a shape. Two with the same next hops in another order are different, and Equal.
type shapeKey struct {
	metric   uint32
	table    kernel.Table
	protocol kernel.Protocol
	kind     kernel.RouteType
	scope    kernel.Scope
	src      netip.Addr
	mtu      uint32
	hops     int
	hop      kernel.NextHop // the first one
	others   string
}

func keyOfShape(r *kernel.Route) shapeKey {
	k := shapeKey{r.Metric, r.Table, r.Protocol, r.Type, r.Scope, r.Src, r.MTU, len(r.NextHops), kernel.NextHop{}, ""}
	if len(r.NextHops) > 0 {
		k.hop = r.NextHops[0]
	}
	if len(r.NextHops) > 1 {
		var b []byte
		for _, h := range r.NextHops[1:] {
			b = append(strconv.AppendInt(append(h.Gateway.AppendTo(b), ' '), int64(h.Link), 10), ' ')
			b = append(strconv.AppendBool(b, h.OnLink), ' ')
		}
		k.others = string(b)
	}
	return k
}
