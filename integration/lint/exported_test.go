package lint

import (
	"go/ast"
	"go/types"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/tools/go/packages"
)

// program is all packages of a module with their tests.
type program struct {
	module   string
	packages []*packages.Package
	// used has the exported names that another package uses, or that such a name needs.
	used map[string]bool
	// interfaces has all interfaces through which a method may be called.
	interfaces map[string][]*types.Interface
	// promoted are methods by which a type that embeds theirs implements an interface.
	promoted map[string]bool
}

// callers are packages of the standard library that call methods of their arguments.
var callers = []string{"encoding", "encoding/json", "errors", "flag", "fmt", "io", "sort"}

// wrapping has the methods that the package errors calls through interfaces without a name.
var wrapping = []string{"As", "Is", "Unwrap"}

// load reads the module in a folder.
func load(folder string) (*program, error) {
	list, err := packages.Load(&packages.Config{
		Mode: packages.NeedName | packages.NeedModule | packages.NeedFiles | packages.NeedImports |
			packages.NeedTypes | packages.NeedTypesInfo | packages.NeedSyntax | packages.NeedForTest,
		Dir: folder, Tests: true}, "./...")
	if err != nil {
		return nil, err
	}
	p := &program{packages: list, used: map[string]bool{}, interfaces: map[string][]*types.Interface{},
		promoted: map[string]bool{}}
	for _, x := range list {
		for _, e := range x.Errors {
			return nil, e
		}
		if x.Module != nil {
			p.module = x.Module.Path
		}
	}
	for _, x := range list {
		p.addInterfaces(x.Types)
		for _, i := range x.Types.Imports() {
			p.addInterfaces(i)
		}
		p.addInstances(x.TypesInfo)
	}
	p.addInterface(types.Universe.Lookup("error").Type())
	known, err := packages.Load(&packages.Config{Mode: packages.NeedName | packages.NeedTypes, Dir: folder}, callers...)
	if err != nil {
		return nil, err
	}
	for _, x := range known {
		p.addInterfaces(x.Types)
	}
	for _, x := range list {
		p.addPromoted(x.TypesInfo)
		for _, o := range x.TypesInfo.Uses {
			if o.Pkg() != nil && o.Pkg().Path() != x.Types.Path() {
				p.use(o)
			}
		}
	}
	return p, nil
}

func (p *program) addInterfaces(x *types.Package) {
	for _, name := range x.Scope().Names() {
		if t, ok := x.Scope().Lookup(name).(*types.TypeName); ok {
			p.addInterface(t.Type())
		}
	}
}

func (p *program) addInterface(t types.Type) {
	i, ok := t.Underlying().(*types.Interface)
	if !ok {
		return
	}
	for m := range i.Methods() {
		if have := p.interfaces[m.Name()]; !slices.Contains(have, i) {
			p.interfaces[m.Name()] = append(have, i)
		}
	}
}

// addInstances adds the interfaces without a name, those of functions, and those that type arguments make of a generic
// one: a method of a target is called by reconcile.Applier[Key, Value].
func (p *program) addInstances(info *types.Info) {
	for _, e := range info.Types {
		if e.IsType() {
			p.addInterface(e.Type)
		}
	}
	for _, instance := range info.Instances {
		switch t := instance.Type.Underlying().(type) {
		case *types.Interface:
			p.addInterface(t)
		case *types.Signature:
			for v := range t.Params().Variables() {
				p.addInterface(v.Type())
			}
		}
	}
}

// addPromoted records the methods that a type gets from an embedded type, and that make it implement an interface.
func (p *program) addPromoted(info *types.Info) {
	for _, o := range info.Defs {
		t, ok := o.(*types.TypeName)
		if !ok || types.IsInterface(t.Type()) {
			continue
		}
		methods := types.NewMethodSet(types.NewPointer(t.Type()))
		for m := range methods.Methods() {
			if f := m.Obj().(*types.Func); len(m.Index()) > 1 && p.called(t.Type(), f.Name()) {
				p.promoted[p.name(f.Origin())] = true
			}
		}
	}
}

