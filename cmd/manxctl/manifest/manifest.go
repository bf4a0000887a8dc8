package manifest

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	yamlv3 "gopkg.in/yaml.v3"

	"github.com/manxnet/manx/datastore/model"
)

// Document is one resource of a file.
type Document struct {
	Source string // file, or "standard input"
	Line   int    // where the resource begins, from 1
	Object *model.Object
}

// Error is something wrong in a file, at a line.
type Error struct {
	Source string
	Line   int
	Text   string
}

func (e *Error) Error() string { return fmt.Sprintf("%s:%d: %s", e.Source, e.Line, e.Text) }

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

// read splits a stream into its documents and those into resources. JSON is a subset of YAML, but a stream of JSON
// documents is not: those need no "---" between them.
func read(source string, r io.Reader) ([]Document, []error) {
	raw, err := io.ReadAll(r)
	if err != nil {
		return nil, []error{fmt.Errorf("%s: %w", source, err)}
	}
	var docs []Document
	var errs []error
	for _, part := range split(raw) {
		d := yamlv3.NewDecoder(bytes.NewReader(part.text))
		for {
			var n yamlv3.Node
			err := d.Decode(&n)
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				errs = append(errs, syntaxError(source, part.line, err))
				break // where the next document begins is not known
			}
			rd := reader{source: source, shift: part.line}
			rd.resources(&n)
			docs, errs = append(docs, rd.docs...), append(errs, rd.errs...)
		}
	}
	return docs, errs
}

// part is a piece of a stream and the number of lines before it.
type part struct {
	text []byte
	line int
}

// split cuts a stream at the lines that begin with "---", so that one document that is no YAML does not hide the others,
// and JSON documents that follow each other on lines of their own.
func split(raw []byte) []part {
	var parts []part
	start, startLine, line := 0, 0, 0
	for pos := 0; pos < len(raw); line++ {
		end := len(raw)
		if i := bytes.IndexByte(raw[pos:], '\n'); i >= 0 {
			end = pos + i + 1
		}
		text := raw[pos:end]
		if pos > start && (isSeparator(text) || text[0] == '{' && endsJSON(raw[start:pos])) {
			parts = append(parts, part{raw[start:pos], startLine})
			start, startLine = pos, line
		}
		pos = end
	}
	return append(parts, part{raw[start:], startLine})
}

func isSeparator(line []byte) bool {
	rest, ok := bytes.CutPrefix(line, []byte("---"))
	return ok && (len(rest) == 0 || strings.ContainsRune(" \t\r\n", rune(rest[0])))
}

func endsJSON(b []byte) bool {
	b = bytes.TrimSpace(b)
	return len(b) > 0 && b[0] == '{' && b[len(b)-1] == '}'
}
