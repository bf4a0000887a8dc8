package lint

import (
	"go/ast"
	"go/token"
	"go/types"
	"regexp"
	"slices"
	"strings"
	"testing"

	"golang.org/x/tools/go/packages"
)

// TestLocksOfTheSpeaker compares the order in which functions of bgp/speaker take locks with the comment of its type
// Speaker: a lock is taken while only earlier ones of that list are held, and under a lock that is not in the list none
// is. It sees the calls inside the package. A function literal counts as called where it stands, unless it is started
// with go or time.AfterFunc, returned, or kept in a field.
func TestLocksOfTheSpeaker(t *testing.T) {
	list, err := packages.Load(&packages.Config{Mode: packages.NeedName | packages.NeedFiles | packages.NeedImports |
		packages.NeedTypes | packages.NeedTypesInfo | packages.NeedSyntax, Dir: "../.."}, "./bgp/speaker")
	if err != nil || len(list) != 1 || len(list[0].Errors) > 0 {
		t.Fatalf("%v: %v", err, list)
	}
	l := &locks{p: list[0], bodies: map[types.Object]ast.Node{}, takes: map[ast.Node]map[string]bool{}}
	order := l.read(t)
	rank := func(lock string) int {
		if i := slices.Index(order, lock); i >= 0 {
			return i
		}
		return len(order)
	}
	for n := -1; n != l.total; { // until nothing is new
		n, l.total, l.edges = l.total, 0, nil
		for _, body := range l.bodies {
			l.function(body)
		}
	}
	seen := map[string]bool{}
	for _, e := range l.edges {
		if seen[e.held+" "+e.taken] = true; rank(e.held) >= rank(e.taken) {
			t.Errorf("%s: %s is taken under %s, against the order of the comment of Speaker", l.p.Fset.Position(e.at),
				e.taken, e.held)
		}
	}
	for _, want := range []string{"Speaker.setMu peerTap.adding", "Speaker.setMu Speaker.mu"} {
		if !seen[want] {
			t.Errorf("%q was not found: does the test still see the locks? It saw %v", want, seen)
		}
	}
}

// locks has the locks that the functions of a package take.
type locks struct {
	p      *packages.Package
	bodies map[types.Object]ast.Node
	takes  map[ast.Node]map[string]bool // by body, with those of called functions
	total  int                          // of takes
	edges  []edge
	local  map[types.Object]string // variables that point to a lock
}

// edge is a lock that is taken while another one is held.
type edge struct {
	held, taken string
	at          token.Pos
}

// read finds the functions, and returns the order in the comment of Speaker.
func (l *locks) read(t *testing.T) []string {
	var order []string
	for _, file := range l.p.Syntax {
		for _, d := range file.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				if d.Body != nil {
					l.bodies[l.p.TypesInfo.Defs[d.Name]] = d.Body
				}
			case *ast.GenDecl:
				if m := regexp.MustCompile(`Lock order: ([^;]*);`).FindStringSubmatch(d.Doc.Text()); m != nil {
					order = strings.Split(strings.Join(strings.Fields(m[1]), " "), ", ")
				}
			}
		}
	}
	if len(order) < 3 || len(l.bodies) < 100 {
		t.Fatalf("order %v, %d functions", order, len(l.bodies))
	}
	return order
}

func (l *locks) function(body ast.Node) {
	if l.takes[body] == nil {
		l.takes[body] = map[string]bool{}
	}
	l.local = map[types.Object]string{}
	var held []string
	l.walk(body, body, &held)
	l.total += len(l.takes[body])
}

