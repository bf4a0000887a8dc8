package uplinks

import (
	"os"
	"strings"
	"testing"

	"github.com/manxnet/manx/integration/e2e/world"
)

const page = "../../../docs/bgp.md"

// documented is the block of the section "Two uplinks", with all settings.
func documented(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(page)
	world.Must(t, err)
	_, section, ok := strings.Cut(string(text), "\n## Two uplinks\n")
	_, block, ok2 := strings.Cut(section, "```yaml\n")
	block, _, ok3 := strings.Cut(block, "```\n")
	if !ok || !ok2 || !ok3 {
		t.Fatalf("%s has no section Two uplinks with a block of YAML", page)
	}
	return block
}

// without returns the documented block with another text in place of a setting.
func without(t *testing.T, setting, instead string) string {
	t.Helper()
	block := documented(t)
	if strings.Count(block, setting) != 2 {
		t.Fatalf("the block of %s should have %q for each router:\n%s", page, setting, block)
	}
	return strings.ReplaceAll(block, setting, instead)
}
