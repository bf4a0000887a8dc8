package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/datastore/table"
)

// The types of the events of get -w, as in Kubernetes' API.
const (
	eventAdded    = "ADDED"
	eventModified = "MODIFIED"
	eventDeleted  = "DELETED"
)

// watchObjects prints the objects of a kind and then each change, until it is interrupted.
func (c *cli) watchObjects(ctx context.Context, o getOptions, args []string) error {
	switch {
	case len(o.files.paths) > 0:
		return usagef("-w is for a kind, and not for files")
	case o.template != nil:
		return usagef("-w shows whole objects: leave out -o %s, or use -o json", o.output)
	case o.sortBy != "":
		return usagef("-w shows changes as they come: leave out --sort-by")
	}
	targets, err := c.getTargets(&o, args)
	if err != nil {
		return err
	}
	if len(targets) > 1 {
		return usagef("-w follows one kind: use KIND NAME...")
	}
	store, err := c.open(ctx)
	if err != nil {
		return err
	}
	defer store.Close() //nolint:errcheck // nothing was written
	w := &objectWatch{cli: c, target: targets[0], o: o, shown: map[model.Key]*model.Object{}}
	for e := range store.Watch(ctx, w.target.kind.Kind) {
		if err := w.take(e); err != nil {
			return err
		}
	}
	return nil
}

// objectWatch prints the events of the objects that are selected.
type objectWatch struct {
	*cli
	target target
	o      getOptions
	shown  map[model.Key]*model.Object
	widths []int // of the columns so far; nil: there is no heading yet
}

func (w *objectWatch) take(e datastore.Event) error {
	switch e.Type {
	case datastore.EventUpdate:
		if !w.selects(e.Object) {
			return w.gone(e.Key)
		}
		word := eventModified
		if w.shown[e.Key] == nil {
			word = eventAdded
		}
		w.shown[e.Key] = e.Object
		return w.print(word, e.Object)
	case datastore.EventDelete:
		return w.gone(e.Key)
	case datastore.EventLost:
		w.complain([]string{fmt.Sprintf("Warning: the connection is lost, the changes meanwhile follow: %v", e.Err)})
	}
	return nil
}

// gone reports an object that is deleted, or no longer selected.
func (w *objectWatch) gone(key model.Key) error {
	was := w.shown[key]
	if was == nil {
		return nil
	}
	delete(w.shown, key)
	return w.print(eventDeleted, was)
}

func (w *objectWatch) selects(x *model.Object) bool {
	if w.target.kind.Namespaced && !w.o.namespaces.all && x.Key.Namespace != w.o.namespaces.orDefault() {
		return false
	}
	if len(w.target.names) > 0 {
		named := false
		for _, name := range w.target.names {
			named = named || x.Key == w.target.key(w.o.namespaces, name)
		}
		if !named {
			return false
		}
	}
	m := x.Metadata()
	return w.o.match.Empty() || m != nil && w.o.match.Matches(labels.Set(m.GetLabels()))
}

func (w *objectWatch) print(word string, x *model.Object) error {
	x = withClaim(x)
	if w.o.export && x.Metadata() != nil {
		x = exported(x, len(w.target.names) > 0)
	}
	switch w.o.format {
	case table.JSON, table.YAML:
		return w.printDocument(word, x)
	case table.Name:
		return table.Names(w.out, []*model.Object{x}, strings.ToLower(word))
	}
	g := table.ObjectGrid(w.target.kind.Kind, []*model.Object{x}, table.Options{Format: w.o.format,
		Labels: w.o.showLabels, Namespace: w.target.kind.Namespaced && w.o.namespaces.given()})
	heading := w.widths == nil && !w.o.noHeaders
	g.Heading = append([]string{"EVENT"}, g.Heading...)
	g.Rows[0] = append([]string{word}, g.Rows[0]...)
	if w.widths == nil {
		w.widths = make([]int, len(g.Heading))
		w.widths[0] = len(eventModified)
	}
	for i, cell := range g.Rows[0] {
		w.widths[i] = max(w.widths[i], len([]rune(cell)), len(g.Heading[i]))
		g.Rows[0][i] = fmt.Sprintf("%-*s", w.widths[i], cell)
	}
	return g.Write(w.out, heading)
}

// printDocument prints an event as {"type": ..., "object": ...}: JSON on one line, YAML as a document.
func (w *objectWatch) printDocument(word string, x *model.Object) error {
	text, err := documentJSON(x)
	if err != nil {
		return err
	}
	event := struct {
		Type   string          `json:"type"`
		Object json.RawMessage `json:"object"`
	}{word, text}
	if w.o.format == table.YAML {
		if _, err := io.WriteString(w.out, "---\n"); err != nil {
			return err
		}
		return table.Value(w.out, table.YAML, event)
	}
	line, err := json.Marshal(event)
	if err == nil {
		_, err = fmt.Fprintf(w.out, "%s\n", line)
	}
	return err
}
