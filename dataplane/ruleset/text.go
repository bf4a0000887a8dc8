package ruleset

import (
	"bufio"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
)

// TextOptions selects the parts that Text renders.
type TextOptions struct {
	Name     string // of the table; "manx" if empty
	Elements int    // how many of a set's or map's elements to render at most; 0 for all
	IDs      bool   // with the rules' IDs in their comments, as the kernel keeps them
}

// Text renders the whole table for people: sets, maps, base chains in the order of hooks and priority, then the other
// chains by name. nft can load the text if it accepts all names and comments. The error is that of w.
func (t *Table) Text(w io.Writer, o TextOptions) error {
	p := printer{Writer: bufio.NewWriter(w), options: o}
	if o.Name == "" {
		o.Name = "manx"
	}
	p.line(0, "table inet %s {", printable(o.Name))
	for _, name := range countersOf(maps.Values(t.chains)) {
		p.counter(name)
	}
	for _, name := range t.Sets() {
		p.set(t.sets[name])
	}
	for _, name := range t.Maps() {
		p.verdictMap(t.maps[name])
	}
	for _, list := range t.hooked {
		for _, c := range list {
			p.chain(c)
		}
	}
	for _, name := range t.Chains() {
		if c := t.chains[name]; c.Base == nil {
			p.chain(c)
		}
	}
	p.line(0, "}")
	return p.Flush()
}

type printer struct {
	*bufio.Writer
	options TextOptions
	blocks  int
}

// next separates the following part from the one before.
func (p *printer) next() {
	if p.blocks++; p.blocks > 1 {
		p.WriteByte('\n')
	}
}

func (p *printer) line(depth int, format string, args ...any) {
	p.WriteString(strings.Repeat("\t", depth))
	fmt.Fprintf(p, format, args...)
	p.WriteByte('\n')
}

var setTypes = [...]string{Addresses4: "ipv4_addr", Addresses6: "ipv6_addr", Ports: "inet_service",
	Endpoints4: "ipv4_addr . inet_proto . inet_service", Endpoints6: "ipv6_addr . inet_proto . inet_service"}

// counter is there for rules to name it.
func (p *printer) counter(name string) {
	p.next()
	p.line(1, "counter %s {", printable(name))
	p.line(1, "}")
}

func (p *printer) set(s *setState) {
	p.next()
	p.about(s.Comment, s.elements.len(), "element")
	p.line(1, "set %s {", printable(s.Name))
	if int(s.Type) < len(setTypes) {
		p.line(2, "type %s", setTypes[s.Type])
	}
	if s.Interval || s.Type == Ports {
		p.line(2, "flags interval")
	}
	list := sortedElements(s.elements.all)
	texts, more := bounded(list, p.options.Elements)
	p.elements(mapSlice(texts, func(e Element) string { return e.text(s.Type) }), more)
	p.line(1, "}")
}

func (p *printer) verdictMap(m *mapState) {
	p.next()
	p.about(m.Comment, len(m.elements), "interface")
	p.line(1, "map %s {", printable(m.Name))
	p.line(2, "type ifname : verdict")
	names := make([]string, 0, len(m.elements))
	for name := range m.elements {
		names = append(names, name)
	}
	slices.Sort(names)
	names, more := bounded(names, p.options.Elements)
	p.elements(mapSlice(names, func(name string) string { return quoted(name) + " : " + m.elements[name].text() }),
		more)
	p.line(1, "}")
}

func mapSlice[A, B any](list []A, f func(A) B) []B {
	out := make([]B, len(list))
	for i, a := range list {
		out[i] = f(a)
	}
	return out
}

// about is a line for people: nft would not take every selector as a comment of its own.
func (p *printer) about(comment string, n int, what string) {
	if n != 1 {
		what += "s"
	}
	if comment != "" {
		p.line(1, "# %s: %s %s", clean(comment), thousands(n), what)
	} else {
		p.line(1, "# %s %s", thousands(n), what)
	}
}

func bounded[T any](list []T, n int) (first []T, more int) {
	if n > 0 && len(list) > n {
		return list[:n], len(list) - n
	}
	return list, 0
}

// lineWidth is where lines of elements are broken.
const lineWidth = 100

func (p *printer) elements(texts []string, more int) {
	if len(texts) == 0 {
		return
	}
	p.WriteString("\t\telements = { ")
	width := 0
	for i, text := range texts {
		switch {
		case i == 0:
		case width+len(text) > lineWidth:
			p.WriteString(",\n\t\t\t")
			width = 0
		default:
			p.WriteString(", ")
		}
		p.WriteString(text)
		width += len(text) + 2
	}
	if more > 0 {
		fmt.Fprintf(p, " } # ... %s more\n", thousands(more))
	} else {
		p.WriteString(" }\n")
	}
}

var chainTypes = [...]string{Filter: "filter", NAT: "nat"}

func (p *printer) chain(c *Chain) {
	p.next()
	p.line(1, "chain %s {", printable(c.Name))
	if b := c.Base; b != nil {
		kind := "?"
		if int(b.Type) < len(chainTypes) {
			kind = chainTypes[b.Type]
		}
		p.line(2, "type %s hook %s priority %d; policy accept;", kind, b.Hook, b.Priority)
	}
	for _, r := range c.Rules {
		if p.options.IDs {
			r.Comment = strings.TrimSpace(r.Comment + " #" + r.ID())
		}
		p.line(2, "%s", r)
	}
	p.line(1, "}")
}
