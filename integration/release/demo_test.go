package release

import (
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestDemoBuildsWhatItRuns: a first look waits for no list of modules, no licences and no program that it does not run.
func TestDemoBuildsWhatItRuns(t *testing.T) {
	cmd := exec.Command("make", "-n", "demo")
	cmd.Dir = source
	text, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	out := string(text)
	built := regexp.MustCompile(`\./cmd/\S+`).FindAllString(out, -1)
	if want := []string{"./cmd/manxd", "./cmd/manxctl", "./cmd/manx-cni"}; !slices.Equal(built, want) {
		t.Errorf("it builds %q, want %q", built, want)
	}
	if strings.Contains(out, "integration/supply") || strings.Count(out, "-trimpath") != 2 {
		t.Errorf("it makes records, or compiles twice:\n%s", out)
	}
}
