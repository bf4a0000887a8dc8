package imports

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// writers are the functions of package os that write to, or remove, the file at a path. On a host whose users plant
// links, these functions follow them; the package safefile does not.
var writers = []string{"WriteFile", "Create", "CreateTemp", "MkdirTemp", "OpenFile", "Mkdir", "MkdirAll", "Rename",
	"Chmod", "Chown",
	"Lchown", "Chtimes", "Remove", "RemoveAll", "Symlink", "Link", "Truncate"}

// mayWrite lists the folders whose code may use these functions.
var mayWrite = []string{
	"integration", "datastore/etcd/etcdtest", // no part of the programs
	"dataplane/kernel",        // settings below /proc/sys
	"dataplane/podnet",        // the same
	"datastore/etcd/embedded", // etcd's own folder, mode 0700
	"cmd/manxctl/archive",     // a file that must be new (O_EXCL), on every system
}

func TestOnlySafefileWrites(t *testing.T) {
	eachFile(t, func(name string, set *token.FileSet, file *ast.File) {
		if slices.ContainsFunc(mayWrite, func(dir string) bool { return strings.HasPrefix(name, dir+"/") }) {
			return
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if s, ok := n.(*ast.SelectorExpr); ok {
				if pkg, ok := s.X.(*ast.Ident); ok && pkg.Name == "os" && slices.Contains(writers, s.Sel.Name) {
					t.Errorf("%s uses os.%s: use datastore/safefile", set.Position(s.Pos()), s.Sel.Name)
				}
			}
			return true
		})
	})
}

// The daemon finds the variables of the kernel where its settings point, and only one file knows that. The wiring of
// pods belongs to the CNI plugin, which runs on the host itself.
func TestOneOwnerOfSysctls(t *testing.T) {
	owners := []string{"dataplane/kernel/sysctl.go", "dataplane/podnet/", "integration/"}
	eachFile(t, func(name string, set *token.FileSet, file *ast.File) {
		if slices.ContainsFunc(owners, func(owner string) bool { return strings.HasPrefix(name, owner) }) {
			return
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if l, ok := n.(*ast.BasicLit); ok && l.Kind == token.STRING && strings.Contains(l.Value, "/proc/sys") {
				t.Errorf("%s spells %s: use what dataplane/kernel/sysctl.go has", set.Position(l.Pos()), l.Value)
			}
			return true
		})
	})
}

// eachFile calls f for each Go file of the repository that is no test, with its name from the root.
func eachFile(t *testing.T, f func(name string, set *token.FileSet, file *ast.File)) {
	t.Helper()
	eachSource(t, func(name string) bool { return !strings.HasSuffix(name, "_test.go") }, 0, f)
}

// eachSource parses, in a mode beside that of eachFile, the files that are wanted.
func eachSource(t *testing.T, wanted func(name string) bool, mode parser.Mode,
	f func(name string, set *token.FileSet, file *ast.File)) {
	t.Helper()
	const root = "../.."
	files := 0
	err := filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		if path == root+"/bin" {
			return fs.SkipDir // sources that go with licences of others
		}
		if err != nil || e.IsDir() || !strings.HasSuffix(path, ".go") {
			return err
		}
		name, err := filepath.Rel(root, path)
		if err != nil || !wanted(name) {
			return err
		}
		files++
		set := token.NewFileSet()
		file, err := parser.ParseFile(set, path, nil, parser.SkipObjectResolution|mode)
		if err != nil {
			return err
		}
		f(name, set, file)
		return nil
	})
	if err != nil || files < 100 {
		t.Fatalf("%d files were read: %v", files, err)
	}
}

// One package opens sockets of netlink: it numbers messages, checks responses and detects lost ones.
func TestOneOwnerOfNetlink(t *testing.T) {
	owners := []string{"dataplane/kernel/netlink/", "integration/"}
	opened := false
	eachFile(t, func(name string, set *token.FileSet, file *ast.File) {
		ast.Inspect(file, func(n ast.Node) bool {
			s, ok := n.(*ast.SelectorExpr)
			if !ok || s.Sel.Name != "AF_NETLINK" {
				return true
			}
			opened = true
			if !slices.ContainsFunc(owners, func(owner string) bool { return strings.HasPrefix(name, owner) }) {
				t.Errorf("%s opens a socket: use dataplane/kernel/netlink", set.Position(s.Pos()))
			}
			return true
		})
	})
	if !opened {
		t.Error("no file names AF_NETLINK: is the check complete?")
	}
}
