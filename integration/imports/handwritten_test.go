package imports

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// handWritten is the decision whose table names the packages with code in the place of a library.
const handWritten = "docs/decisions/0021-plain-code.md"

// byHand are imports, and names of package unix and of connections, by which such code is found.
var byHand = struct{ imports, names []string }{
	[]string{"unsafe", "encoding/binary", "google.golang.org/protobuf/encoding/protowire"},
	[]string{"Socket", "Syscall", "Syscall6", "SyscallConn"},
}

// TestHandWritten compares that table with the packages of the product.
func TestHandWritten(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("../..", handWritten))
	if err != nil {
		t.Fatal(err)
	}
	listed := map[string]bool{}
	for _, row := range regexp.MustCompile(`(?m)^\| ([^|]*) \|`).FindAllStringSubmatch(string(text), -1) {
		for _, name := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(row[1], -1) {
			listed[name[1]] = true
		}
	}
	if len(listed) < 10 {
		t.Fatalf("the table has the packages %v: has its form changed?", listed)
	}
	found := map[string]string{} // by package: what shows it
	for _, top := range []string{"bgp", "cmd", "cni", "controllers", "daemon", "dataplane", "datastore", "ipam",
		"plan", "proto", "retry"} {
		findByHand(t, top, found)
	}
	for pkg, why := range found {
		if !listed[pkg] {
			t.Errorf("%s uses %s and has no row in %s", pkg, why, handWritten)
		}
	}
	for pkg := range listed {
		if found[pkg] == "" {
			t.Errorf("%s has a row in %s and no such code any more", pkg, handWritten)
		}
	}
}

func findByHand(t *testing.T, top string, found map[string]string) {
	t.Helper()
	err := filepath.WalkDir(filepath.Join("../..", top), func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") ||
			strings.HasSuffix(path, ".pb.go") {
			return err
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		if err != nil {
			return err
		}
		pkg := strings.TrimPrefix(filepath.Dir(path), "../../")
		if strings.HasSuffix(pkg, "test") { // for tests of several packages
			return nil
		}
		for _, i := range f.Imports {
			if name, _ := strconv.Unquote(i.Path.Value); slices.Contains(byHand.imports, name) {
				found[pkg] = name
			}
		}
		ast.Inspect(f, func(n ast.Node) bool {
			s, ok := n.(*ast.SelectorExpr)
			if !ok || !slices.Contains(byHand.names, s.Sel.Name) {
				return true
			}
			if of, ok := s.X.(*ast.Ident); ok && of.Name == "unix" || s.Sel.Name == "SyscallConn" {
				found[pkg] = s.Sel.Name
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
