package model

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"
)

// DocumentError is what is wrong with one document of a user's input.
type DocumentError struct {
	Document int // counted from 1
	Line     int // of the whole input, counted from 1; 0 if unknown
	Err      error
}

func (e *DocumentError) Error() string {
	if e.Line == 0 {
		return fmt.Sprintf("document %d: %v", e.Document, e.Err)
	}
	return fmt.Sprintf("document %d, line %d: %v", e.Document, e.Line, e.Err)
}

func (e *DocumentError) Unwrap() error { return e.Err }

// DecodeDocument reads what a user wrote: YAML documents, JSON, arrays and lists of objects, in the order in which they
// stand. It is strict: an unknown field, a field that stands twice and a value of a wrong type are errors, and all of
// them are reported (joined *DocumentErrors). Defaults and validation are left to PrepareCreate and PrepareUpdate.
//
// The revision of an object is its metadata.resourceVersion.
func DecodeDocument(input []byte) ([]*Object, error) {
	var objects []*Object
	var errs []error
	for _, d := range splitDocuments(input) {
		found, err := d.decode()
		objects = append(objects, found...)
		if err != nil {
			errs = append(errs, err)
		}
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	if len(objects) == 0 {
		return nil, errors.New("there is no object in the input")
	}
	return objects, nil
}

// document is one YAML document and where it begins in the input.
type document struct {
	number int
	line   int // of its first line
	text   []byte
}

// splitDocuments cuts the input at the lines that begin with "---". Documents of nothing but comments are left out.
func splitDocuments(input []byte) []document {
	var docs []document
	add := func(line int, text []byte) {
		if !blank(text) {
			docs = append(docs, document{number: len(docs) + 1, line: line, text: text}.splitJSON()...)
		}
	}
	begin, first, line := 0, 1, 0
	for at := 0; at < len(input); {
		end := len(input)
		if i := bytes.IndexByte(input[at:], '\n'); i >= 0 {
			end = at + i + 1
		}
		line++
		if rest, ok := bytes.CutPrefix(input[at:end], []byte("---")); ok && (len(rest) == 0 || bytes.ContainsAny(rest[:1], " \t\r\n")) {
			add(first, input[begin:at])
			begin, first = at+3, line
		}
		at = end
	}
	add(first, input[begin:])
	return docs
}

func blank(text []byte) bool {
	for l := range bytes.Lines(text) {
		if l = bytes.TrimSpace(l); len(l) > 0 && l[0] != '#' && string(l) != "..." {
			return false
		}
	}
	return true
}

func (d document) fail(line int, err error) error {
	return &DocumentError{Document: d.number, Line: line, Err: err}
}

func (d document) decode() ([]*Object, error) {
	if json.Valid(d.text) { // also what YAML does not take, like tabs; fields that stand twice are found later
		return d.decodeAny(d.text, nil, "")
	}
	text, err := yaml.YAMLToJSONStrict(d.text)
	if err != nil {
		line, reason := yamlError(err)
		if line > 0 {
			line += d.line - 1
		}
		return nil, d.fail(line, errors.New(reason))
	}
	return d.decodeAny(text, nil, "")
}

// decodeAny decodes an object, an array of objects or a list kind. path is where it stands in the document.
func (d document) decodeAny(text []byte, path []string, kind string) ([]*Object, error) {
	if trimmed := bytes.TrimSpace(text); len(trimmed) > 0 && trimmed[0] == '[' {
		var items []json.RawMessage
		if err := json.Unmarshal(text, &items); err != nil {
			return nil, d.fail(d.line, err)
		}
		return d.decodeItems(items, path, kind)
	}
	var head struct {
		metav1.TypeMeta `json:",inline"`
		Items           []json.RawMessage `json:"items"`
	}
	if err := json.Unmarshal(text, &head); err != nil {
		return nil, d.fail(d.lineOf(path), errors.New("must be an object with apiVersion, kind, metadata and spec"))
	}
	if head.Kind == "" {
		head.Kind = kind
	}
	if item, ok := strings.CutSuffix(head.Kind, "List"); ok {
		return d.decodeItems(head.Items, append(path, "items"), item)
	}
	o, err := d.decodeObject(head.TypeMeta, text, path)
	if err != nil {
		return nil, err
	}
	return []*Object{o}, nil
}

func (d document) decodeItems(items []json.RawMessage, path []string, kind string) ([]*Object, error) {
	var objects []*Object
	var errs []error
	for i, item := range items {
		found, err := d.decodeAny(item, append(append([]string{}, path...), strconv.Itoa(i)), kind)
		objects = append(objects, found...)
		if err != nil {
			errs = append(errs, err)
		}
	}
	return objects, errors.Join(errs...)
}

func (d document) decodeObject(head metav1.TypeMeta, text []byte, path []string) (*Object, error) {
	if head.Kind == "" {
		return nil, d.fail(d.lineOf(path), errors.New("kind is missing"))
	}
	info, ok := Lookup(Kind(head.Kind))
	if !ok || !info.Resource {
		return nil, d.fail(d.lineOf(append(path, "kind")), fmt.Errorf("kind = %q: must be one of %s", head.Kind, resourceKinds()))
	}
	if head.APIVersion != "" && head.APIVersion != info.APIVersion {
		return nil, d.fail(d.lineOf(append(path, "apiVersion")), fmt.Errorf("apiVersion = %q: must be %s", head.APIVersion, info.APIVersion))
	}
	value := info.New()
	strict, err := kjson.UnmarshalStrict(text, value)
	if err != nil {
		value = info.New()
		if yaml.UnmarshalStrict(text, value) == nil { // takes numbers and booleans for text, as calicoctl does: "zone: 1"
			err = nil
		}
	}
	if err != nil {
		field, reason := typeError(err)
		return nil, d.fail(d.lineOf(append(path, splitField(field)...)), errors.New(reason))
	}
	var errs []error
	if info.Kubernetes {
		strict = nil // its types hold only what Manx reads
	}
	for _, e := range strict {
		field, reason := strictError(e)
		errs = append(errs, d.fail(d.lineOf(append(path, splitField(field)...)), errors.New(reason)))
	}
	m := value.(metav1.Object)
	o := NewObject(Key{Kind: info.Kind, Namespace: m.GetNamespace(), Name: m.GetName()}, value)
	if info.Kubernetes {
		o.raw = text
	}
	if rv := m.GetResourceVersion(); rv != "" {
		if o.Revision, err = strconv.ParseInt(rv, 10, 64); err != nil || o.Revision < 0 {
			errs = append(errs, d.fail(d.lineOf(append(path, "metadata", "resourceVersion")),
				fmt.Errorf("metadata.resourceVersion = %q: must be a number", rv)))
		}
	}
	return o, errors.Join(errs...)
}

func resourceKinds() string {
	var names []string
	for _, i := range Kinds() {
		if i.Resource {
			names = append(names, string(i.Kind))
		}
	}
	return strings.Join(names, ", ")
}
