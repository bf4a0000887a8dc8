package hostlocal

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/manxnet/manx/datastore/safefile"
)

const (
	// maxSize is the largest size of a file in bytes: it has the ID of a container and the name of an interface.
	maxSize = 1024
	// maxFiles is more than the addresses that the pods of a node have.
	maxFiles = 1 << 16
	lockName = "lock"
	lastName = "last_reserved_ip." // a prefix: where the plugin goes on
)

// containerID is the form of the ID of a container in CNI.
var containerID = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9_.\-]{0,127}$`)

// Read returns what a folder of host-local holds; nothing for a missing folder. The error is about a folder that cannot
// be read, or into which others than root can write: whoever forges its files decides which addresses are used.
func Read(folder string) (Content, error) {
	var c Content
	d, err := safefile.Open(folder)
	if errors.Is(err, fs.ErrNotExist) {
		return c, nil
	}
	if err != nil {
		return c, err
	}
	defer d.Close() //nolint:errcheck // only read
	if err := d.CheckOwned(); err != nil {
		return c, fmt.Errorf("%s is not read: %w", folder, err)
	}
	names, err := d.Names()
	if err != nil {
		return c, err
	}
	if len(names) > maxFiles {
		return c, fmt.Errorf("%s has %d entries, more than %d", folder, len(names), maxFiles)
	}
	slices.Sort(names)
	for _, name := range names {
		if name == lockName || strings.HasPrefix(name, lastName) {
			continue
		}
		f, err := readFile(d, name)
		if errors.Is(err, fs.ErrNotExist) {
			continue // released meanwhile
		}
		if err != nil {
			c.Refused = append(c.Refused, Refused{Name: name, Why: err.Error()})
			continue
		}
		c.Files = append(c.Files, f)
	}
	return c, nil
}

func readFile(d *safefile.Dir, name string) (File, error) {
	addr, err := netip.ParseAddr(name)
	if err != nil || addr.String() != name || addr.Zone() != "" || addr.Is4In6() {
		return File{}, errors.New("its name is no address")
	}
	text, err := d.Read(name, maxSize)
	if err != nil {
		return File{}, err
	}
	id, ifName, _ := strings.Cut(string(text), "\n")
	f := File{Address: addr, ContainerID: strings.TrimSpace(id), Interface: strings.TrimSpace(ifName)}
	if !containerID.MatchString(f.ContainerID) {
		return File{}, errors.New("its first line is no ID of a container")
	}
	return f, nil
}

// lock waits until no host-local works in a folder, and keeps it from it until the returned function is called.
func lock(ctx context.Context, folder string) (unlock func(), err error) {
	return safefile.Lock(ctx, filepath.Join(folder, lockName))
}

// remove removes the file of an address.
func remove(folder string, f File) error {
	return safefile.Remove(filepath.Join(folder, f.Address.String()))
}

// tidy removes a folder in which host-local has only its own state left.
func tidy(folder string) error {
	d, err := safefile.Open(folder)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer d.Close() //nolint:errcheck // only read
	names, err := d.Names()
	own := func(name string) bool { return name == lockName || strings.HasPrefix(name, lastName) }
	if err != nil || slices.ContainsFunc(names, func(name string) bool { return !own(name) }) {
		return err
	}
	for _, name := range names {
		if err := d.Remove(name); err != nil {
			return err
		}
	}
	safefile.RemoveDir(folder)
	return nil
}

// Others returns the networks beside folder, that is, its neighbours, for which host-local has assigned addresses.
func Others(folder string) (networks []string) {
	entries, err := os.ReadDir(filepath.Dir(folder))
	if err != nil {
		return nil
	}
	for _, e := range entries {
		if e.Name() == filepath.Base(folder) || !e.IsDir() {
			continue
		}
		if c, err := Read(filepath.Join(filepath.Dir(folder), e.Name())); err == nil && len(c.Files) > 0 {
			networks = append(networks, e.Name())
		}
	}
	return networks
}
