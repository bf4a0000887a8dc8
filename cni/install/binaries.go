package install

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/manxnet/manx/datastore/safefile"
)

// program is installed under several names, in this order: a program comes before those that execute it.
type program struct {
	source string
	names  []string
}

var programs = []program{
	{"manx-cni-direct", []string{"manx-cni-direct"}},
	{"manx-cni", []string{"manx-cni", "calico", "calico-ipam"}},
}

// longestProgram bounds the size of a program that is read, in bytes.
const longestProgram = 512 << 20

// Binaries copies the plugins to the runtime's plugin folders.
type Binaries struct {
	// From is the folder with manx-cni and manx-cni-direct; Others, which need not exist, has further plugins.
	From, Others string
	// To are the folders on the host. Missing and read-only folders are skipped, but one must be writable.
	To []string
	// Skip are names that are not installed.
	Skip []string
	// Keep leaves existing files unchanged, whatever their content.
	Keep bool
}

// Install copies the plugins that differ, and returns the written ones.
func (b Binaries) Install() (written []string, err error) {
	plugins, err := b.plugins()
	if err != nil {
		return nil, err
	}
	var problems []error
	usable := 0
	for _, dir := range b.To {
		if err := unix.Access(dir, unix.W_OK); err != nil {
			problems = append(problems, fmt.Errorf("%s: %w", dir, err))
			continue
		}
		usable++
		names, err := b.into(dir, plugins)
		written = append(written, names...)
		if err != nil {
			return written, err
		}
	}
	if usable == 0 && b.Keep && b.present() {
		return nil, nil
	}
	if usable == 0 {
		return nil, fmt.Errorf("no folder for CNI plugins can be written: %w", errors.Join(problems...))
	}
	return written, nil
}

// present reports whether a folder has the plugins that a network configuration names.
func (b Binaries) present() bool {
	return slices.ContainsFunc(b.To, func(dir string) bool {
		for _, name := range []string{"calico", "calico-ipam"} {
			if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
				return false
			}
		}
		return true
	})
}

// plugin is the source of one name.
type plugin struct{ name, source string }

func (b Binaries) plugins() (list []plugin, err error) {
	for _, p := range programs {
		for _, name := range p.names {
			list = append(list, plugin{name, filepath.Join(b.From, p.source)})
		}
	}
	entries, err := os.ReadDir(b.Others)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for _, e := range entries {
		known := slices.ContainsFunc(list, func(p plugin) bool { return p.name == e.Name() })
		if e.Type().IsRegular() && !known && e.Name() != "install" {
			list = append(list, plugin{e.Name(), filepath.Join(b.Others, e.Name())})
		}
	}
	return slices.DeleteFunc(list, func(p plugin) bool { return slices.Contains(b.Skip, p.name) }), nil
}

func (b Binaries) into(dir string, plugins []plugin) (written []string, err error) {
	d, err := safefile.Open(dir)
	if err != nil {
		return nil, err
	}
	d.RemoveLeftovers(time.Now())
	if err := d.Close(); err != nil {
		return nil, err
	}
	for _, p := range plugins {
		path := filepath.Join(dir, p.name)
		content, err := os.ReadFile(p.source)
		if err != nil {
			return written, fmt.Errorf("plugin %s: %w", p.name, err)
		}
		if info, err := os.Lstat(path); err == nil && info.Mode() == 0o755 {
			have, err := safefile.Read(path, longestProgram)
			if b.Keep || err == nil && bytes.Equal(have, content) {
				continue
			}
		}
		if err := safefile.Replace(path, content, 0o755); err != nil {
			return written, fmt.Errorf("plugin %s: %w", p.name, err)
		}
		written = append(written, path)
	}
	return written, nil
}

// Remove removes the plugins that equal those that would be installed. Others of the same names, such as Calico's,
// stay.
func (b Binaries) Remove() (removed []string, err error) {
	plugins, err := b.plugins()
	if err != nil {
		return nil, err
	}
	var problems []error
	slices.Reverse(plugins)
	for _, dir := range b.To {
		for _, p := range plugins {
			path := filepath.Join(dir, p.name)
			have, haveErr := safefile.Read(path, longestProgram)
			content, err := safefile.Read(p.source, longestProgram)
			if haveErr != nil || err != nil || !bytes.Equal(have, content) {
				continue
			}
			if err := remove(path); err != nil {
				problems = append(problems, err)
				continue
			}
			removed = append(removed, path)
		}
	}
	return removed, errors.Join(problems...)
}

// remove removes a file. A missing file is no error.
func remove(path string) error {
	d, err := safefile.Open(filepath.Dir(path))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer d.Close() //nolint:errcheck // only read
	return d.Remove(filepath.Base(path))
}