// called reports whether a method of a type can be called by an interface.
func (p *program) called(t types.Type, method string) bool {
	return slices.ContainsFunc(p.interfaces[method], func(i *types.Interface) bool {
		return types.Implements(t, i) || types.Implements(types.NewPointer(t), i)
	})
}

// name returns the name of an exported object of the module: "folder.Name" or "folder.Type.Method"; empty for others,
// such as fields.
func (p *program) name(o types.Object) string {
	if o.Pkg() == nil || !o.Exported() || !strings.HasPrefix(o.Pkg().Path()+"/", p.module+"/") {
		return ""
	}
	folder := strings.TrimPrefix(strings.TrimPrefix(o.Pkg().Path(), p.module), "/")
	if f, ok := o.(*types.Func); ok && f.Signature().Recv() != nil {
		if receiver := receiver(f); receiver != nil {
			return folder + "." + receiver.Obj().Name() + "." + f.Name()
		}
		return ""
	}
	if o.Parent() != o.Pkg().Scope() {
		return ""
	}
	return folder + "." + o.Name()
}

// receiver returns the type of a method; nil for an interface without a name.
func receiver(f *types.Func) *types.Named {
	t := f.Signature().Recv().Type()
	if pointer, ok := t.(*types.Pointer); ok {
		t = pointer.Elem()
	}
	named, _ := t.(*types.Named)
	return named
}

// use records that a name is used, and with it all types that its users can reach.
func (p *program) use(o types.Object) {
	if f, ok := o.(*types.Func); ok {
		o = f.Origin()
	}
	name := p.name(o)
	if name == "" {
		if v, ok := o.(*types.Var); ok && v.IsField() {
			p.needs(v.Type())
		}
		return
	}
	if p.used[name] {
		return
	}
	p.used[name] = true
	t := o.Type()
	if _, isType := o.(*types.TypeName); isType { // the type's name is recorded already
		t = t.Underlying()
	}
	p.needs(t)
}

// needs records the types that are part of a type.
func (p *program) needs(t types.Type) {
	switch t := t.(type) {
	case *types.Named:
		for a := range t.TypeArgs().Types() {
			p.needs(a)
		}
		if name := p.name(t.Obj()); name != "" && !p.used[name] {
			p.used[name] = true
			p.needs(t.Underlying())
		}
	case *types.Alias:
		p.use(t.Obj())
	case *types.Pointer:
		p.needs(t.Elem())
	case *types.Slice:
		p.needs(t.Elem())
	case *types.Array:
		p.needs(t.Elem())
	case *types.Chan:
		p.needs(t.Elem())
	case *types.Map:
		p.needs(t.Key())
		p.needs(t.Elem())
	case *types.Struct:
		for f := range t.Fields() {
			if f.Exported() {
				p.needs(f.Type())
			}
		}
	case *types.Interface:
		for m := range t.Methods() {
			p.needs(m.Type())
		}
	case *types.Signature:
		p.needs(t.Params())
		p.needs(t.Results())
	case *types.Tuple:
		for v := range t.Variables() {
			p.needs(v.Type())
		}
	}
}

// unused returns the exported names without a use outside their package, in order. Main packages, generated files and
// tests are left out. So are constants of a type of which another constant is used, and methods that make their type
// implement an interface.
func (p *program) unused() []string {
	found := map[string]bool{}
	groups := map[types.Type]bool{}
	for _, x := range p.packages {
		for _, o := range x.TypesInfo.Defs {
			if c, ok := o.(*types.Const); ok && p.used[p.name(c)] {
				groups[c.Type()] = true
			}
		}
	}
	for _, x := range p.packages {
		if x.ForTest != "" || x.Name == "main" {
			continue
		}
		for _, file := range x.Syntax {
			if ast.IsGenerated(file) || strings.HasSuffix(x.Fset.Position(file.Pos()).Filename, "_test.go") {
				continue
			}
			for _, o := range defined(file, x.TypesInfo) {
				name := p.name(o)
				if _, named := o.Type().(*types.Named); name == "" || p.used[name] || named && groups[o.Type()] {
					continue
				}
				if f, ok := o.(*types.Func); !ok || !p.implements(f) {
					found[name] = true
				}
			}
		}
	}
	return slices.Sorted(maps.Keys(found))
}

