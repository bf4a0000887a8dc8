package lint

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// root is the folder of the repository.
const root = "../.."

// source returns the files of a tree whose names have an ending, by path. Folders that begin with a dot, bin and
// testdata are left out.
func source(t *testing.T, folder, ending string) map[string][]byte {
	t.Helper()
	files := map[string][]byte{}
	err := filepath.WalkDir(folder, func(path string, e fs.DirEntry, err error) error {
		name := e.Name()
		switch {
		case err != nil:
			return err
		case e.IsDir() && path != folder && (strings.HasPrefix(name, ".") || name == "bin" || name == "testdata"):
			return filepath.SkipDir
		case e.IsDir() || !strings.HasSuffix(name, ending):
			return nil
		}
		files[strings.TrimPrefix(path, folder+"/")], err = os.ReadFile(path)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(files) == 0 {
		t.Fatalf("no file *%s in %s", ending, folder)
	}
	return files
}
