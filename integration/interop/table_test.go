package interop

import (
	"flag"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
)

var write = flag.Bool("write-table", false, "write the table into docs/interoperability.md")

const (
	document    = "../../docs/interoperability.md"
	tableHead   = "<!-- interoperability table -->\n"
	tableEnd    = "<!-- end of the table -->\n"
	passed      = "yes"
	failed      = "**no**"
	none        = "–" // the router lacks the feature
	tableLegend = "Written by `make interop` from its tests: Manx beside\n%s.\n\n"
)

// table is the result for the documentation.
func table(results map[string]map[string]string) string {
	var b strings.Builder
	b.WriteString("| |")
	for _, m := range makers {
		fmt.Fprintf(&b, " %s |", m.name)
	}
	b.WriteString("\n|---|" + strings.Repeat("---|", len(makers)) + "\n")
	for _, c := range cells {
		fmt.Fprintf(&b, "| %s |", c.name)
		for _, m := range makers {
			fmt.Fprintf(&b, " %s |", results[m.name][c.name])
		}
		b.WriteString("\n")
	}
	b.WriteString("\n–: the router lacks the feature.\n\n")
	for _, m := range makers {
		for _, c := range cells {
			if reason := m.lacks[c.name]; reason != "" {
				fmt.Fprintf(&b, "- %s, %s: it %s.\n", m.name, c.name, reason)
			}
		}
	}
	return b.String()
}

func versions() string {
	version := regexp.MustCompile(`\d+\.\d+(\.\d+)?`)
	return fmt.Sprintf("BIRD %s, FRR %s, GoBGP %s, OpenBGPD %s and ExaBGP %s",
		version.FindString(run("bird", "--version")), version.FindString(run(frrFolder+"bgpd", "--version")),
		version.FindString(run("gobgpd", "--version")), version.FindString(run("bgpd", "-V")),
		version.FindString(run("exabgp", "--version")))
}

func split(t *testing.T) (before, between, after string) {
	t.Helper()
	b, err := os.ReadFile(document)
	must(t, err)
	before, rest, ok := strings.Cut(string(b), tableHead)
	between, after, ok2 := strings.Cut(rest, tableEnd)
	if !ok || !ok2 {
		t.Fatalf("%s has no marks %q and %q", document, tableHead, tableEnd)
	}
	return before, between, after
}

// writeTable writes the table into the documentation, if it is requested and every cell was tested.
func writeTable(t *testing.T, results map[string]map[string]string) {
	for _, m := range makers {
		if !*write || len(results[m.name]) < len(cells) {
			return
		}
	}
	before, _, after := split(t)
	text := before + tableHead + fmt.Sprintf(tableLegend, versions()) + table(results) + tableEnd + after
	must(t, os.WriteFile(document, []byte(text), 0o644))
}

// TestTableInTheDocumentation checks that the published table has the tested cells, and the results of the last run
// that wrote it.
func TestTableInTheDocumentation(t *testing.T) {
	all := map[string]map[string]string{}
	for _, m := range makers {
		all[m.name] = map[string]string{}
		for _, c := range cells {
			all[m.name][c.name] = passed
			if m.lacks[c.name] != "" {
				all[m.name][c.name] = none
			}
		}
	}
	_, between, _ := split(t)
	if want := table(all); !strings.HasSuffix(strings.ReplaceAll(between, failed, passed), want) {
		t.Errorf("the table of %s has not the cells of this test; `make interop` writes it anew:\n%s", document,
			between)
	}
}
