package plan

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/manxnet/manx/datastore/table"
)

// WriteText writes the plan for people.
func (p Plan) WriteText(w io.Writer) error {
	var b strings.Builder
	table.Fprintf(&b, "Node %s: AS %d, router ID %s, port %d\n", p.Node, p.BGP.LocalAS, p.BGP.RouterID,
		p.BGP.ListenPort)
	section(&b, "Sessions", len(p.BGP.Sessions), p.sessionGrid())
	if len(p.BGP.Conflicts) > 0 {
		section(&b, "Conflicts", len(p.BGP.Conflicts), p.conflictGrid())
	}
	section(&b, "Originated", len(p.BGP.Originated), p.originGrid())
	section(&b, "Exports", len(p.BGP.Exports), p.exportGrid())
	_, err := io.WriteString(w, b.String())
	return err
}

func section(b *strings.Builder, title string, rows int, g *table.Grid) {
	fmt.Fprintf(b, "\n%s:", title)
	if rows == 0 {
		b.WriteString(" none\n")
		return
	}
	b.WriteString("\n")
	_ = g.Write(b, true) // a Builder never fails
}

func (p Plan) sessionGrid() *table.Grid {
	g := &table.Grid{Heading: []string{"PEER", "PORT", "TYPE", "LOCAL AS", "PEER AS", "ROLE", "OPTIONS", "FROM"}}
	for _, s := range p.BGP.Sessions {
		role := "connects"
		if s.Passive {
			role = "waits"
		}
		g.Add(s.Address, itoa(s.Port), s.Type, itoa(s.LocalAS), itoa(s.PeerAS), role, orDash(s.options()),
			strings.Join(s.From, " "))
	}
	return g
}

// options returns the settings other than the defaults.
func (s Session) options() []string {
	var list []string
	add := func(unusual bool, format string, args ...any) {
		if unusual {
			list = append(list, fmt.Sprintf(format, args...))
		}
	}
	add(s.ReflectorClient, "reflector client")
	add(s.Password != "none", "password %s", s.Password)
	add(s.SourceAddress == "", "any source address")
	add(s.TTLSecurity != 0, "TTL security %d", s.TTLSecurity)
	add(s.RestartSeconds != 120, "restart %ds", s.RestartSeconds)
	add(s.KeepaliveSeconds != 0, "keepalive %ds", s.KeepaliveSeconds)
	add(s.AllowOwnAS != 0, "own AS allowed %d times", s.AllowOwnAS)
	add(s.NextHop != "auto", "next hop %s", s.NextHop)
	add(len(s.Filters) > 0, "filters %s", strings.Join(s.Filters, " "))
	return list
}

func (p Plan) conflictGrid() *table.Grid {
	g := &table.Grid{Heading: []string{"PEER", "KEPT", "DROPPED", "REASON"}}
	for _, c := range p.BGP.Conflicts {
		g.Add(c.Address, c.Kept, strings.Join(c.Dropped, " "), c.Reason)
	}
	return g
}

func (p Plan) originGrid() *table.Grid {
	g := &table.Grid{Heading: []string{"PREFIX", "COMMUNITIES", "BLACKHOLE", "SENT TO"}}
	for _, o := range p.BGP.Originated {
		to := 0
		for _, list := range p.BGP.Exports {
			if slices.Contains(list, o.Prefix) {
				to++
			}
		}
		hole := "no"
		if o.Blackhole {
			hole = "yes"
		}
		peers := fmt.Sprintf("%d peers", to)
		if to == 1 {
			peers = "1 peer"
		}
		g.Add(o.Prefix, orDash(o.Communities), hole, peers)
	}
	return g
}

func (p Plan) exportGrid() *table.Grid {
	g := &table.Grid{Heading: []string{"PEER", "PREFIXES"}}
	for _, s := range p.BGP.Sessions {
		g.Add(s.Address, orDash(p.BGP.Exports[s.Address]))
	}
	return g
}

func orDash(list []string) string {
	if len(list) == 0 {
		return "-"
	}
	return strings.Join(list, ", ")
}

func itoa[T uint16 | uint32](n T) string { return strconv.FormatUint(uint64(n), 10) }
