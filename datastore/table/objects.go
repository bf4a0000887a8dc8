package table

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/manxnet/manx/datastore/codec"
	"github.com/manxnet/manx/datastore/model"
)

// Options configure the output of objects.
type Options struct {
	Format    Format
	NoHeading bool
	Namespace bool   // tables begin with the namespace
	Labels    bool   // tables end with the labels
	InheritAS string // the AS number of nodes that have none of their own
	Named     bool   // templates get an object that was requested by name as itself, and not in a list
}

// Objects prints the objects of a list of one kind: YAML and JSON as one list object of the given revision.
func Objects(w io.Writer, kind model.Kind, objects []*model.Object, revision int64, o Options) error {
	switch o.Format {
	case YAML, JSON:
		items := make([]any, 0, len(objects))
		for _, x := range objects {
			items = append(items, document(x))
		}
		return structured(w, o.Format, list{
			Kind: string(kind) + "List", APIVersion: model.APIVersion,
			Metadata: metadata{ResourceVersion: strconv.FormatInt(revision, 10)}, Items: items,
		})
	case Name:
		return Names(w, objects, "")
	}
	return ObjectGrid(kind, objects, o).Write(w, !o.NoHeading)
}

// Named prints objects that were requested by name: YAML and JSON as the object itself, several as an array.
func Named(w io.Writer, kind model.Kind, objects []*model.Object, o Options) error {
	if o.Format != YAML && o.Format != JSON {
		return Objects(w, kind, objects, 0, o)
	}
	if len(objects) == 1 {
		return structured(w, o.Format, document(objects[0]))
	}
	items := make([]any, 0, len(objects))
	for _, x := range objects {
		items = append(items, document(x))
	}
	return structured(w, o.Format, items)
}

// Names prints "kind/name" for each object, and done, the action, if it is not empty.
func Names(w io.Writer, objects []*model.Object, done string) error {
	for _, x := range objects {
		if _, err := fmt.Fprintln(w, strings.TrimRight(nameOf(x.Key)+" "+done, " ")); err != nil {
			return err
		}
	}
	return nil
}

// nameOf returns the key in the form that commands accept: "bgppeer/tor-1".
func nameOf(k model.Key) string { return strings.ToLower(string(k.Kind)) + "/" + k.Name }

// ObjectGrid is the table of objects of one kind.
func ObjectGrid(kind model.Kind, objects []*model.Object, o Options) *Grid {
	var cols []column
	for _, c := range columns(kind) {
		if c.show == both || (c.show == onlyWide) == (o.Format == Wide) {
			cols = append(cols, c)
		}
	}
	if o.Namespace {
		cols = append([]column{{"NAMESPACE", both, func(r row) string { return r.object.Key.Namespace }}}, cols...)
	}
	if o.Labels {
		cols = append(cols, column{"LABELS", both, func(r row) string { return objectLabels(r.object) }})
	}
	g := &Grid{}
	for _, c := range cols {
		g.Heading = append(g.Heading, c.heading)
	}
	for _, x := range objects {
		var cells []string
		for _, c := range cols {
			cells = append(cells, c.cell(row{x, o.InheritAS}))
		}
		g.Add(cells...)
	}
	return g
}

func objectLabels(o *model.Object) string {
	m := o.Metadata()
	if m == nil || len(m.GetLabels()) == 0 {
		return "<none>"
	}
	return labelText(m.GetLabels())
}

// metadata, list and ipamDocument have their fields in Calico's order.
type metadata struct {
	Name            string `json:"name,omitempty"`
	ResourceVersion string `json:"resourceVersion,omitempty"`
}

type list struct {
	Kind       string   `json:"kind"`
	APIVersion string   `json:"apiVersion"`
	Metadata   metadata `json:"metadata"`
	Items      []any    `json:"items"`
}

type ipamDocument struct {
	Kind       string   `json:"kind"`
	APIVersion string   `json:"apiVersion"`
	Metadata   metadata `json:"metadata"`
	Spec       any      `json:"spec"`
}

// document returns the value of an object for YAML and JSON. IPAM entries have no metadata and get a minimum.
func document(o *model.Object) any {
	if o.Metadata() != nil {
		return o.Value
	}
	return ipamDocument{
		Kind: string(o.Key.Kind), APIVersion: model.APIVersion,
		Metadata: metadata{Name: o.Key.Name, ResourceVersion: strconv.FormatInt(o.Revision, 10)},
		Spec:     o.Value,
	}
}

// Value prints any value as YAML or as indented JSON.
func Value(w io.Writer, f Format, v any) error { return structured(w, f, v) }

func structured(w io.Writer, f Format, v any) error {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return err
	}
	out := codec.WithoutEmptyEnds(b.Bytes())
	if f == YAML {
		y, err := yaml.JSONToYAML(out)
		if err != nil {
			return err
		}
		_, err = w.Write(y)
		return err
	}
	var indented bytes.Buffer
	if err := json.Indent(&indented, out, "", "  "); err != nil {
		return err
	}
	_, err := w.Write(indented.Bytes())
	return err
}
