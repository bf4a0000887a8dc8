package speaker

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Each part that exists because of a fault of GoBGP names the test of the fault and the condition for its removal; the
// named tests exist.
func TestFaultsOfGoBGPAreShown(t *testing.T) {
	tests := map[string]bool{}
	var faults []string
	for _, pattern := range []string{"*.go", "../*.go", "../fib/*.go", "../gobgppolicy/*.go", "../session/*.go"} {
		files, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range files {
			file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ParseComments)
			if err != nil {
				t.Fatal(err)
			}
			for _, d := range file.Decls {
				if f, ok := d.(*ast.FuncDecl); ok {
					tests[f.Name.Name] = true
				}
			}
			for _, c := range file.Comments {
				if text := c.Text(); !strings.HasSuffix(name, "_test.go") &&
					(strings.Contains(text, "Fault:") || strings.Contains(text, "faults of GoBGP")) {
					faults = append(faults, name+": "+strings.Join(strings.Fields(text), " "))
				}
			}
		}
	}
	if len(faults) < 5 {
		t.Fatalf("only %d comments about faults were found", len(faults))
	}
	named := regexp.MustCompile(`\b(Test|Benchmark)[A-Z]\w+`)
	for _, f := range faults {
		if strings.Contains(f, "Fault:") && (!strings.Contains(f, "Shown by ") ||
			!strings.Contains(f, "Can go when ")) {
			t.Errorf("no test, or no condition for removal: %s", f)
		}
		if len(named.FindAllString(f, -1)) == 0 {
			t.Errorf("no test is named: %s", f)
		}
		for _, name := range named.FindAllString(f, -1) {
			if !tests[name] {
				t.Errorf("there is no %s, named in %.80s...", name, f)
			}
		}
	}
}
