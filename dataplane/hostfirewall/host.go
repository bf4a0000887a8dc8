package hostfirewall

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Host describes the packets of a node.
type Host struct {
	Workloads []Workload
	// Uplinks are the interfaces to other nodes.
	Uplinks []string
	// Pools are those of the addresses of workloads.
	Pools []netip.Prefix
	// Local are packets that the node itself sends or gets, and cannot do without.
	Local []LocalPackets
	// Marks are the bits of the mark that packets of workloads may have; 0: Calico's standard ones.
	Marks uint32
}

// Workload is one workload of the node.
type Workload struct {
	Interface string
	Addresses []netip.Addr
}

// LocalPackets are packets of the node itself.
type LocalPackets struct {
	What   string // "BGP from 10.0.0.1"
	Packet Packet
}

// Finding is a base chain of another program that drops packets which policy allows.
type Finding struct {
	Dropped
	// Packets are those that are dropped: "from workloads to other nodes through eth0".
	Packets []string
}

// Subject names the chain.
func (f Finding) Subject() string { return fmt.Sprintf("table %s, chain %s", f.Table, f.Chain) }

// String describes the finding, for people.
func (f Finding) String() string {
	verb := "drops"
	if !f.Certain {
		verb = "may drop"
	}
	text := fmt.Sprintf("%s packets that policy allows: %s (hook %s, %s)", verb, strings.Join(f.Packets, "; "), f.Hook,
		f.By)
	if len(f.Except) > 0 {
		text += "; before it, these rules accept some of them, or may do so: " + strings.Join(f.Except, "; ")
	}
	return text
}

// Bounds of what is evaluated and reported.
const (
	mostFindings   = 20
	mostDirections = 8 // in the text of one
	mostWorkloads  = 500
	mostPools      = 16
)

// Find returns the chains that drop packets between workloads, of workloads to and from other nodes, and of the node
// itself. One whose rules drop some of these packets alone is no finding: it has a purpose.
func Find(tables []*Table, h Host) []Finding {
	f := finder{tables: tables, marks: h.Marks}
	workloads := h.Workloads[:min(len(h.Workloads), mostWorkloads)]
	for _, pool := range h.Pools[:min(len(h.Pools), mostPools)] {
		for _, uplink := range h.Uplinks {
			for _, w := range workloads {
				f.transit(w, pool, uplink)
			}
		}
	}
	for i, w := range workloads {
		f.between(w, workloads[(i+1)%len(workloads)])
	}
	for _, l := range h.Local {
		f.add(l.Packet, l.What, "")
	}
	return f.results(len(workloads))
}

type finder struct {
	tables []*Table
	marks  uint32
	found  []*found
}

// found is a finding in the making.
type found struct {
	Dropped
	packets []*packets
}

// packets are those of one direction that are dropped.
type packets struct {
	what       string
	interfaces []string // of the workloads; none: of the node itself
}

// transit evaluates the packets between a workload and the workloads of other nodes, in both directions.
func (f *finder) transit(w Workload, pool netip.Prefix, uplink string) {
	here, there := Interface{Name: w.Interface}, Interface{Name: uplink}
	for _, a := range w.Addresses {
		if a.Is4() == pool.Addr().Is4() {
			f.add(Packet{In: here, Out: there, Source: single(a), Destination: pool},
				"to other nodes through "+uplink, w.Interface)
			f.add(Packet{In: there, Out: here, Source: pool, Destination: single(a)},
				"from other nodes through "+uplink, w.Interface)
		}
	}
}

// between evaluates the packets from one workload to another.
func (f *finder) between(from, to Workload) {
	if from.Interface == to.Interface {
		return
	}
	for _, a := range from.Addresses {
		for _, b := range to.Addresses {
			if a.Is4() == b.Is4() {
				f.add(Packet{In: Interface{Name: from.Interface}, Out: Interface{Name: to.Interface}, Source: single(a),
					Destination: single(b)}, "to other workloads of this node", from.Interface)
			}
		}
	}
}

func single(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

// add evaluates new connections of packets, unless they have another state.
func (f *finder) add(p Packet, what, iface string) {
	p.State, p.Marks = cmp.Or(p.State, StateNew), f.marks
	dropped, _ := Judge(f.tables, p)
	for _, d := range dropped {
		i := slices.IndexFunc(f.found, func(x *found) bool {
			return x.Table == d.Table && x.Chain == d.Chain && x.By == d.By && x.Certain == d.Certain
		})
		if i < 0 {
			if len(f.found) == mostFindings {
				return
			}
			i, f.found = len(f.found), append(f.found, &found{Dropped: d})
		}
		f.found[i].add(what, iface)
	}
}

func (x *found) add(what, iface string) {
	i := slices.IndexFunc(x.packets, func(p *packets) bool { return p.what == what })
	if i < 0 {
		i, x.packets = len(x.packets), append(x.packets, &packets{what: what})
	}
	if p := x.packets[i]; iface != "" && !slices.Contains(p.interfaces, iface) {
		p.interfaces = append(p.interfaces, iface)
	}
}

func (f *finder) results(workloads int) (list []Finding) {
	for _, x := range f.found {
		r := Finding{Dropped: x.Dropped}
		for _, p := range x.packets[:min(len(x.packets), mostDirections)] {
			r.Packets = append(r.Packets, p.text(workloads))
		}
		if more := len(x.packets) - mostDirections; more > 0 {
			r.Packets = append(r.Packets, fmt.Sprintf("%d more kinds of packets", more))
		}
		list = append(list, r)
	}
	return list
}

// text describes the packets, with the workloads if not all are concerned.
func (p *packets) text(workloads int) string {
	const most = 3
	n := len(p.interfaces)
	switch {
	case n == 0:
		return p.what
	case n == workloads:
		return "of workloads, " + p.what
	case n > most:
		return fmt.Sprintf("of %s and %d more workloads, %s", strings.Join(p.interfaces[:most], ", "), n-most, p.what)
	}
	return fmt.Sprintf("of %s, %s", strings.Join(p.interfaces, ", "), p.what)
}
