package manifest

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"github.com/manxnet/manx/datastore/model"
)

// Document is one resource of a file.
type Document struct {
	Source string // file, or "standard input"
	Object *model.Object
}

// Load reads a file, the resource files of a folder in the order of their names ("-" is standard input), and of its
// sub-folders if recursive. It returns what could be read and an error for each thing that could not.
func Load(path string, stdin io.Reader, recursive bool) ([]Document, []error) {
	if path == "-" {
		return read("standard input", stdin)
	}
	info, err := os.Stat(path)
	if err != nil {
		return nil, []error{err}
	}
	if !info.IsDir() {
		return readFile(path)
	}
	files, err := filesOf(path, recursive)
	if err != nil {
		return nil, []error{err}
	}
	if len(files) == 0 {
		return nil, []error{fmt.Errorf("%s: no file in it ends in .yaml, .yml or .json", path)}
	}
	var docs []Document
	var errs []error
	for _, f := range files {
		d, e := readFile(f)
		docs, errs = append(docs, d...), append(errs, e...)
	}
	return docs, errs
}

func filesOf(dir string, recursive bool) ([]string, error) {
	var files []string
	err := filepath.WalkDir(dir, func(p string, e os.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case e.IsDir() && p != dir && !recursive:
			return filepath.SkipDir
		case !e.IsDir() && slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(p)):
			files = append(files, p)
		}
		return nil
	})
	return files, err
}

func readFile(path string) ([]Document, []error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, []error{err}
	}
	defer f.Close() //nolint:errcheck // only read
	return read(path, f)
}

// read decodes a stream strictly.
func read(source string, r io.Reader) ([]Document, []error) {
	raw, err := io.ReadAll(r)
	if err != nil {
		return nil, []error{fmt.Errorf("%s: %w", source, err)}
	}
	objects, err := model.DecodeDocument(raw)
	if err != nil {
		return nil, mistakes(source, err)
	}
	docs := make([]Document, len(objects))
	for i, o := range objects {
		docs[i] = Document{Source: source, Object: o}
	}
	return docs, nil
}

// mistakes takes joined errors apart and puts the file before each.
func mistakes(source string, err error) []error {
	var at *model.DocumentError
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		var all []error
		for _, e := range joined.Unwrap() {
			all = append(all, mistakes(source, e)...)
		}
		return all
	}
	if errors.As(err, &at) && at.Line > 0 {
		return []error{fmt.Errorf("%s:%d: %w", source, at.Line, at.Err)}
	}
	return []error{fmt.Errorf("%s: %w", source, err)}
}
