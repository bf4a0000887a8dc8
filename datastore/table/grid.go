package table

import (
	"bufio"
	"bytes"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
)

// Grid is a table of text: a heading, and rows with as many cells.
type Grid struct {
	Heading []string
	Rows    [][]string

	colors map[int]func(cell string) Color // by column; nil: none
}

// Color makes the cells of a column stand out.
func (g *Grid) Color(heading string, of func(cell string) Color) {
	if g.colors == nil {
		g.colors = map[int]func(string) Color{}
	}
	g.colors[slices.Index(g.Heading, heading)] = of
}

// Add appends a row.
func (g *Grid) Add(cells ...string) { g.Rows = append(g.Rows, cells) }

// Write prints aligned columns without borders, as kubectl does; heading is set to print the heading, too.
func (g *Grid) Write(w io.Writer, heading bool) error {
	var b bytes.Buffer
	t := tabwriter.NewWriter(&b, 5, 1, 3, ' ', 0)
	if heading {
		g.writeRow(t, g.Heading, true)
	}
	for _, r := range g.Rows {
		g.writeRow(t, r, false)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	return writeTrimmed(w, &b)
}

func (g *Grid) writeRow(w io.Writer, cells []string, heading bool) {
	for i, c := range cells {
		c = OneLine(c)
		if of := g.colors[i]; of != nil && heading {
			c = plain.Paint(c)
		} else if of != nil {
			c = of(c).Paint(c)
		}
		io.WriteString(w, c+"\t") //nolint:errcheck // reported by Flush
	}
	io.WriteString(w, "\n") //nolint:errcheck // reported by Flush
}

func writeTrimmed(w io.Writer, b *bytes.Buffer) error {
	out := bufio.NewWriter(w)
	for line := range strings.Lines(b.String()) {
		if _, err := out.WriteString(strings.TrimRight(line, " \n") + "\n"); err != nil {
			return err
		}
	}
	return out.Flush()
}

// WriteBoxed prints the table with borders, as "calicoctl node status" does.
func (g *Grid) WriteBoxed(w io.Writer) error {
	width := make([]int, len(g.Heading))
	rows := append([][]string{g.Heading}, g.Rows...)
	for _, r := range rows {
		for i, c := range r {
			width[i] = max(width[i], len([]rune(c)))
		}
	}
	var rule strings.Builder
	for _, n := range width {
		rule.WriteString("+" + strings.Repeat("-", n+2))
	}
	rule.WriteString("+\n")

	out := bufio.NewWriter(w)
	out.WriteString(rule.String()) //nolint:errcheck // reported by Flush
	for n, r := range rows {
		for i, c := range r {
			//nolint:errcheck // reported by Flush
			out.WriteString("| " + OneLine(c) + strings.Repeat(" ", width[i]-len([]rune(c))+1))
		}
		out.WriteString("|\n") //nolint:errcheck // reported by Flush
		if n == 0 {
			out.WriteString(rule.String()) //nolint:errcheck // reported by Flush
		}
	}
	out.WriteString(rule.String()) //nolint:errcheck // reported by Flush
	return out.Flush()
}
