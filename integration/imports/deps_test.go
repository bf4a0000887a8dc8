package imports

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strings"
	"testing"
)

// mostFields limits the fields of structs that many parts of the daemon get: each part would reach a new field, whether
// it needs it or not. A part gets its settings, and other parts that it needs, as parameters of its constructor.
var mostFields = map[string]int{"deps.Deps": 9, "deps.Node": 6, "bus.Bus": 6, "main.daemon": 5, "main.host": 5}

// ambient are the structs of that list which no part may hold: they are for the lists of parts.
var ambient = map[string]bool{"options": true, "daemon": true, "host": true}

// lists are the structs that make lists of parts, and the file with these lists.
var lists = map[string]bool{"daemon": true, "hostPart": true, "nodePart": true, "controllersAlone": true,
	"parts.go": true}

// TestPartsGetWhatTheyNeed keeps the dependencies of parts few.
func TestPartsGetWhatTheyNeed(t *testing.T) {
	fields := map[string]int{}
	for _, folder := range []string{"../../cmd/manxd", "../../daemon/deps", "../../daemon/bus"} {
		files, err := filepath.Glob(folder + "/*.go")
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range files {
			if !strings.HasSuffix(path, "_test.go") {
				countFields(t, path, fields)
			}
		}
	}
	for name, most := range mostFields {
		if n := fields[name]; n == 0 || n > most {
			t.Errorf("%s has %d fields, want 1 to %d", name, n, most)
		}
	}
}

// countFields counts the fields of each struct of a file, and refuses parts that hold an ambient one.
func countFields(t *testing.T, path string, fields map[string]int) {
	t.Helper()
	set := token.NewFileSet()
	file, err := parser.ParseFile(set, path, nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	ast.Inspect(file, func(n ast.Node) bool {
		if f, ok := n.(*ast.FuncDecl); ok && !lists[filepath.Base(path)] {
			checkConstructor(t, set, f)
		}
		spec, ok := n.(*ast.TypeSpec)
		if !ok {
			return true
		}
		s, ok := spec.Type.(*ast.StructType)
		if !ok {
			return true
		}
		for _, f := range s.Fields.List {
			fields[file.Name.Name+"."+spec.Name.Name] += max(1, len(f.Names))
			if isAmbient(f.Type) && !lists[spec.Name.Name] {
				t.Errorf("%s: %s holds a list of all parts or settings: it gets those that it needs by its constructor",
					set.Position(f.Pos()), spec.Name.Name)
			}
		}
		return true
	})
}

// checkConstructor refuses a function that gets both the dependencies of a part and an ambient struct.
func checkConstructor(t *testing.T, set *token.FileSet, f *ast.FuncDecl) {
	t.Helper()
	part, all := false, false
	for _, p := range f.Type.Params.List {
		if of, ok := p.Type.(*ast.SelectorExpr); ok && of.Sel.Name == "Deps" {
			part = true
		}
		all = all || isAmbient(p.Type)
	}
	if part && all {
		t.Errorf("%s: %s gets all parts or settings: give it those that it needs", set.Position(f.Pos()), f.Name.Name)
	}
}

// isAmbient reports whether a type is an ambient struct, or a pointer to one.
func isAmbient(typ ast.Expr) bool {
	if star, ok := typ.(*ast.StarExpr); ok {
		typ = star.X
	}
	of, ok := typ.(*ast.Ident)
	return ok && ambient[of.Name]
}
