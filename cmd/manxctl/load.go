package main

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/manxnet/manx/datastore/codec"
	"github.com/manxnet/manx/datastore/manifest"
	"github.com/manxnet/manx/datastore/model"
)

// files are the flags -f and -R.
type files struct {
	paths     []string
	recursive bool
	skipEmpty bool // nothing to do is no error
}

func (f *files) add(cmd *cobra.Command) {
	cmd.Flags().StringSliceVarP(&f.paths, "filename", "f", nil,
		"file or folder with resources, or - for standard input")
	cmd.Flags().BoolVarP(&f.recursive, "recursive", "R", false, "read the folders inside a folder, too")
}

// load reads all files. It returns no document if any file has an error: an error in the last document must not leave
// the first ones applied.
func (c *cli) load(f files, ns namespaces) ([]manifest.Document, error) {
	docs, errs := c.loadGood(f, ns)
	if len(errs) > 0 {
		return nil, c.report(errs)
	}
	return docs, nil
}

// loadGood reads all files, and returns the documents without an error and the errors of the others.
func (c *cli) loadGood(f files, ns namespaces) (docs []manifest.Document, errs []error) {
	for _, p := range f.paths {
		d, e := manifest.Load(p, c.in, f.recursive)
		docs, errs = append(docs, d...), append(errs, e...)
	}
	for _, d := range docs {
		if err := complete(d.Object, ns); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", d.Source, err))
		}
	}
	if f.skipEmpty {
		errs = slices.DeleteFunc(errs, func(err error) bool { return errors.Is(err, manifest.ErrEmpty) })
	}
	if len(errs) == 0 && len(docs) == 0 && !f.skipEmpty {
		errs = append(errs, errors.New("the files of -f contain no resource"))
	}
	return docs, errs
}

// complete sets a document's namespace, and the name that follows from its fields if it has none.
func complete(o *model.Object, ns namespaces) error {
	kind, _ := model.Lookup(o.Key.Kind)
	switch {
	case !kind.Namespaced && o.Key.Namespace != "":
		return fmt.Errorf("%s: %s is not namespaced: remove metadata.namespace %q", o.Key, kind.Kind, o.Key.Namespace)
	case kind.Namespaced && o.Key.Namespace == "":
		o.Key.Namespace = ns.orDefault()
		o.Metadata().SetNamespace(o.Key.Namespace)
	case kind.Namespaced && ns.name != "" && ns.name != o.Key.Namespace:
		return fmt.Errorf("%s: metadata.namespace is %q, but -n is %q", o.Key, o.Key.Namespace, ns.name)
	}
	if o.Key.Name != "" {
		return nil
	}
	named := o.Clone()
	if err := codec.PrepareCreate(named, time.Now()); err != nil || named.Key.Name == "" {
		return fmt.Errorf("%s: metadata.name is missing", kind.Kind)
	}
	o.Key.Name = named.Key.Name
	o.Metadata().SetName(o.Key.Name)
	return nil
}

// report prints several errors, one on each line, and returns one that ends the program with code 1.
func (c *cli) report(errs []error) error {
	for _, err := range errs {
		fmt.Fprintln(c.err, "Error:", err) //nolint:errcheck // nowhere to report it
	}
	return &exitErr{exitError, ""}
}
