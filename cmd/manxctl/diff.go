package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/pmezard/go-difflib/difflib"
	"github.com/spf13/cobra"

	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/manifest"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/datastore/table"
)

func (c *cli) diffCommand() *cobra.Command {
	var f files
	var ns namespaces
	cmd := &cobra.Command{
		Use:   "diff -f FILE",
		Short: "Show how the objects of files differ from the datastore: what apply would change",
		Long: `Show what "manxctl apply" of the same files would change, as a unified diff of YAML: "-" is stored, "+" would be.
Nothing is written. Defaults, and the fields that apply keeps, are no difference. For the effect of a change on sessions,
routes and rules see "manxctl plan".

Exit codes: 0 no difference; 1 error; 2 usage; 3 there are differences.`,
		Example: "  manxctl diff -f peers.yaml\n  manxctl diff -f cluster/ -R",
		Args:    filesOnly,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if len(f.paths) == 0 {
				return usagef("diff needs -f FILE, -f FOLDER or -f -")
			}
			docs, err := c.load(f, ns)
			if err != nil {
				return err
			}
			if err := c.refuseForeign(docs); err != nil {
				return err
			}
			return c.diff(cmd.Context(), docs)
		},
	}
	f.add(cmd)
	cmd.Flags().StringVarP(&ns.name, "namespace", "n", "", "namespace of documents that name none (\"default\" "+
		"if not given)")
	return cmd
}

func (c *cli) diff(ctx context.Context, docs []manifest.Document) error {
	stored, err := c.openFor(ctx, docs)
	if err != nil {
		return err
	}
	defer stored.Close() //nolint:errcheck // nothing was written
	store := newDryStore(stored)
	different := false
	var errs []error
	for _, d := range docs {
		text, err := difference(ctx, store, d.Object)
		if err != nil {
			errs = append(errs, d.Invalid(err)...)
			continue
		}
		different = different || text != ""
		if _, err := fmt.Fprint(c.out, text); err != nil {
			return err
		}
	}
	switch {
	case len(errs) > 0:
		return c.report(errs)
	case different:
		return &exitErr{exitDifferent, ""}
	}
	return nil
}

// difference applies an object to a store without writes, and returns how what is stored changes.
func difference(ctx context.Context, store *dryStore, o *model.Object) (string, error) {
	was, err := store.Get(ctx, o.Key)
	if err != nil && !errors.Is(err, datastore.ErrNotFound) {
		return "", err
	}
	if done, err := applyObject(ctx, store, o); err != nil || done == "unchanged" {
		return "", err
	}
	is, err := store.Get(ctx, o.Key)
	if err != nil {
		return "", err
	}
	var before, after string
	if was != nil && was.Value != nil {
		if before, err = documentText(was); err != nil {
			return "", err
		}
	} else {
		// a new object: what each write makes anew is no part of the files
		is = is.Clone()
		is.Metadata().SetUID("")
		is.Metadata().SetCreationTimestamp(zeroTime)
	}
	if after, err = documentText(is); err != nil {
		return "", err
	}
	return difflib.GetUnifiedDiffString(difflib.UnifiedDiff{
		A: difflib.SplitLines(before), B: difflib.SplitLines(after), FromFile: "stored " + o.Key.String(),
		ToFile: "files  " + o.Key.String(), Context: 3})
}

// documentText is the YAML of "get -o yaml".
func documentText(o *model.Object) (string, error) {
	var b strings.Builder
	err := table.Named(&b, o.Key.Kind, []*model.Object{o}, table.Options{Format: table.YAML})
	return b.String(), err
}
