package manifest

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"github.com/manxnet/manx/datastore/document"
	"github.com/manxnet/manx/datastore/kubernetes/form"
	"github.com/manxnet/manx/datastore/model"
)

// ErrEmpty is wrapped by the error for a file without an object.
var ErrEmpty = errors.New("there is no object in the input")

// Document is one resource of a file.
type Document struct {
	Source string // file, or "standard input"
	Object *model.Object

	text document.Object
}

// Invalid returns the rules that err, an error about the object, names as broken, each with the file and line of its
// field; err itself with the file if it is no *model.InvalidError.
func (d Document) Invalid(err error) []error {
	var invalid *model.InvalidError
	if !errors.As(err, &invalid) {
		return []error{fmt.Errorf("%s: %w", d.Source, err)}
	}
	var errs []error
	for _, f := range invalid.Fields {
		errs = append(errs, fmt.Errorf("%s: %s is invalid: %w", d.At(f.Field), invalid.Key, f))
	}
	return errs
}

// At returns the file and line of a field, as FILE:LINE; those of the document for the empty field.
func (d Document) At(field string) string { return fmt.Sprintf("%s:%d", d.Source, d.text.Line(field)) }

// Source is a file, or standard input, with its content.
type Source struct {
	Name string
	Text []byte
}

// Load reads and decodes the sources of Read. It returns all readable documents and an error for each other one.
func Load(path string, stdin io.Reader, recursive bool) ([]Document, []error) {
	sources, errs := Read(path, stdin, recursive)
	var docs []Document
	for _, s := range sources {
		d, e := s.decode()
		docs, errs = append(docs, d...), append(errs, e...)
	}
	return docs, errs
}

// Read reads a file, the resource files of a folder in the order of their names ("-" is standard input), and of its
// sub-folders if recursive.
func Read(path string, stdin io.Reader, recursive bool) ([]Source, []error) {
	if path == "-" {
		raw, err := io.ReadAll(stdin)
		if err != nil {
			return nil, []error{fmt.Errorf("standard input: %w", err)}
		}
		return []Source{{"standard input", raw}}, nil
	}
	info, err := os.Stat(path)
	if err != nil {
		return nil, []error{err}
	}
	files := []string{path}
	if info.IsDir() {
		if files, err = filesOf(path, recursive); err != nil {
			return nil, []error{err}
		}
	}
	if len(files) == 0 {
		return nil, []error{fmt.Errorf("%s: no file in it ends in .yaml, .yml or .json", path)}
	}
	var sources []Source
	var errs []error
	for _, f := range files {
		raw, err := os.ReadFile(f)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		sources = append(sources, Source{f, raw})
	}
	return sources, errs
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

// decode is strict.
func (s Source) decode() ([]Document, []error) {
	var docs []Document
	var errs []error
	for text, err := range document.Objects(s.Text) {
		var o *model.Object
		if err == nil {
			o, err = decode(text)
		}
		if err != nil {
			errs = append(errs, mistakes(s.Name, err)...)
			continue
		}
		docs = append(docs, Document{Source: s.Name, Object: o, text: text})
	}
	if len(errs) == 0 && len(docs) == 0 {
		errs = append(errs, fmt.Errorf("%s: %w", s.Name, ErrEmpty))
	}
	return docs, errs
}

// decode also takes custom resources of crd.projectcalico.org/v1, as kubectl shows them.
func decode(text document.Object) (*model.Object, error) {
	if text.APIVersion != string(form.V1) {
		return text.Decode()
	}
	text.APIVersion = ""
	if text.Kind == string(model.KindIPAMConfig) { // the name of the custom resource
		text.Kind = string(model.KindIPAMConfiguration)
	}
	o, err := text.Decode()
	if err != nil {
		return nil, err
	}
	if err := form.Unfold(o.Metadata()); err != nil {
		var field model.FieldError
		errors.As(err, &field)
		return nil, &document.Error{Line: text.Line(field.Field), Err: err}
	}
	o.Key.Name, o.Revision = o.Metadata().GetName(), 0
	return o, nil
}

// mistakes splits joined errors and prefixes each with the file.
func mistakes(source string, err error) []error {
	var at *document.Error
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
