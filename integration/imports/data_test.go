package imports

import (
	"crypto/sha256"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestDataLiesOnce: data that two packages read is in one of their folders testdata. One of two copies becomes outdated
// sooner or later.
func TestDataLiesOnce(t *testing.T) {
	type place struct{ tree, file string }
	seen, files := map[[sha256.Size]byte]place{}, 0
	err := filepath.WalkDir("../..", func(path string, e fs.DirEntry, err error) error {
		if err == nil && e.IsDir() && strings.HasPrefix(e.Name(), ".") && path != "../.." {
			return fs.SkipDir
		}
		before, _, in := strings.Cut(filepath.ToSlash(path), "/testdata/")
		if err != nil || !in || !e.Type().IsRegular() {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil || len(text) == 0 {
			return err
		}
		files++
		hash := sha256.Sum256(text)
		if other, there := seen[hash]; there && other.tree != before {
			t.Errorf("%s is a copy of %s: read one of them from both packages", path, other.file)
		}
		seen[hash] = place{before, path}
		return nil
	})
	if err != nil || files < 100 {
		t.Fatalf("%d files were read: %v", files, err)
	}
}
