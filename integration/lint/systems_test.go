package lint

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/tools/go/packages"
)

// TestManxctlOnOtherSystems checks the types of manxctl and all of our packages that it uses as the compiler does for
// macOS and Windows. A build would compile the packages of others, too, which takes a minute.
func TestManxctlOnOtherSystems(t *testing.T) {
	home, err := filepath.Abs(root)
	if err != nil {
		t.Fatal(err)
	}
	for _, system := range []string{"darwin", "windows"} {
		t.Run(system, func(t *testing.T) {
			t.Parallel()
			list, err := packages.Load(&packages.Config{Dir: root,
				Env: append(os.Environ(), "GOOS="+system, "GOARCH=arm64", "CGO_ENABLED=0"),
				Mode: packages.NeedName | packages.NeedFiles | packages.NeedCompiledGoFiles | packages.NeedImports |
					packages.NeedDeps | packages.NeedTypes | packages.NeedSyntax | packages.NeedTypesInfo,
				ParseFile: func(set *token.FileSet, name string, text []byte) (*ast.File, error) {
					f, err := parser.ParseFile(set, name, text, parser.SkipObjectResolution)
					if f != nil && !strings.HasPrefix(name, home+"/") {
						withoutBodies(f)
					}
					return f, err
				}}, "./cmd/manxctl")
			if err != nil {
				t.Fatal(err)
			}
			ours := 0
			packages.Visit(list, nil, func(p *packages.Package) {
				if !strings.HasPrefix(p.PkgPath, "github.com/manxnet/manx/") {
					return
				}
				ours++
				for _, e := range p.Errors {
					t.Error(e)
				}
			})
			if ours < 10 {
				t.Errorf("only %d of our packages were read", ours)
			}
		})
	}
}

// withoutBodies drops the bodies of functions, whose types nobody needs.
func withoutBodies(f *ast.File) {
	for _, d := range f.Decls {
		if f, ok := d.(*ast.FuncDecl); ok {
			f.Body = nil
		}
	}
}
