package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/manxnet/manx/datastore/table"
)

// colorMode is the flag --color.
type colorMode string

var colorModes = []string{"auto", "always", "never"}

func (m *colorMode) String() string { return string(*m) }
func (m *colorMode) Type() string   { return "WHEN" }

func (m *colorMode) Set(text string) error {
	if !slices.Contains(colorModes, text) {
		return fmt.Errorf("want %s", oneOf(colorModes))
	}
	*m = colorMode(text)
	return nil
}

func (c *cli) addColorFlag(root *cobra.Command) {
	c.color = "auto"
	root.PersistentFlags().Var(&c.color, "color", "color states and verdicts: auto (on a terminal, unless NO_COLOR is "+
		"set), always or never")
	_ = root.RegisterFlagCompletionFunc("color", cobra.FixedCompletions(colorModes, cobra.ShellCompDirectiveNoFileComp))
}

// colored reports whether the output has colors (https://no-color.org).
func (c *cli) colored() bool {
	switch c.color {
	case "always":
		return true
	case "auto":
		return c.env("NO_COLOR") == "" && c.env("TERM") != "dumb" && isTerminal(c.out)
	}
	return false
}

// colorPhases colors the phases of sessions.
func (c *cli) colorPhases(g *table.Grid) *table.Grid {
	if c.colored() {
		g.Color("PHASE", func(phase string) table.Color {
			switch phase {
			case established:
				return table.Good
			case "Connecting", "Waiting":
				return table.Doubt
			}
			return table.Bad // also of a node that did not answer
		})
	}
	return g
}

// verdicts are how lines of a text begin that stand out, with their colors. No text of others begins a line.
var verdicts = []struct {
	begin string
	color table.Color
}{
	{"ALLOWED", table.Good}, {"DENIED", table.Bad}, {"BUT DROPPED", table.Bad}, {"BUT PERHAPS DROPPED", table.Doubt},
	{"Health:     ok", table.Good}, {"Health:", table.Bad}, {"Notice:", table.Doubt},
}

// colorVerdicts colors the lines of a text that have a verdict.
func (c *cli) colorVerdicts(text string) string {
	if !c.colored() {
		return text
	}
	var b strings.Builder
	for line := range strings.Lines(text) {
		words := strings.TrimSuffix(line, "\n")
		for _, v := range verdicts {
			if strings.HasPrefix(words, v.begin) {
				line = v.color.Paint(words) + line[len(words):]
				break
			}
		}
		b.WriteString(line)
	}
	return b.String()
}
