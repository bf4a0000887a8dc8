package bgp

import (
	"os"
	"path/filepath"
	"strings"
)

// PasswordDir is a PasswordSource over a folder with a file for each password, SECRET/KEY, as Kubernetes mounts
// secrets. A line end after the password is not part of it. The empty folder name has no passwords.
type PasswordDir string

// Password implements PasswordSource.
func (d PasswordDir) Password(secret, key string) (string, bool) {
	if d == "" || !plainName(secret) || !plainName(key) {
		return "", false
	}
	b, err := os.ReadFile(filepath.Join(string(d), secret, key))
	if err != nil {
		return "", false
	}
	return strings.TrimRight(string(b), "\r\n"), true
}

// plainName keeps a name from the datastore from leading out of the folder.
func plainName(s string) bool {
	return s != "" && s != "." && s != ".." && !strings.ContainsAny(s, "/\x00")
}
