package server

import (
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
)

func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// TestDocumentedRoles: the table of docs/control-api.md has every call of the service in the row of its role.
func TestDocumentedRoles(t *testing.T) {
	rows := map[Role]map[string]bool{}
	_, table, _ := strings.Cut(read(t, "../../docs/control-api.md"), "### Who may call what")
	for line := range strings.Lines(table[:strings.Index(table, "\n\nA call")]) {
		cells := strings.Split(line, "|")
		if len(cells) < 3 {
			continue
		}
		r := map[string]Role{"read": RoleRead, "admin": RoleAdmin,
			"only on the socket": RoleLocal}[strings.TrimSpace(cells[1])]
		rows[r] = map[string]bool{}
		for _, word := range strings.FieldsFunc(cells[2], func(c rune) bool { return strings.ContainsRune(" ,;", c) }) {
			rows[r][word] = true
		}
	}
	for method, r := range access {
		name, ours := strings.CutPrefix(method, "/manx.v1.Manx/")
		if !ours {
			continue
		}
		for _, other := range slices.Sorted(maps.Keys(rows)) {
			if rows[other][name] != (other == r) {
				t.Errorf("%s is in the row of %q: %t; its role is %q", name, other, rows[other][name], r)
			}
		}
	}
}

// TestDocumentedClient: the client in docs/control-api.md is the one that is tested.
func TestDocumentedClient(t *testing.T) {
	client := read(t, "../../docs/examples/control/main.go")
	if !strings.Contains(read(t, "../../docs/control-api.md"), "```go\n"+client+"```\n") {
		t.Errorf("docs/control-api.md does not have the client as it is:\n%s", client)
	}
}
