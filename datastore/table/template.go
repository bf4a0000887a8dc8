package table

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"text/template"

	"k8s.io/client-go/util/jsonpath"

	"github.com/manxnet/manx/datastore/model"
)

// Template is one of kubectl's formats that choose fields: jsonpath=, go-template= or custom-columns=.
type Template struct {
	one     func(w io.Writer, document any) error // the object, or the list
	columns []templateColumn                      // instead of one: a row for each object
}

// templateColumn has a path, or no path and the heading of a column of the kind's own tables, as calicoctl has it.
type templateColumn struct {
	heading string
	path    *jsonpath.JSONPath
}

// ParseTemplate parses the value of -o; a template may be in a file: jsonpath-file=, go-template-file=. It returns nil
// for a word that is no template.
func ParseTemplate(word string) (*Template, error) {
	name, text, ok := strings.Cut(word, "=")
	name, file := strings.CutSuffix(name, "-file")
	switch {
	case name != "jsonpath" && name != "go-template" && (name != "custom-columns" || file):
		return nil, nil
	case !ok || text == "":
		return nil, fmt.Errorf("output format %q: want %s=%s", word, strings.TrimSuffix(word, "="),
			map[bool]string{true: "FILE", false: "TEMPLATE"}[file])
	}
	if file {
		content, err := os.ReadFile(text)
		if err != nil {
			return nil, fmt.Errorf("output format %q: %w", word, err)
		}
		text = strings.TrimSuffix(string(content), "\n")
	}
	switch name {
	case "jsonpath":
		p, err := parsePath(text)
		if err != nil {
			return nil, err
		}
		return &Template{one: func(w io.Writer, d any) error { return p.Execute(w, d) }}, nil
	case "go-template":
		t, err := template.New("output").Parse(text)
		if err != nil {
			return nil, fmt.Errorf("output format %q: %w", word, err)
		}
		return &Template{one: func(w io.Writer, d any) error { return t.Execute(w, d) }}, nil
	}
	t := &Template{}
	for _, c := range strings.Split(text, ",") {
		heading, path, ok := strings.Cut(c, ":")
		switch {
		case heading == "" || ok && path == "":
			return nil, fmt.Errorf("output format %q: %q: want HEADING:PATH, such as NAME:.metadata.name, or a "+
				"HEADING of the kind's table", word, c)
		case !ok:
			t.columns = append(t.columns, templateColumn{heading: heading})
			continue
		}
		p, err := parsePath(path)
		if err != nil {
			return nil, err
		}
		t.columns = append(t.columns, templateColumn{heading, p})
	}
	return t, nil
}

// parsePath also accepts a path without braces and without the first dot, as kubectl does. A missing field is empty.
func parsePath(text string) (*jsonpath.JSONPath, error) {
	path := text
	if !strings.Contains(path, "{") {
		path = "{." + strings.TrimPrefix(path, ".") + "}"
	}
	p := jsonpath.New("output").AllowMissingKeys(true)
	if err := p.Parse(path); err != nil {
		return nil, fmt.Errorf("path %q: %w", text, err)
	}
	return p, nil
}

// Write prints the objects of a list of one kind.
func (t *Template) Write(w io.Writer, kind model.Kind, objects []*model.Object, revision int64, o Options) error {
	var b bytes.Buffer
	if err := Objects(&b, kind, objects, revision, Options{Format: JSON}); err != nil {
		return err
	}
	var whole map[string]any
	if err := json.Unmarshal(b.Bytes(), &whole); err != nil {
		return err
	}
	items, ok := whole["items"].([]any)
	if !ok {
		return errors.New("the list has no items")
	}
	switch {
	case t.columns != nil:
		g, err := t.rows(kind, objects, items, o)
		if err != nil {
			return err
		}
		return g.Write(w, !o.NoHeading)
	case o.Named && len(items) == 1:
		return t.one(w, items[0])
	}
	return t.one(w, whole)
}

func (t *Template) rows(kind model.Kind, objects []*model.Object, items []any, o Options) (*Grid, error) {
	g := &Grid{}
	own := map[string]column{}
	for _, c := range t.columns {
		g.Heading = append(g.Heading, c.heading)
		if c.path != nil {
			continue
		}
		found, err := ownColumn(kind, c.heading)
		if err != nil {
			return nil, err
		}
		own[c.heading] = found
	}
	for i, item := range items {
		var cells []string
		for _, c := range t.columns {
			if c.path == nil {
				cells = append(cells, own[c.heading].cell(row{objects[i], o.InheritAS}))
				continue
			}
			cells = append(cells, c.cell(item))
		}
		g.Add(cells...)
	}
	return g, nil
}

// ownColumn returns the column of a kind's tables with a heading, in any case.
func ownColumn(kind model.Kind, heading string) (column, error) {
	var headings []string
	for _, c := range columns(kind) {
		if strings.EqualFold(c.heading, heading) {
			return c, nil
		}
		if !slices.Contains(headings, c.heading) {
			headings = append(headings, c.heading)
		}
	}
	return column{}, fmt.Errorf("a %s has no column %q: want one of %s, or HEADING:PATH", kind, heading,
		strings.Join(headings, ", "))
}

func (c templateColumn) cell(item any) string {
	found, err := c.path.FindResults(item)
	if err != nil {
		return "<none>"
	}
	var values []string
	for _, list := range found {
		for _, v := range list {
			if v.IsValid() && v.CanInterface() && v.Interface() != nil {
				values = append(values, fmt.Sprint(v.Interface()))
			}
		}
	}
	if len(values) == 0 {
		return "<none>"
	}
	return strings.Join(values, ",")
}
