package differences

import (
	"cmp"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var write = flag.Bool("write-differences", false, "write the lists into docs/differences.md and decision 0003")

// difference is one behaviour of calico/node, as a fact, and that of Manx, as its check shows.
type difference struct {
	name   string
	calico string
	manx   string // the same as calico/node's if empty: copied on purpose
	why    string
	check  func(*testing.T) // shows Manx's side ...
	shown  string           // ... or the name of the test that shows it: "bgp/speaker TestX"
}

// theme is a group of differences.
type theme struct {
	name string
	list []difference
}

var themes = []theme{
	{"Sessions", sessions},
	{"How sessions are set up", settings},
	{"Announced routes", announced},
	{"Filters", filters},
	{"Services", services},
	{"Routes in the kernel", kernelRoutes},
	{"Overlays", overlays},
	{"Status and registration", registration},
}

// TestDifferences shows for each difference that Manx behaves as in the list.
func TestDifferences(t *testing.T) {
	names := map[string]bool{}
	for _, th := range themes {
		for _, d := range th.list {
			t.Run(th.name+"/"+d.name, func(t *testing.T) {
				switch {
				case names[d.name]:
					t.Error("there are two of this name")
				case d.calico == "" || d.why == "":
					t.Error("calico/node's side or the reason is missing")
				case (d.check == nil) == (d.shown == ""):
					t.Error("want either a check or the name of a test")
				case d.check != nil:
					d.check(t)
				default:
					exists(t, d.shown)
				}
				names[d.name] = true
			})
		}
	}
}

// exists fails unless a test exists: "bgp/speaker TestX".
func exists(t *testing.T, shown string) {
	t.Helper()
	folder, test, _ := strings.Cut(shown, " ")
	files, err := filepath.Glob(filepath.Join("..", "..", filepath.FromSlash(folder), "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(b), "func "+test+"(t ") {
			return
		}
	}
	t.Errorf("there is no test %s in %s", test, folder)
}

const (
	listHead = "<!-- differences from calico/node -->\n"
	listEnd  = "<!-- end of the differences -->\n"
)

// behaviours returns the list for users.
func behaviours() string {
	var b strings.Builder
	b.WriteString("Written by `make differences` from `integration/differences`, where a test shows each of them. " +
		"The reasons are in\n" +
		"[decision 0003](decisions/0003-differences-from-calico-node.md).\n")
	for _, th := range themes {
		fmt.Fprintf(&b, "\n## %s\n\n| | calico/node | Manx |\n|---|---|---|\n", th.name)
		for _, d := range th.list {
			fmt.Fprintf(&b, "| %s | %s | %s |\n", d.name, d.calico, cmp.Or(d.manx, "the same"))
		}
	}
	return b.String()
}

// reasons returns the list for the decision record.
func reasons() string {
	var b strings.Builder
	b.WriteString("Written by `make differences`. docs/differences.md says of each how the two behave.\n\n" +
		"| difference | why |\n|---|---|\n")
	for _, th := range themes {
		for _, d := range th.list {
			same := ""
			if d.manx == "" {
				same = " (copied)"
			}
			fmt.Fprintf(&b, "| %s%s | %s |\n", d.name, same, d.why)
		}
	}
	return b.String()
}

// TestListsInTheDocumentation fails when the documentation has other lists; -write-differences corrects them.
func TestListsInTheDocumentation(t *testing.T) {
	for file, want := range map[string]string{
		"../../docs/differences.md":                                 behaviours(),
		"../../docs/decisions/0003-differences-from-calico-node.md": reasons(),
	} {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		before, rest, ok := strings.Cut(string(b), listHead)
		have, after, ok2 := strings.Cut(rest, listEnd)
		if !ok || !ok2 {
			t.Fatalf("%s has no marks %q and %q", file, listHead, listEnd)
		}
		switch {
		case have == want:
		case *write:
			if err := os.WriteFile(file, []byte(before+listHead+want+listEnd+after), 0o644); err != nil {
				t.Fatal(err)
			}
		default:
			t.Errorf("the list of %s is not that of this test; `make differences` writes it anew", file)
		}
	}
}
