package lint

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"slices"
	"strings"
	"testing"
)

const mostParameters = 5

// manyParameters returns the lines of functions, methods of interfaces and types of functions that take too many
// parameters. The receiver does not count.
func manyParameters(src []byte) ([]int, error) {
	if generated.Match(src) {
		return nil, nil
	}
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, "", src, 0)
	if err != nil {
		return nil, err
	}
	var list []int
	ast.Inspect(file, func(n ast.Node) bool {
		if f, ok := n.(*ast.FuncType); ok && f.Params.NumFields() > mostParameters {
			list = append(list, files.Position(f.Params.Pos()).Line)
		}
		return true
	})
	return list, nil
}

// signaturesOfOthers has the files with a function whose parameters another package prescribes.
var signaturesOfOthers = map[string]string{
	"datastore/etcd/leaderless.go": "an interceptor of gRPC",
	"datastore/etcd/token.go":      "an interceptor of gRPC",
}

// Tests may have functions with more parameters: rows of a table without names.
func TestFunctionsHaveFewParameters(t *testing.T) {
	for name, src := range source(t, root, ".go") {
		if strings.HasSuffix(name, "_test.go") || signaturesOfOthers[name] != "" {
			continue
		}
		lines, err := manyParameters(src)
		if err != nil {
			t.Error(err)
		}
		for _, n := range lines {
			t.Errorf("%s:%d: more than %d parameters: take a struct, or make it a method of one", name, n,
				mostParameters)
		}
	}
}

func TestManyParametersAreFound(t *testing.T) {
	for decl, found := range map[string]bool{
		"func f(a, b, c, d, e int) {}":                   false,
		"func f(a, b, c int, d, e string, f ...bool) {}": true,
		"func (r r) f(a, b, c, d, e int) {}":             false,
		"func (r r) f(a, b, c, d, e, f int) {}":          true,
		"type i interface{ f(a, b, c, d, e, f int) }":    true,
		"var f = func(int, int, int, int, int, int) {}":  true,
		"func f() (a, b, c, d, e, f int) { return }":     false,
		"func f[A, B, C, D, E, F any](a A) {}":           false,
		"func f(g func(a, b, c, d, e, f int)) {}":        true,
	} {
		src := fmt.Sprintf("package p\n\n%s\n", decl)
		want := []int(nil)
		if found {
			want = []int{3}
		}
		if got, err := manyParameters([]byte(src)); err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: lines %v, %v, want %v", decl, got, err, want)
		}
	}
}
