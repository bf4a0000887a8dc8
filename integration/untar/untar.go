// Package untar reads archives into memory, for tests.
package untar

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"testing"
)

// Files returns the files of an archive by name. The archive may be compressed by gzip. Each header goes to the checks
// first.
func Files[T string | []byte](t testing.TB, archive []byte, checks ...func(*tar.Header)) map[string]T {
	t.Helper()
	var in io.Reader = bytes.NewReader(archive)
	if bytes.HasPrefix(archive, []byte("\x1f\x8b")) {
		z, err := gzip.NewReader(in)
		if err != nil {
			t.Fatal(err)
		}
		in = z
	}
	files := map[string]T{}
	for r := tar.NewReader(in); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, check := range checks {
			check(h)
		}
		content, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		files[h.Name] = T(content)
	}
}
