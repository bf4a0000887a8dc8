package bgp

import (
	"os"
	"path/filepath"
	"testing"
)

func TestPasswordDirReadsOnlyInsideItsFolder(t *testing.T) {
	root := t.TempDir()
	dir := filepath.Join(root, "passwords")
	if err := os.MkdirAll(filepath.Join(dir, "tor"), 0o700); err != nil {
		t.Fatal(err)
	}
	for path, text := range map[string]string{
		filepath.Join(dir, "tor", "key"): "s3cret \n",
		filepath.Join(root, "outside"):   "no",
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		secret, key, want string
		ok                bool
	}{
		{"tor", "key", "s3cret ", true},
		{"tor", "other", "", false},
		{"..", "outside", "", false},
		{"tor/..", "outside", "", false},
		{"tor", "../../outside", "", false},
		{"", "", "", false},
	} {
		got, ok := PasswordDir(dir).Password(c.secret, c.key)
		if got != c.want || ok != c.ok {
			t.Errorf("%q %q: %q, %v; want %q, %v", c.secret, c.key, got, ok, c.want, c.ok)
		}
	}
	if _, ok := PasswordDir("").Password("tor", "key"); ok {
		t.Error("no folder must have no passwords")
	}
}
