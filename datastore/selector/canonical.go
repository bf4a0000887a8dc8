package selector

import (
	"strings"
)

func canonical(n Node) string {
	var b strings.Builder
	n.appendTo(&b)
	return b.String()
}

func (All) appendTo(b *strings.Builder)    { b.WriteString("all()") }
func (Global) appendTo(b *strings.Builder) { b.WriteString("global()") }

func (n Has) appendTo(b *strings.Builder) {
	b.WriteString("has(")
	b.WriteString(n.Label)
	b.WriteByte(')')
}

func (n Comparison) appendTo(b *strings.Builder) {
	b.WriteString(n.Label)
	b.WriteByte(' ')
	b.WriteString(string(n.Op))
	b.WriteByte(' ')
	appendQuoted(b, n.Value)
}

func (n In) appendTo(b *strings.Builder) {
	b.WriteString(n.Label)
	if n.Not {
		b.WriteString(" not")
	}
	b.WriteString(" in {")
	for i, v := range n.Values {
		if i > 0 {
			b.WriteString(", ")
		}
		appendQuoted(b, v)
	}
	b.WriteByte('}')
}

func (n Not) appendTo(b *strings.Builder) {
	b.WriteByte('!')
	n.Operand.appendTo(b)
}

func (n And) appendTo(b *strings.Builder) { appendJoined(b, n.Operands, " && ") }
func (n Or) appendTo(b *strings.Builder)  { appendJoined(b, n.Operands, " || ") }

func appendJoined(b *strings.Builder, operands []Node, operator string) {
	b.WriteByte('(')
	for i, o := range operands {
		if i > 0 {
			b.WriteString(operator)
		}
		o.appendTo(b)
	}
	b.WriteByte(')')
}

// appendQuoted uses the quote that the value does not contain; it cannot contain both.
func appendQuoted(b *strings.Builder, value string) {
	quote := byte('"')
	if strings.Contains(value, `"`) {
		quote = '\''
	}
	b.WriteByte(quote)
	b.WriteString(value)
	b.WriteByte(quote)
}
