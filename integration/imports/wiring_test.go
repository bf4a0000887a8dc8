package imports

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"
)

// wiringLines is the limit of lines of a function of the daemon: a new part is one line in a list.
const wiringLines = 40

// tables are functions that are lists of commands.
var tables = map[string]bool{"rootCommand": true}

func TestWiringIsShort(t *testing.T) {
	functions := 0
	for _, folder := range []string{"../../cmd/manxd", "../../daemon"} {
		functions += checkWiring(t, folder)
	}
	if functions < 100 {
		t.Fatalf("only %d functions were read", functions)
	}
}

// checkWiring checks the functions below a folder, and returns their number.
func checkWiring(t *testing.T, folder string) (functions int) {
	t.Helper()
	err := filepath.WalkDir(folder, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		set := token.NewFileSet()
		file, err := parser.ParseFile(set, path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		for _, d := range file.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok || tables[nameOf(f)] {
				continue
			}
			functions++
			if n := set.Position(f.End()).Line - set.Position(f.Pos()).Line + 1; n > wiringLines {
				t.Errorf("%s: %s has %d lines, want at most %d: give a part a file or a folder of its own",
					set.Position(f.Pos()), nameOf(f), n, wiringLines)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return functions
}

// nameOf is FUNCTION or TYPE.METHOD.
func nameOf(f *ast.FuncDecl) string {
	if f.Recv == nil {
		return f.Name.Name
	}
	typ := f.Recv.List[0].Type
	if star, ok := typ.(*ast.StarExpr); ok {
		typ = star.X
	}
	if name, ok := typ.(*ast.Ident); ok {
		return name.Name + "." + f.Name.Name
	}
	return f.Name.Name
}
