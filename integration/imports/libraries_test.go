package imports

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestLibrariesHaveReasons: a page of decisions says why Manx requires each module that it requires directly.
func TestLibrariesHaveReasons(t *testing.T) {
	out, err := exec.Command("go", "mod", "edit", "-json", "../../go.mod").Output()
	if err != nil {
		t.Fatal(err)
	}
	var mod struct {
		Require []struct {
			Path     string
			Indirect bool
		}
		Tool []struct{ Path string }
	}
	if err := json.Unmarshal(out, &mod); err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	pages, err := filepath.Glob("../../docs/decisions/*.md")
	for _, page := range pages {
		content, readErr := os.ReadFile(page)
		if readErr != nil {
			t.Fatal(readErr)
		}
		text.Write(content)
	}
	if err != nil || len(pages) < 10 || len(mod.Tool) == 0 {
		t.Fatalf("%d pages, %d tools: %v", len(pages), len(mod.Tool), err)
	}
	direct := 0
	for _, m := range mod.Require {
		tool := slices.ContainsFunc(mod.Tool, func(t struct{ Path string }) bool {
			return matches(m.Path+"/...", t.Path)
		})
		if m.Indirect && !tool {
			continue
		}
		direct++
		if !strings.Contains(text.String(), "`"+m.Path+"`") {
			t.Errorf("docs/decisions/0004-libraries.md has no reason for %s", m.Path)
		}
	}
	if direct < 20 {
		t.Errorf("only %d modules are required directly", direct)
	}
}
