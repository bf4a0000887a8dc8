// Package jsonlines reads files of JSON lines, the form of recorded objects and writes, for tests.
package jsonlines

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"testing"
)

// Read decodes each line of a file. The test fails if a line cannot be decoded or there is none.
func Read[T any](t testing.TB, path string) []T {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close() //nolint:errcheck // only read
	var list []T
	for lines := json.NewDecoder(f); ; {
		var v T
		err := lines.Decode(&v)
		switch {
		case errors.Is(err, io.EOF) && len(list) > 0:
			return list
		case err != nil:
			t.Fatalf("%s, after %d lines: %v", path, len(list), err)
		}
		list = append(list, v)
	}
}
