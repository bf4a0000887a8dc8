package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/manxnet/manx/datastore/manifest"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/datastore/settings"
	"github.com/manxnet/manx/plan"
)

// accepted are the settings of a flag that nodes accept, as the flag of the same name of manxd.
type accepted []string

func (a *accepted) add(cmd *cobra.Command) {
	cmd.Flags().StringSliceVar((*[]string)(a), "accept-settings", nil, "settings that would hold a node, and that the "+
		"--accept-settings of manxd accepts: no error of the check")
}

// undone returns a remark for each setting in documents that asks for something that Manx does not do: held has those
// that keep a node from becoming ready, unless they are accepted.
func undone(docs []manifest.Document, accept accepted) (warnings []string, held []error) {
	for _, d := range docs {
		if f, ok := d.Object.Value.(*model.FelixConfiguration); ok && d.Object.Key.Name != "default" &&
			!strings.HasPrefix(d.Object.Key.Name, "node.") && f.Spec.NodeSelector == "" {
			warnings = append(warnings, fmt.Sprintf("Warning: %s: FelixConfiguration/%s: no node uses it: want the "+
				"name default or node.NAME, or spec.nodeSelector", d.At("metadata.name"), d.Object.Key.Name))
		}
		for _, f := range settings.OfObject(d.Object) {
			text := fmt.Sprintf("%s: %s: %s", d.At(f.Field), f.Source, undoneText(f))
			switch {
			case !f.Matters():
			case f.Danger() && !slices.Contains(accept, f.Name):
				held = append(held, errors.New(text))
			default:
				warnings = append(warnings, "Warning: "+text)
			}
		}
	}
	return warnings, held
}

// warnUnused prints the settings in documents that manxd would not use, as warnings.
func (c *cli) warnUnused(docs []manifest.Document) {
	warnings, held := undone(docs, nil)
	for _, err := range slices.Concat(held, ignored(docs)) {
		warnings = append(warnings, "Warning: "+err.Error())
	}
	c.complain(warnings)
}

// unused prints those that are no error of a check as warnings, and returns the others.
func (c *cli) unused(docs []manifest.Document, accept accepted) []error {
	warnings, held := undone(docs, accept)
	c.complain(warnings)
	return slices.Concat(held, ignored(docs))
}

// warnUnusedOf prints the settings of an object that ask for something that Manx does not do, and its other settings
// that manxd would not use.
func (c *cli) warnUnusedOf(o *model.Object) {
	lines := undoneLines(settings.OfObject(o))
	for _, n := range unusedIn([]*model.Object{o}) {
		lines = append(lines, n.Object+": "+n.Reason)
	}
	for _, l := range lines {
		c.complain([]string{"Warning: " + l})
	}
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
