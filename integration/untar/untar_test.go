package untar

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"maps"
	"testing"
)

func TestFiles(t *testing.T) {
	want := map[string]string{"a": "one", "b/c": ""}
	var plain, packed bytes.Buffer
	w := tar.NewWriter(&plain)
	for name, text := range want {
		if err := w.WriteHeader(&tar.Header{Name: name, Size: int64(len(text)), Uid: 5}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	z := gzip.NewWriter(&packed)
	if _, err := z.Write(plain.Bytes()); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	for form, archive := range map[string][]byte{"tar": plain.Bytes(), "tar.gz": packed.Bytes()} {
		owners := 0
		files := Files[string](t, archive, func(h *tar.Header) { owners += h.Uid })
		if !maps.Equal(files, want) || owners != 10 {
			t.Errorf("%s: %q, the owners are %d in sum, want %q", form, files, owners, want)
		}
	}
}
