package speaker

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Each part that exists because of a fault of GoBGP names the test of the fault and the condition for its removal; the
// named tests exist. The page about GoBGP has each of these files, and no test that does not exist.
func TestFaultsOfGoBGPAreShown(t *testing.T) {
	tests := map[string]bool{}
	var faults []string
	for _, pattern := range []string{"*.go", "../*.go", "../fib/*.go", "../gobgppolicy/*.go", "../session/*.go",
		"../gobgpinside/*.go"} {
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
	page, err := os.ReadFile("../../docs/gobgp.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range faults {
		file, _, _ := strings.Cut(f, ": ")
		name := filepath.Base(file)
		if filepath.Base(filepath.Dir(file)) != "gobgpinside" { // whose table has the names alone
			name = strings.TrimPrefix(filepath.ToSlash(filepath.Join("bgp/speaker", file)), "../")
		}
		if strings.Contains(f, "Fault:") && !strings.Contains(string(page), "`"+name+"`") {
			t.Errorf("docs/gobgp.md does not have %s", name)
		}
	}
	if len(faults) < 5 {
		t.Fatalf("only %d comments about faults were found", len(faults))
	}
	build, err := os.ReadFile("../../go.mod")
	if err != nil {
		t.Fatal(err)
	}
	version := regexp.MustCompile(`github.com/osrg/gobgp/v4 v(\S+)`).FindStringSubmatch(string(build))
	if version == nil || !strings.Contains(string(page), "GoBGP "+version[1]+" ") {
		t.Errorf("docs/gobgp.md was not checked with GoBGP %q: run the tests that it names, then change it", version)
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
