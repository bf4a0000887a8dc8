package imports

import (
	"go/ast"
	"go/parser"
	"go/token"
	"strings"
	"testing"
)

// TestSleepsHaveAReason: tests wait for observable conditions. A time.Sleep in a test, or in its helpers, is the pause
// of a loop that checks a condition, or has a comment on its line or above with the reason: nothing may happen for a
// while, traffic has a pace, or a clock has to move on. Tests that import testing/synctest have a clock of their own.
func TestSleepsHaveAReason(t *testing.T) {
	found := 0
	ofTests := func(name string) bool {
		return strings.HasSuffix(name, "_test.go") || strings.HasPrefix(name, "integration/")
	}
	eachSource(t, ofTests, parser.ParseComments, func(name string, set *token.FileSet, file *ast.File) {
		if importsPath(file, "testing/synctest") {
			return
		}
		comments := map[int]bool{} // lines that end with a comment
		for _, group := range file.Comments {
			for line := set.Position(group.Pos()).Line; line <= set.Position(group.End()).Line; line++ {
				comments[line] = true
			}
		}
		var path []ast.Node
		ast.Inspect(file, func(n ast.Node) bool {
			if n == nil {
				path = path[:len(path)-1]
				return true
			}
			path = append(path, n)
			call, ok := n.(*ast.CallExpr)
			if !ok || !isSleep(call) {
				return true
			}
			found++
			if at := set.Position(call.Pos()); !inLoop(path) && !comments[at.Line] && !comments[at.Line-1] {
				t.Errorf("%s: wait for an observable condition, or give the reason for the sleep in a comment", at)
			}
			return true
		})
	})
	if found < 50 {
		t.Errorf("only %d calls of time.Sleep were found", found)
	}
}

func importsPath(file *ast.File, path string) bool {
	for _, i := range file.Imports {
		if i.Path.Value == `"`+path+`"` {
			return true
		}
	}
	return false
}

func isSleep(call *ast.CallExpr) bool {
	s, ok := call.Fun.(*ast.SelectorExpr)
	if !ok || s.Sel.Name != "Sleep" {
		return false
	}
	x, ok := s.X.(*ast.Ident)
	return ok && x.Name == "time"
}

// inLoop reports whether the innermost loop around a node, in the same function, is one that goes on until something is
// seen; one over a range does not.
func inLoop(path []ast.Node) bool {
	for i := len(path) - 1; i >= 0; i-- {
		switch path[i].(type) {
		case *ast.ForStmt:
			return true
		case *ast.RangeStmt, *ast.FuncDecl, *ast.FuncLit:
			return false
		}
	}
	return false
}
