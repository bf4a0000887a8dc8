package settings

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/manxnet/manx/datastore/felixconfig"
)

var write = flag.Bool("write-table", false, "write the tables into docs/calico-settings.md")

const (
	page  = "../../docs/calico-settings.md"
	begin = "<!-- The tables are written by: go test ./datastore/settings -run Page -write-table -->\n"
)

// TestPage: the page for users has the whole table; -write-table corrects it.
func TestPage(t *testing.T) {
	raw, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	head, _, ok := strings.Cut(string(raw), begin)
	want := head + begin + tables()
	if ok && want == string(raw) {
		return
	}
	if !*write || !ok {
		t.Fatalf("%s has other tables: go test ./datastore/settings -run Page -write-table", page)
	}
	if err := os.WriteFile(page, []byte(want), 0o644); err != nil {
		t.Fatal(err)
	}
}

func tables() string {
	var b strings.Builder
	section := func(title, column string, groups []group, name func(string) string) {
		fmt.Fprintf(&b, "\n## %s\n\n| %s | in Manx | |\n|---|---|---|\n", title, column)
		for _, g := range groups {
			fmt.Fprintf(&b, "| %s | %s | %s |\n", g.list(name), g.answer(), g.text)
		}
	}
	plain := func(s string) string { return s }
	section("FelixConfiguration, FELIX_* and felix.cfg", "field, or parameter without a field", felix, withVariable)
	section("Environment of calico/node", "variable", variables, plain)
	section("CNI configuration", "key", netconf, plain)
	section("Annotations", "annotation", annotations, plain)
	section("Other kinds", "kind", kinds, plain)
	section("Other programs of the host", "name", host, plain)
	b.WriteString("\n## Fields of the other kinds\n\n" +
		"| kind, or part of several | fields | in Manx | |\n|---|---|---|---|\n")
	for _, f := range fields {
		for _, g := range f.groups {
			fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", f.typ, g.list(plain), g.answer(), g.text)
		}
	}
	return b.String()
}

// list has the names of a group for the page.
func (g group) list(name func(string) string) string {
	var words []string
	for _, r := range g.rows("") {
		words = append(words, "`"+name(r.Name)+"`"+closing(name(r.Name)))
	}
	return strings.Join(words, ", ")
}

func (g group) answer() string {
	if g.holds {
		return "**" + g.state.String() + ", not ready**"
	}
	return g.state.String()
}

// withVariable adds the variable to a field whose parameter has another name.
func withVariable(name string) string {
	at := slices.IndexFunc(felixconfig.Parameters(), func(p felixconfig.Parameter) bool { return p.Field == name })
	if at < 0 || strings.EqualFold(felixconfig.Parameters()[at].Name, name) {
		return name
	}
	return name + "` (`" + felixconfig.Parameters()[at].Variable()
}

// closing ends the brackets that withVariable opens.
func closing(text string) string { return strings.Repeat(")", strings.Count(text, "(")) }

// TestSentences: the sentences about the fields of FelixConfiguration and BGPConfiguration, on the page of the objects
// and in the definitions of Kubernetes, agree with the table on whether a field has an effect.
func TestSentences(t *testing.T) {
	raw, err := os.ReadFile("../../docs/objects.md")
	if err != nil {
		t.Fatal(err)
	}
	states := map[string]State{}
	for _, r := range Rows() {
		states[r.Place+"."+r.Name] = r.State
	}
	kind, compared := "", 0
	for line := range strings.Lines(string(raw)) {
		if title, ok := strings.CutPrefix(line, "## "); ok {
			kind = strings.TrimSpace(title)
		}
		cells := strings.Split(line, "|")
		if len(cells) < 4 || kind != "FelixConfiguration" && kind != "BGPConfiguration" {
			continue
		}
		path, ok := strings.CutPrefix(strings.Trim(cells[1], " `"), "spec.")
		if !ok || strings.ContainsAny(strings.Trim(path, "{}"), ".[{") {
			continue
		}
		for name := range strings.SplitSeq(strings.Trim(path, "{}"), ",") {
			state, known := states[kind+"."+name]
			if !known {
				t.Errorf("%s.%s has no row in the table", kind, name)
				continue
			}
			compared++
			none := strings.Contains(strings.ToLower(cells[3]), "has no effect in manx")
			little := none || slices.ContainsFunc([]string{"Manx has no", "Manx does not", "Manx uses it only"},
				func(text string) bool { return strings.Contains(cells[3], text) })
			if none && state == Done || !little && state > Differently {
				t.Errorf("%s.%s is %s in the table, but docs/objects.md says: %s", kind, name, state, cells[3])
			}
		}
	}
	if compared < 150 {
		t.Errorf("%d fields are compared; has the page another form?", compared)
	}
}
