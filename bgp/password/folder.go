package password

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"
)

// maxLength is the kernel's limit for a TCP MD5 key (TCP_MD5SIG_MAXKEYLEN), in bytes.
const maxLength = 80

// Folder is a bgp.PasswordSource over a folder with a file for each password, SECRET/KEY, as Kubernetes mounts secrets.
//
// A password that was read once stays in use until the process ends, even if its file is gone, empty or unreadable: a
// session must never lose its protection because of a file. To run a session without a password, remove the password
// from the BGPPeer.
type Folder struct {
	dir     string
	changed chan struct{} // holds one token when passwords may have changed

	mu        sync.Mutex
	good      map[name]string
	seen      map[name]sighting // files that may still be written, on file systems without leases
	lastReads map[name]lastRead
	now       func() time.Time
}

type name struct{ secret, key string }

// NewFolder returns the passwords of a folder, which need not exist yet. The empty name has no passwords.
func NewFolder(dir string) *Folder {
	return &Folder{dir: dir, changed: make(chan struct{}, 1), good: map[name]string{}, seen: map[name]sighting{},
		lastReads: map[name]lastRead{}, now: time.Now}
}

// Password returns the value of a key of a secret, without a trailing line end.
//
// An error is why it cannot be read now. A password beside an error is the one that was read last, and is to be used.
func (f *Folder) Password(secret, key string) (string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := name{secret, key}
	if err := f.check(n); err != nil {
		return "", err
	}
	content, info, err := f.readFile(n)
	f.lastReads[n] = newLastRead(info, err, f.now())
	var password string
	if err == nil {
		password, err = Valid(content, fmt.Sprintf("the file %s/%s", n.secret, n.key))
	}
	if err != nil {
		return f.good[n], err
	}
	f.good[n] = password
	return password, nil
}

// check returns why there can be no file for a password.
func (f *Folder) check(n name) error {
	if f.dir == "" {
		return errors.New("--bgp-password-dir is not set")
	}
	for _, part := range []string{n.secret, n.key} {
		if !plainName(part) {
			return fmt.Errorf("%q cannot be the name of a file", part)
		}
	}
	return nil
}

// Valid returns the password in a text, without the line end after it. An error has the reason why there is none; place
// is its name of the text.
func Valid(text, place string) (string, error) {
	password := strings.TrimRight(text, "\r\n")
	switch {
	case strings.TrimSpace(password) == "":
		return "", fmt.Errorf("%s is empty", place)
	case len(password) > maxLength:
		return "", fmt.Errorf("%s holds %d bytes: TCP MD5 takes at most %d", place, len(password), maxLength)
	}
	return password, nil
}

// Place returns the path where a password is expected.
func (f *Folder) Place(secret, key string) string {
	return fmt.Sprintf("the file %s/%s of the folder --bgp-password-dir", secret, key)
}

// plainName keeps a name from the datastore from leading out of the folder.
func plainName(s string) bool {
	return s != "" && s != "." && s != ".." && !strings.ContainsAny(s, "/\x00")
}
