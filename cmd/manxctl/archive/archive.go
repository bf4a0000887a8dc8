// Package archive writes texts into a compressed archive for a report, and hides those parts that look like a secret.
package archive

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"

	"github.com/manxnet/manx/datastore/userinfo"
)

// mostBytes bounds a file of an archive.
const mostBytes = 64 << 20

// Archive is a tar file, compressed by gzip. Its methods keep the first error for Close.
type Archive struct {
	gzip   *gzip.Writer
	tar    *tar.Writer
	folder string
	now    time.Time
	err    error
}

// New begins an archive, whose files are in one folder and have one time.
func New(w io.Writer, folder string, now time.Time) *Archive {
	g := gzip.NewWriter(w)
	return &Archive{gzip: g, tar: tar.NewWriter(g), folder: folder, now: now}
}

// Add adds a text, without what looks like a user and a password before a host. Of a longer one than mostBytes the rest
// is left out.
func (a *Archive) Add(name string, text []byte) {
	a.AddRaw(name, userinfo.Hide(cut(text, mostBytes)))
}

// AddRaw adds a file as it is.
func (a *Archive) AddRaw(name string, content []byte) {
	if a.err != nil {
		return
	}
	a.err = a.tar.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: a.folder + "/" + name, Mode: 0o600,
		Size: int64(len(content)), ModTime: a.now})
	if a.err == nil {
		_, a.err = a.tar.Write(content)
	}
}

// Close ends the archive, and returns the first error.
func (a *Archive) Close() error {
	return errors.Join(a.err, a.tar.Close(), a.gzip.Close())
}

// leftOut is the end of a text that is too long.
const leftOut = "\n... the rest is left out: it is too long\n"

// cut shortens a text, between words: half of a password before a host would not be known as one.
func cut(text []byte, most int) []byte {
	if len(text) <= most {
		return text
	}
	end := bytes.LastIndexAny(text[:most], " \t\n") + 1
	return append(text[:end:end], leftOut...)
}

// Bounded is the begin of an output, which may be longer than mostBytes.
type Bounded struct{ kept []byte }

// Write implements io.Writer.
func (b *Bounded) Write(p []byte) (int, error) {
	b.kept = append(b.kept, p[:min(len(p), mostBytes+1-len(b.kept))]...)
	return len(p), nil
}

// Bytes returns what was kept.
func (b *Bounded) Bytes() []byte { return b.kept }

// Create creates a file, which the user alone can read, and passes it to write. It follows no link, and replaces
// nothing. After an error there is no file.
func Create(path string, write func(io.Writer) error) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	switch {
	case errors.Is(err, fs.ErrExist):
		return fmt.Errorf("%s exists, and is not overwritten: name another file, or remove it", path)
	case err != nil:
		return err
	}
	if err := errors.Join(write(f), f.Close()); err != nil {
		return errors.Join(err, os.Remove(path))
	}
	return nil
}

// Temporary creates a file of a new name, which the user alone can read, in the folder for temporary files. A "*" in
// the pattern becomes the part of the name that is random.
func Temporary(pattern string, content []byte) (path string, err error) {
	f, err := os.CreateTemp("", pattern)
	if err != nil {
		return "", err
	}
	_, err = f.Write(content)
	return f.Name(), errors.Join(err, f.Close())
}

// Forget removes a temporary file.
func Forget(path string) error { return os.Remove(path) }