// walk follows a node of a function from top to bottom. A branch that ends with a jump gives back the locks as they
// were.
func (l *locks) walk(body, n ast.Node, held *[]string) {
	ast.Inspect(n, func(x ast.Node) bool {
		switch x := x.(type) {
		case *ast.GoStmt:
			l.apart(x.Call)
			return false
		case *ast.DeferStmt:
			if _, verb := l.lockOf(x.Call); verb == "" {
				l.walk(body, x.Call, held)
			}
			return false
		case *ast.ReturnStmt, *ast.KeyValueExpr:
			found := false
			ast.Inspect(x, func(y ast.Node) bool {
				if f, ok := y.(*ast.FuncLit); ok {
					found = true
					l.later(f)
				}
				return !found
			})
			return !found
		case *ast.BlockStmt:
			if x == n {
				return true
			}
			before := slices.Clone(*held)
			l.walk(body, x, held)
			if k := len(x.List); k > 0 && jumps(x.List[k-1]) {
				*held = before
			}
			return false
		case *ast.AssignStmt:
			l.alias(x)
		case *ast.CallExpr:
			if f, ok := x.Fun.(*ast.SelectorExpr); ok && f.Sel.Name == "AfterFunc" {
				l.apart(x)
				return false
			}
			l.call(body, x, held)
		}
		return true
	})
}

// apart follows a call of a goroutine of its own.
func (l *locks) apart(call *ast.CallExpr) {
	ast.Inspect(call, func(x ast.Node) bool {
		f, ok := x.(*ast.FuncLit)
		if ok {
			l.later(f)
		}
		return !ok
	})
}

// later follows a function that is called when the one around it may have ended.
func (l *locks) later(f *ast.FuncLit) {
	l.takes[f.Body] = map[string]bool{}
	l.walk(f.Body, f.Body, new([]string))
}

func jumps(s ast.Stmt) bool {
	switch s.(type) {
	case *ast.ReturnStmt, *ast.BranchStmt:
		return true
	}
	return false
}

// alias notes a variable that is set to the address of a lock.
func (l *locks) alias(a *ast.AssignStmt) {
	for i, x := range a.Rhs {
		u, ok := x.(*ast.UnaryExpr)
		if !ok || u.Op != token.AND || i >= len(a.Lhs) {
			continue
		}
		if v, ok := a.Lhs[i].(*ast.Ident); ok {
			if name := l.field(u.X); name != "" {
				l.local[l.p.TypesInfo.ObjectOf(v)] = name
			}
		}
	}
}

// field returns the name of a lock, as TYPE.FIELD.
func (l *locks) field(x ast.Expr) string {
	if v, ok := x.(*ast.Ident); ok {
		return l.local[l.p.TypesInfo.ObjectOf(v)]
	}
	s, ok := x.(*ast.SelectorExpr)
	if !ok {
		return ""
	}
	owner := l.p.TypesInfo.TypeOf(s.X)
	if p, ok := owner.(*types.Pointer); ok {
		owner = p.Elem()
	}
	named, ok := owner.(*types.Named)
	if kind := l.p.TypesInfo.TypeOf(s).String(); !ok || kind != "sync.Mutex" && kind != "sync.RWMutex" {
		return ""
	}
	return named.Obj().Name() + "." + s.Sel.Name
}

// lockOf returns the lock and the verb of a call, empty if it is none of a lock.
func (l *locks) lockOf(call *ast.CallExpr) (name, verb string) {
	f, ok := call.Fun.(*ast.SelectorExpr)
	if !ok {
		return "", ""
	}
	if name = l.field(f.X); name == "" {
		return "", ""
	}
	return name, strings.TrimPrefix(f.Sel.Name, "R")
}

func (l *locks) call(body ast.Node, call *ast.CallExpr, held *[]string) {
	name, verb := l.lockOf(call)
	switch verb {
	case "Lock":
		l.take(body, name, call.Pos(), *held)
		*held = append(*held, name)
		return
	case "Unlock":
		if i := slices.Index(*held, name); i >= 0 {
			*held = slices.Delete(slices.Clone(*held), i, i+1)
		}
		return
	}
	var called types.Object
	switch f := call.Fun.(type) {
	case *ast.Ident:
		called = l.p.TypesInfo.Uses[f]
	case *ast.SelectorExpr:
		called = l.p.TypesInfo.Uses[f.Sel]
	}
	for name := range l.takes[l.bodies[called]] {
		l.take(body, name, call.Pos(), *held)
	}
}

func (l *locks) take(body ast.Node, name string, at token.Pos, held []string) {
	l.takes[body][name] = true
	for _, h := range held {
		l.edges = append(l.edges, edge{h, name, at})
	}
}
