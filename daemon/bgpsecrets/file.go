package bgpsecrets

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/manxnet/manx/datastore/safefile"
)

// file keeps passwords for the next process, in a file system in memory: they survive the process, not the machine, and
// never reach a disk (apart from swap).
type file struct {
	path              string // empty: passwords are not kept
	server, namespace string // whose Secrets they are of
	written           map[ref]string
}

// fileLimit bounds the file, in bytes.
const fileLimit = 1 << 20

type content struct {
	Server    string  `json:"server"`
	Namespace string  `json:"namespace"`
	Passwords []entry `json:"passwords"`
}

type entry struct {
	Secret   string `json:"secret"`
	Key      string `json:"key"`
	Password string `json:"password"`
}

// read returns the passwords of an earlier process, none if there is no file.
func (f *file) read() (map[ref]string, error) {
	if f.path == "" {
		return nil, nil
	}
	raw, _, err := safefile.ReadTrusted(f.path, fileLimit)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var c content
	if err == nil {
		err = json.Unmarshal(raw, &c)
	}
	switch {
	case err != nil:
		return nil, fmt.Errorf("%s: %w", f.path, err)
	case c.Server != f.server || c.Namespace != f.namespace:
		return nil, fmt.Errorf("%s is of the namespace %s at %s", f.path, c.Namespace, c.Server)
	}
	list := map[ref]string{}
	for _, e := range c.Passwords {
		list[ref{e.Secret, e.Key}] = e.Password
	}
	f.written = maps.Clone(list)
	return list, nil
}

// write replaces the passwords in the file, if they differ.
func (f *file) write(passwords map[ref]string) error {
	if f.path == "" || maps.Equal(passwords, f.written) {
		return nil
	}
	if err := inMemory(filepath.Dir(f.path)); err != nil {
		return err
	}
	c := content{Server: f.server, Namespace: f.namespace, Passwords: []entry{}}
	for at, password := range passwords {
		c.Passwords = append(c.Passwords, entry{at.secret, at.key, password})
	}
	raw, err := json.Marshal(c)
	if err != nil {
		return err
	}
	if err := safefile.Replace(f.path, raw, 0o600); err != nil {
		return err
	}
	f.written = maps.Clone(passwords)
	return nil
}

// inMemory fails for a folder on a disk.
func inMemory(folder string) error {
	var st unix.Statfs_t
	switch err := unix.Statfs(folder, &st); {
	case err != nil:
		return fmt.Errorf("%s: %w", folder, err)
	case st.Type != unix.TMPFS_MAGIC && st.Type != unix.RAMFS_MAGIC:
		return fmt.Errorf("%s is not in memory (tmpfs)", folder)
	}
	return nil
}
