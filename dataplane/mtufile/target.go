package mtufile

import (
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"
	"time"

	"github.com/manxnet/manx/dataplane/driver"
	"github.com/manxnet/manx/dataplane/hoststate"
	"github.com/manxnet/manx/dataplane/kernel"
	"github.com/manxnet/manx/dataplane/overlay"
	"github.com/manxnet/manx/dataplane/reconcile"
	"github.com/manxnet/manx/datastore/safefile"
)

// path is the path of the file.
type path string

func (p path) String() string { return "file " + string(p) }

// Target keeps the file. Not safe for concurrent use.
type Target struct {
	*driver.Driver[path, string]
	path path
}

// New makes a Target for the file at a path, empty: no file. The MTU follows from the interfaces of the kernel; now is
// the clock.
func New(k kernel.Links, file string, now func() time.Time) *Target {
	t := &Target{path: path(file)}
	t.Driver = driver.New(t, driver.Config[path, string]{
		Name: "mtu-file", Part: "interfaces", ListLinks: k.ListLinks, Now: now})
	return t
}

// Desired implements driver.Objects.
func (t *Target) Desired(h *hoststate.Host, links map[string]kernel.Link) map[path]string {
	if t.path == "" {
		return nil
	}
	host, _ := h.UplinkMTU(links)
	if host == 0 {
		return nil // not known yet; the file of an earlier run stays
	}
	return map[path]string{t.path: strconv.Itoa(overlay.PodMTU(&h.Felix, h.PoolTable(), host))}
}

// List implements driver.Objects.
func (t *Target) List() (map[path]string, error) {
	if t.path == "" {
		return nil, nil
	}
	data, err := safefile.Read(string(t.path), 1<<10)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case err != nil:
		return nil, err
	}
	return map[path]string{t.path: strings.TrimSpace(string(data))}, nil
}

// Apply implements driver.Objects. It replaces the file as a whole: readers never read a part of it. As Felix, without
// a newline.
func (t *Target) Apply(steps []reconcile.Step[path, string]) []error {
	errs := make([]error, len(steps))
	for i, s := range steps {
		if s.Action == reconcile.Remove {
			continue // the last MTU stays
		}
		if err := safefile.Replace(string(s.Key), []byte(s.New), 0o644); err != nil {
			errs[i] = fmt.Errorf("write the MTU: %w", err)
		}
	}
	return errs
}
