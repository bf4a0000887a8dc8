package imports

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
)

var write = flag.Bool("write-table", false, "write the table of packages into docs/architecture.md")

const (
	page      = "../../docs/architecture.md"
	tableHead = "| folder | holds | may import |\n|---|---|---|\n"
)

// table returns the rows of the import table, with the first sentences of the packages' comments.
func table(t *testing.T) string {
	t.Helper()
	holds := map[string]string{}
	for _, p := range packages(t) {
		holds[strings.TrimPrefix(p.ImportPath, module)] = p.Doc
	}
	var b strings.Builder
	for _, row := range allowed {
		tree, isTree := strings.CutSuffix(row.pkg, "/...")
		imports := make([]string, len(row.imports))
		for i, name := range row.imports {
			imports[i] = "`" + name + "`"
		}
		may := strings.Join(imports, ", ")
		switch {
		case len(row.imports) == 0:
			may = "-"
		case row.imports[0] == "...":
			may = "all"
		}
		what := firstSentence(holds[tree])
		if isTree {
			what = strings.TrimPrefix(what+"; the folders below", "; ")
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", row.pkg, strings.ReplaceAll(what, "|", `\|`), may)
	}
	return b.String()
}

// firstSentence returns the comment of a package from its verb on, without the final dot.
func firstSentence(doc string) string {
	for _, kind := range []string{"Package ", "Command "} {
		if rest, ok := strings.CutPrefix(doc, kind); ok {
			_, doc, _ = strings.Cut(rest, " ")
		}
	}
	return strings.TrimSuffix(doc, ".")
}

// TestTableInTheDocumentation fails when the page has another table; -write-table corrects it.
func TestTableInTheDocumentation(t *testing.T) {
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(text), tableHead)
	have, after, ok2 := strings.Cut(rest, "\n\n")
	if !ok || !ok2 {
		t.Fatalf("%s has no table that begins with %q", page, tableHead)
	}
	want := table(t)
	switch {
	case have+"\n" == want:
	case *write:
		if err := os.WriteFile(page, []byte(before+tableHead+want+"\n"+after), 0o644); err != nil {
			t.Fatal(err)
		}
	default:
		t.Errorf("the table of %s is another one: go test ./integration/imports -run Table -write-table", page)
	}
}