// defined returns the objects that a file declares outside functions.
func defined(file *ast.File, info *types.Info) []types.Object {
	var list []types.Object
	add := func(name *ast.Ident) {
		if o := info.Defs[name]; o != nil {
			list = append(list, o)
		}
	}
	for _, decl := range file.Decls {
		switch d := decl.(type) {
		case *ast.FuncDecl:
			add(d.Name)
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				switch s := spec.(type) {
				case *ast.TypeSpec:
					add(s.Name)
				case *ast.ValueSpec:
					for _, name := range s.Names {
						add(name)
					}
				}
			}
		}
	}
	return list
}

// implements reports whether a method belongs to an interface that its type implements, or to an unexported type that
// others use only through an interface.
func (p *program) implements(f *types.Func) bool {
	if f.Signature().Recv() == nil {
		return false
	}
	named := receiver(f)
	if named == nil || !named.Obj().Exported() || types.IsInterface(named) || slices.Contains(wrapping, f.Name()) {
		return true
	}
	return p.promoted[p.name(f)] || p.called(named, f.Name())
}

const (
	contract    = "an interface that types of other packages implement; they are found by type assertion or in a list"
	enumeration = "a value of an enumeration, of which other packages use the rest"
)

// unusedFor has the exported names that no other package uses, each with the reason for its export.
var unusedFor = map[string]string{
	"daemon/part.Closer":                        contract,
	"daemon/part.Explainer":                     contract,
	"daemon/part.Opener":                        contract,
	"daemon/part.Ready":                         contract,
	"dataplane.Learner":                         contract,
	"dataplane.Target":                          contract,
	"dataplane/kernel/nftables.StateUntracked":  enumeration,
	"dataplane/kernel/nftables.VerdictContinue": enumeration,
	"dataplane/kernel/nftables.VerdictGoto":     enumeration,
	"dataplane/kernel/nftables.VerdictReturn":   enumeration,
	"dataplane/ruleset.ConnSNAT":                enumeration,
	"proto/server.Checker":                      contract,
	"proto/server.Noticer":                      contract,
	"proto/server.Service":                      contract,
}

func TestExportedNamesAreUsed(t *testing.T) {
	p, err := load(root)
	if err != nil {
		t.Fatal(err)
	}
	list := p.unused()
	for _, name := range list {
		if unusedFor[name] == "" {
			t.Errorf("%s is exported, and no other package uses it: unexport it", name)
		}
	}
	for name := range unusedFor {
		if !slices.Contains(list, name) {
			t.Errorf("%s is used, or is gone: remove it from unusedFor", name)
		}
	}
}

func TestUnusedExportedNamesAreFound(t *testing.T) {
	folder := t.TempDir()
	for name, text := range map[string]string{
		"go.mod": "module example.net/m\n\ngo 1.26\n",
		"a/a.go": `package a

type Level int

const (
	Low Level = iota
	High
)

const Lonely = 7

func Used() *Result { return nil }

func Unused() {}

func inside() { Unused(); _ = Lonely }

type Result struct{ Part Part }

type Part struct{}

func (Part) String() string { return "" }

func (Part) Never() {}

func (Part) Called() {}

type Alone struct{}

type Applier[K any] interface{ Apply(K) }

func Run[K any](Applier[K]) {}

type Numbers struct{}

func (Numbers) Apply(int) {}

type Base struct{}

func (Base) Promoted() {}

func (Base) Hidden() {}
`,
		"b/main.go": `package main

import "example.net/m/a"

func main() {
	a.Used().Part.Called()
	_ = a.Low
	a.Run(a.Numbers{})
	_ = any(whole{}).(interface{ Promoted() })
}

type whole struct{ a.Base }

func Main() {}
`,
	} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(folder, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(folder, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	p, err := load(folder)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"a.Alone", "a.Base.Hidden", "a.Lonely", "a.Part.Never", "a.Unused"}
	if got := p.unused(); !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
