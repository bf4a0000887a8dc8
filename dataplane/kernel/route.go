package kernel

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Protocol is the origin of a route (rtm_protocol of rtnetlink(7)).
type Protocol uint8

// The protocols that matter to Manx. ProtocolBIRD and ProtocolCalico are those that BIRD and Felix of calico/node
// write.
const (
	ProtocolRedirect Protocol = 1
	ProtocolKernel   Protocol = 2
	ProtocolBoot     Protocol = 3
	ProtocolStatic   Protocol = 4
	ProtocolRA       Protocol = 9
	ProtocolBIRD     Protocol = 12
	ProtocolCalico   Protocol = 80
)

func (p Protocol) String() string {
	switch p {
	case ProtocolKernel:
		return "kernel"
	case ProtocolBoot:
		return "boot"
	case ProtocolStatic:
		return "static"
	case ProtocolBIRD:
		return "bird"
	}
	return fmt.Sprint(uint8(p))
}

// RouteType is the action on packets that match a route (rtm_type of rtnetlink(7)).
type RouteType uint8

// The types that tables hold in practice.
const (
	Unicast     RouteType = 1
	Blackhole   RouteType = 6
	Unreachable RouteType = 7
	Prohibit    RouteType = 8
	Throw       RouteType = 9
)

func (t RouteType) String() string {
	switch t {
	case Unicast:
		return "unicast"
	case Blackhole:
		return "blackhole"
	case Unreachable:
		return "unreachable"
	case Prohibit:
		return "prohibit"
	case Throw:
		return "throw"
	}
	return fmt.Sprintf("type %d", uint8(t))
}

// Scope is the distance of an IPv4 route's destination (rtm_scope of rtnetlink(7)). IPv6 routes always have
// ScopeUniverse.
type Scope uint8

// The scopes of routes to other hosts and to neighbours.
const (
	ScopeUniverse Scope = 0
	ScopeLink     Scope = 253
)

// NextHop is one way of a route.
type NextHop struct {
	// Gateway is invalid for a route to neighbours on the link itself.
	Gateway netip.Addr
	// Link is the index of the interface.
	Link int
	// OnLink takes the gateway as a neighbour on the link even if no route leads to it.
	OnLink bool
}

// RouteMetric6 is the metric that the kernel gives to IPv6 routes that come without one.
const RouteMetric6 = 1024

// Table is a routing table, by its number in rtnetlink(7), of both IPv4 and IPv6. The zero value is main, which has no
// second value: see TableOf.
type Table uint32

// MainTable is the table in use unless a rule selects another.
const MainTable Table = 0

// TableOf returns the table of a number.
func TableOf(number uint32) Table {
	if number == unix.RT_TABLE_MAIN {
		return MainTable
	}
	return Table(number)
}

func (t Table) number() uint32 {
	if t == MainTable {
		return unix.RT_TABLE_MAIN
	}
	return uint32(t)
}

// String names the table as ip(8) does.
func (t Table) String() string {
	if t == MainTable {
		return "main"
	}
	return fmt.Sprint(uint32(t))
}

// OrMain is the set of tables that a caller names: main if it names none.
func OrMain(tables []Table) []Table {
	if len(tables) == 0 {
		return []Table{MainTable}
	}
	return tables
}

// Route is one route. Compare with Equal; the slice of next hops is never changed in place.
type Route struct {
	Dst      netip.Prefix
	Metric   uint32
	Table    Table
	MTU      uint32 // of packets that take it, in bytes; 0: that of the interface
	Protocol Protocol
	Type     RouteType
	Scope    Scope
	Src      netip.Addr // preferred source address, invalid for none
	NextHops []NextHop  // several: ECMP. None unless Type is Unicast.
}

// RouteKey is the kernel's identity of a route.
type RouteKey struct {
	Dst    netip.Prefix
	Metric uint32
	Table  Table
}

// String names the route as ip(8) does.
func (k RouteKey) String() string {
	text := k.Dst.String()
	if k.Table != MainTable {
		text += fmt.Sprintf(" table %s", k.Table)
	}
	if k.Metric != 0 {
		text += fmt.Sprintf(" metric %d", k.Metric)
	}
	return text
}

// Key returns the kernel's identity of r.
func (r Route) Key() RouteKey { return RouteKey{Dst: r.Dst, Metric: r.Metric, Table: r.Table} }

// Place names the prefix and the table of r, for messages.
func (r Route) Place() string { return RouteKey{Dst: r.Dst, Table: r.Table}.String() }

// Equal reports whether both are the same route. The order of next hops has no meaning.
func (r Route) Equal(o Route) bool {
	return r.Dst == o.Dst && r.Metric == o.Metric && r.Table == o.Table && r.Protocol == o.Protocol &&
		r.Type == o.Type &&
		r.Scope == o.Scope && r.Src == o.Src && r.MTU == o.MTU && sameHops(r.NextHops, o.NextHops)
}

func sameHops(a, b []NextHop) bool {
	if len(a) != len(b) {
		return false
	}
	if slices.Equal(a, b) {
		return true
	}
	for _, h := range a {
		if !slices.Contains(b, h) {
			return false
		}
	}
	return true
}

// String writes r as ip(8) does, with interface indexes in place of names.
func (r Route) String() string {
	return r.Text(func(link int) string { return fmt.Sprintf("#%d", link) })
}

// Text writes r as ip(8) does; name turns an index into an interface name.
func (r Route) Text(name func(link int) string) string {
	var b strings.Builder
	if r.Type != Unicast {
		fmt.Fprintf(&b, "%s ", r.Type)
	}
	fmt.Fprint(&b, r.Dst)
	for _, h := range r.NextHops {
		if len(r.NextHops) > 1 {
			b.WriteString(" nexthop")
		}
		if h.Gateway.IsValid() {
			fmt.Fprintf(&b, " via %s", h.Gateway)
		}
		fmt.Fprintf(&b, " dev %s", name(h.Link))
		if h.OnLink {
			b.WriteString(" onlink")
		}
	}
	if r.Table != MainTable {
		fmt.Fprintf(&b, " table %s", r.Table)
	}
	fmt.Fprintf(&b, " proto %s", r.Protocol)
	if r.Scope == ScopeLink {
		b.WriteString(" scope link")
	}
	if r.Src.IsValid() {
		fmt.Fprintf(&b, " src %s", r.Src)
	}
	if r.Metric != 0 {
		fmt.Fprintf(&b, " metric %d", r.Metric)
	}
	if r.MTU != 0 {
		fmt.Fprintf(&b, " mtu %d", r.MTU)
	}
	return b.String()
}

// RouteVerb is the change to make to a route.
type RouteVerb uint8

const (
	// AddRoute fails with an error that Is unix.EEXIST if there is a route with the key, of any owner.
	AddRoute RouteVerb = iota + 1
	// ReplaceRoute overwrites the route with the key, of any owner, or adds it.
	ReplaceRoute
	// DeleteRoute removes the route with the key, protocol and type. Absence is no error.
	DeleteRoute
)

func (v RouteVerb) String() string {
	return [...]string{"", "add", "replace", "delete"}[v]
}

// RouteOp is one change of a table.
type RouteOp struct {
	Verb  RouteVerb
	Route Route
}
