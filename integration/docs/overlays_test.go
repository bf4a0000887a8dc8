package docs

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// named matches a file or a folder of the repository in a page.
var named = regexp.MustCompile("(new: )?`((?:bgp|cmd|dataplane|datastore|integration)(?:/[a-z0-9_]+)+(?:\\.go)?)`")

// The page for those who add an overlay names files and folders that exist, and new ones that do not exist yet.
func TestOverlaysNamesFiles(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "docs/overlays.md"))
	if err != nil {
		t.Fatal(err)
	}
	all := named.FindAllStringSubmatch(strings.ReplaceAll(string(text), "\n", " "), -1)
	if len(all) < 30 {
		t.Errorf("%d names are found: the test does not read the page", len(all))
	}
	for _, m := range all {
		_, err := os.Stat(filepath.Join(root, m[2]))
		switch isNew := m[1] != ""; {
		case isNew && err == nil:
			t.Errorf("%s is not new any more", m[2])
		case !isNew && err != nil:
			t.Errorf("%s: %v", m[2], err)
		}
	}
}
