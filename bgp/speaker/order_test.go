package speaker

import (
	"go/ast"
	"go/parser"
	"go/token"
	"regexp"
	"slices"
	"testing"
)

// The steps of Set are those of its comment, which has a reason for the place of each.
func TestOrderOfSet(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "speaker.go", nil, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	var want, got []string
	for _, d := range file.Decls {
		f, ok := d.(*ast.FuncDecl)
		if !ok || f.Name.Name != "Set" {
			continue
		}
		for _, m := range regexp.MustCompile(`(?m)^ *- ([\w.]+):`).FindAllStringSubmatch(f.Doc.Text(), -1) {
			want = append(want, m[1])
		}
		ast.Inspect(f.Body, func(n ast.Node) bool {
			if call, ok := n.(*ast.CallExpr); ok {
				if name := nameOfStep(call.Fun); slices.Contains(want, name) {
					got = append(got, name)
				}
			}
			return true
		})
	}
	if len(want) < 10 || !slices.Equal(got, want) {
		t.Errorf("the steps are %q, those of the comment %q", got, want)
	}
}

// nameOfStep is the name of a function, without the speaker or its run before it.
func nameOfStep(x ast.Expr) string {
	switch x := x.(type) {
	case *ast.Ident:
		return x.Name
	case *ast.SelectorExpr:
		if of, ok := x.X.(*ast.SelectorExpr); ok && of.Sel.Name != "run" {
			return of.Sel.Name + "." + x.Sel.Name
		}
		return x.Sel.Name
	}
	return ""
}
