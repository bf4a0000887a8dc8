package main

import (
	"fmt"
	"slices"

	"github.com/manxnet/manx/datastore/manifest"
	"github.com/manxnet/manx/datastore/settings"
	"github.com/manxnet/manx/plan"
)

// undone returns a warning for each setting in documents that asks for something that Manx does not do.
func undone(docs []manifest.Document) (list []string) {
	for _, d := range docs {
		for _, f := range settings.OfObject(d.Object) {
			if f.Matters() {
				list = append(list, fmt.Sprintf("Warning: %s: %s: %s", d.At(f.Field), f.Source, undoneText(f)))
			}
		}
	}
	return list
}

// undoneOn returns a line for each setting of a node, with the value in force, that asks for something that Manx does
// not do.
func undoneOn(node string, s plan.State) []string {
	return undoneLines(settings.Here(settings.Input{Reader: s.Objects, Node: node}))
}

// undoneAnywhere returns the lines for all nodes.
func undoneAnywhere(s plan.State) (list []string) {
	for _, o := range s.Objects {
		if o.Err == nil {
			list = append(list, undoneLines(settings.OfObject(o))...)
		}
	}
	slices.Sort(list)
	return list
}

func undoneLines(found []settings.Finding) (list []string) {
	for _, f := range found {
		if f.Matters() {
			list = append(list, f.Source+": "+undoneText(f))
		}
	}
	return list
}

func undoneText(f settings.Finding) string {
	text := fmt.Sprintf("%s = %q is %s", f.Field, f.Value, f.Answer())
	if f.Danger() {
		text += fmt.Sprintf("; nodes with it do not become ready unless --accept-settings=%s of manxd accepts that",
			f.Name)
	}
	return text
}
