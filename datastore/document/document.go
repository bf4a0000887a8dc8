package document

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"reflect"
	"slices"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	"github.com/manxnet/manx/datastore/model"
)

// Error is an error in one document of a user's input.
type Error struct {
	Document int // counted from 1
	Line     int // of the whole input, counted from 1; 0 if unknown
	Err      error
}

func (e *Error) Error() string {
	if e.Line == 0 {
		return fmt.Sprintf("document %d: %v", e.Document, e.Err)
	}
	return fmt.Sprintf("document %d, line %d: %v", e.Document, e.Line, e.Err)
}

func (e *Error) Unwrap() error { return e.Err }

// Parse parses a user's input: YAML documents, JSON, arrays and lists of objects, in their order. It is strict: unknown
// fields, duplicate fields and values of a wrong type are errors, and all of them are reported (joined *Errors).
// Package codec applies defaults and validation (PrepareCreate and PrepareUpdate).
//
// The revision of an object is its metadata.resourceVersion.
func Parse(input []byte) ([]*model.Object, error) {
	var objects []*model.Object
	var errs []error
	for d, err := range Objects(input) {
		var o *model.Object
		if err == nil {
			o, err = d.Decode()
		}
		objects = append(objects, o)
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	if len(objects) == 0 {
		return nil, errors.New("there is no object in the input")
	}
	return objects, nil
}

// Object is one object of a user's input, not decoded yet.
type Object struct {
	metav1.TypeMeta
	JSON []byte

	in   document
	path []string // its path in the document
}

// Objects visits the objects of YAML documents, JSON, arrays and lists, in their order. An *Error takes the place of an
// unreadable object.
func Objects(input []byte) iter.Seq2[Object, error] {
	return func(yield func(Object, error) bool) {
		for _, d := range splitDocuments(input) {
			if !d.each(yield) {
				return
			}
		}
	}
}

// Line returns the line of the input, counted from 1, of a field like "spec.peerIP", or of the innermost existing part
// of its path; that of the object for the empty field.
func (o Object) Line(field string) int {
	return o.in.lineOf(append(slices.Clone(o.path), splitField(field)...))
}

// Decode decodes the object as strictly as Parse.
func (o Object) Decode() (*model.Object, error) { return o.in.decodeObject(o.TypeMeta, o.JSON, o.path) }

// document is one YAML document with its position in the input.
type document struct {
	number int
	line   int // of its first line
	text   []byte
}

// splitDocuments splits the input at the lines that begin with "---". It skips documents of comments only.
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
		if rest, ok := bytes.CutPrefix(input[at:end], []byte("---")); ok &&
			(len(rest) == 0 || bytes.ContainsAny(rest[:1], " \t\r\n")) {
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
	return &Error{Document: d.number, Line: line, Err: err}
}

// each visits the objects of a document, until yield returns false.
func (d document) each(yield func(Object, error) bool) bool {
	if json.Valid(d.text) { // also accepts text that YAML refuses, like tabs; duplicate fields are found later
		return d.eachIn(d.text, nil, metav1.TypeMeta{}, yield)
	}
	text, err := yaml.YAMLToJSONStrict(d.text)
	if err != nil {
		line, reason := yamlError(err)
		if line > 0 {
			line += d.line - 1
		}
		return yield(Object{}, d.fail(line, errors.New(reason)))
	}
	return d.eachIn(text, nil, metav1.TypeMeta{}, yield)
}

// eachIn visits an object, or those of an array or of a list kind. path is its path in the document, list the type that
// the surrounding list gives its items.
func (d document) eachIn(text []byte, path []string, list metav1.TypeMeta, yield func(Object, error) bool) bool {
	if trimmed := bytes.TrimSpace(text); len(trimmed) > 0 && trimmed[0] == '[' {
		var items []json.RawMessage
		if err := json.Unmarshal(text, &items); err != nil {
			return yield(Object{}, d.fail(d.line, err))
		}
		return d.eachItem(items, path, list, yield)
	}
	var head struct {
		metav1.TypeMeta `json:",inline"`
		Items           []json.RawMessage `json:"items"`
	}
	if err := json.Unmarshal(text, &head); err != nil {
		return yield(Object{}, d.fail(d.lineOf(path),
			errors.New("must be an object with apiVersion, kind, metadata and spec")))
	}
	if head.Kind == "" {
		head.TypeMeta = list
	}
	if item, ok := strings.CutSuffix(head.Kind, "List"); ok {
		of := metav1.TypeMeta{Kind: item, APIVersion: head.APIVersion}
		if item == "" {
			of.APIVersion = "" // v1 is the list's version
		}
		return d.eachItem(head.Items, append(slices.Clone(path), "items"), of, yield)
	}
	return yield(Object{TypeMeta: head.TypeMeta, JSON: text, in: d, path: path}, nil)
}

func (d document) eachItem(
	items []json.RawMessage, path []string, list metav1.TypeMeta, yield func(Object, error) bool,
) bool {
	for i, item := range items {
		if !d.eachIn(item, append(slices.Clone(path), strconv.Itoa(i)), list, yield) {
			return false
		}
	}
	return true
}

func (d document) decodeObject(head metav1.TypeMeta, text []byte, path []string) (*model.Object, error) {
	if head.Kind == "" {
		return nil, d.fail(d.lineOf(path), errors.New("kind is missing"))
	}
	info, ok := model.LookupDocument(head.APIVersion, head.Kind)
	if !ok || !info.Resource {
		return nil, d.fail(d.lineOf(append(slices.Clone(path), "kind")),
			unknownKind(head.Kind))
	}
	if head.APIVersion != "" && head.APIVersion != info.APIVersion {
		return nil, d.fail(d.lineOf(append(slices.Clone(path), "apiVersion")),
			fmt.Errorf("apiVersion = %q: must be %s", head.APIVersion, info.APIVersion))
	}
	value := info.New()
	strict, err := kjson.UnmarshalStrict(text, value)
	if err != nil {
		value = info.New()
		// accepts numbers and booleans as text, like calicoctl: "zone: 1"
		if yaml.UnmarshalStrict(text, value) == nil {
			err = nil
		}
	}
	var errs []error
	if err != nil {
		rest, wrong := misfits(text, reflect.TypeOf(value), nil)
		for _, w := range wrong {
			errs = append(errs, d.fail(d.lineOf(append(slices.Clone(path), w.path...)), errors.New(w.reason)))
		}
		value = info.New()
		if strict, err = kjson.UnmarshalStrict(rest, value); err != nil && len(errs) == 0 {
			errs = append(errs, d.fail(d.lineOf(path), err))
		}
	}
	if info.Kubernetes {
		strict = nil // its types have only the fields that Manx reads
	}
	for _, e := range strict {
		field, reason := strictError(e)
		errs = append(errs, d.fail(d.lineOf(append(slices.Clone(path), splitField(field)...)), errors.New(reason)))
	}
	m := value.(metav1.Object)
	o := model.NewObject(model.Key{Kind: info.Kind, Namespace: m.GetNamespace(), Name: m.GetName()}, value)
	if info.Kubernetes {
		o.Raw = text
	}
	if rv := m.GetResourceVersion(); rv != "" {
		if o.Revision, err = revisionIn(info.Kind, rv); err != nil || o.Revision < 0 {
			errs = append(errs, d.fail(d.lineOf(append(slices.Clone(path), "metadata", "resourceVersion")),
				fmt.Errorf("metadata.resourceVersion = %q: must be a number", rv)))
		}
	}
	return o, errors.Join(errs...)
}

// revisionIn parses a resourceVersion. That of a Profile derived from a Namespace or a ServiceAccount is of the form
// 29/ or /29 (Calico's libcalico-go joins the revisions of both kinds).
func revisionIn(k model.Kind, resourceVersion string) (int64, error) {
	if k == model.KindProfile {
		if before, after, ok := strings.Cut(resourceVersion, "/"); ok && (before == "" || after == "") {
			resourceVersion = before + after
		}
	}
	return strconv.ParseInt(resourceVersion, 10, 64)
}

// unknownKind has the kind that is meant perhaps, or else all of them.
func unknownKind(kind string) error {
	if hint := model.KindHint(kind); hint != "" {
		return fmt.Errorf("kind = %q is not known: %s", kind, hint)
	}
	return fmt.Errorf("kind = %q: must be one of %s", kind, resourceKinds())
}

func resourceKinds() string {
	var names []string
	for _, i := range model.Kinds() {
		if i.Resource {
			names = append(names, string(i.Kind))
		}
	}
	return strings.Join(names, ", ")
}
