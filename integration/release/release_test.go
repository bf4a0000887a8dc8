package release

import (
	"debug/buildinfo"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

const source = "../.."

var programs = []string{"manxd", "manxctl", "manx-cni", "manx-cni-direct", "manx-birdsock"}

// copySources copies the files of the project, and no built ones but the tools, which would take minutes.
func copySources(t *testing.T, to string) {
	t.Helper()
	err := filepath.WalkDir(source, func(path string, d fs.DirEntry, err error) error {
		name, _ := filepath.Rel(source, path)
		switch {
		case err != nil:
			return err
		case name == ".git" || name == "bin" || name == "dist" || name == ".cache":
			if d.IsDir() {
				return fs.SkipDir
			}
			return nil // in a worktree .git is a file
		case d.IsDir():
			return os.MkdirAll(filepath.Join(to, name), 0o755)
		}
		info, err := d.Info()
		if err != nil || !info.Mode().IsRegular() {
			return err
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		copied := filepath.Join(to, name) // not newer than the tools
		return errors.Join(os.WriteFile(copied, b, info.Mode().Perm()), os.Chtimes(copied, time.Time{}, info.ModTime()))
	})
	tools, toolsErr := filepath.Abs(filepath.Join(source, "bin/tools"))
	if err := errors.Join(err, toolsErr, os.MkdirAll(tools, 0o755), os.MkdirAll(filepath.Join(to, "bin"), 0o755),
		os.Symlink(tools, filepath.Join(to, "bin/tools"))); err != nil {
		t.Fatal(err)
	}
}

func run(t *testing.T, dir, name string, args ...string) {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Dir = dir
	// In place of this machine's setting; the modules are in Go's cache.
	cmd.Env = append(os.Environ(), "GOFLAGS=-buildvcs=auto", "GOPROXY=off")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s %v: %v\n%s", name, args, err, out)
	}
}

// billOfMaterials is the part of a CycloneDX document that matters here.
type billOfMaterials struct {
	Format   string `json:"bomFormat"`
	Metadata struct {
		Component struct{ Name, Version string } `json:"component"`
	} `json:"metadata"`
	Components []struct {
		Name, Version string
		Evidence      struct {
			Licenses []struct{ License struct{ ID, Name string } } `json:"licenses"`
		} `json:"evidence"`
	} `json:"components"`
}

// TestModulesAndLicences checks the records beside the programs against those that the linker wrote into them: each
// module is listed with its version and a licence, and the text of the licence is there.
func TestModulesAndLicences(t *testing.T) {
	bin := filepath.Join(source, "bin")
	for _, p := range programs {
		info, err := buildinfo.ReadFile(filepath.Join(bin, p))
		if err != nil {
			t.Skipf("%v: run `make build`", err)
		}
		text, err := os.ReadFile(filepath.Join(bin, p+".cdx.json"))
		if errors.Is(err, fs.ErrNotExist) {
			t.Skip("bin has no records: `make sbom` prints the reason")
		}
		var b billOfMaterials
		if err := errors.Join(err, json.Unmarshal(text, &b)); err != nil {
			t.Fatal(err)
		}
		if c := b.Metadata.Component; b.Format != "CycloneDX" || c.Name != info.Main.Path || c.Version == "" ||
			c.Version == "v0.0.0" {
			t.Errorf("%s: %s about %+v", p, b.Format, c)
		}
		listed := map[string]bool{}
		for _, c := range b.Components {
			listed[c.Name+"@"+c.Version] = len(c.Evidence.Licenses) > 0
		}
		for _, m := range info.Deps {
			if m.Replace != nil {
				m = m.Replace
			}
			if licensed, ok := listed[m.Path+"@"+m.Version]; !ok || !licensed {
				t.Errorf("%s: %s@%s: listed: %t, with a licence: %t", p, m.Path, m.Version, ok, licensed)
			}
			if !hasText(filepath.Join(bin, "licenses"), m.Path) {
				t.Errorf("%s: no text of the licence of %s", p, m.Path)
			}
		}
	}
	for _, own := range []string{"LICENSE", "go/LICENSE"} {
		if _, err := os.Stat(filepath.Join(bin, "licenses", own)); err != nil {
			t.Error(err)
		}
	}
}

// hasText reports whether there is a licence in the folder of the module, or of packages in it.
func hasText(licences, module string) bool {
	found := false
	_ = filepath.WalkDir(filepath.Join(licences, module), func(_ string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			found = true
		}
		return nil
	})
	return found
}

// database writes a database of vulnerabilities in the format of https://go.dev/security/vuln/database, with one in
// every version of that module, or none.
func database(t *testing.T, module string) string {
	t.Helper()
	dir := t.TempDir()
	write := func(name string, value any) {
		b, err := json.Marshal(value)
		err = errors.Join(err, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755),
			os.WriteFile(filepath.Join(dir, name), b, 0o644))
		if err != nil {
			t.Fatal(err)
		}
	}
	const when, id = "2026-01-02T03:04:05Z", "GO-2026-9999"
	write("index/db.json", map[string]any{"modified": when})
	modules := []any{}
	if module != "" {
		modules = append(modules, map[string]any{"path": module,
			"vulns": []any{map[string]any{"id": id, "modified": when}}})
		write("ID/"+id+".json", map[string]any{"schema_version": "1.3.1", "id": id, "modified": when, "published": when,
			"summary": "made up", "details": "made up",
			"database_specific": map[string]any{"url": "https://example.org/" + id},
			"affected": []any{map[string]any{
				"package": map[string]any{"name": module, "ecosystem": "Go"},
				"ranges": []any{map[string]any{"type": "SEMVER",
					"events": []any{map[string]any{"introduced": "0"}}}},
				"ecosystem_specific": map[string]any{"imports": []any{map[string]any{"path": module}}},
			}}})
	}
	write("index/modules.json", modules)
	return "file://" + dir
}

// TestVulncheck compares the programs with databases without entries, with an entry for a module in use, and that
// cannot be reached.
func TestVulncheck(t *testing.T) {
	if _, err := os.Stat(filepath.Join(source, "bin", "manxd")); err != nil {
		t.Skip("bin/manxd is not built: run `make build`")
	}
	build := exec.Command("go", "build", "-C", filepath.Join(source, "integration", "supply"), "-o", os.DevNull,
		"golang.org/x/vuln/cmd/govulncheck")
	if out, err := build.CombinedOutput(); err != nil {
		t.Skipf("govulncheck cannot be built here: %s", out)
	}
	for _, test := range []struct {
		name, database string
		status         int
		texts          []string
	}{
		{"nothing is known", database(t, ""), 0, []string{"bin/manxd:", "bin/manx-cni:", "No vulnerabilities found"}},
		{"a module in use", database(t, "google.golang.org/grpc"), 3,
			[]string{"GO-2026-9999", "google.golang.org/grpc"}},
		{"out of reach", "http://127.0.0.1:1", 75,
			[]string{"nothing was checked: the database http://127.0.0.1:1 cannot be reached (or is none)",
				"GOVULNDB=URL make vulncheck"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			cmd := exec.Command("../supply/vulncheck")
			cmd.Env = append(os.Environ(), "GOVULNDB="+test.database)
			out, _ := cmd.CombinedOutput()
			if got := cmd.ProcessState.ExitCode(); got != test.status {
				t.Errorf("status %d, want %d:\n%s", got, test.status, out)
			}
			if i := slices.IndexFunc(test.texts,
				func(text string) bool { return !strings.Contains(string(out), text) }); i >= 0 {
				t.Errorf("%q is not in:\n%s", test.texts[i], out)
			}
		})
	}
}
