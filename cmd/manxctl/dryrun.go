package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/codec"
	"github.com/manxnet/manx/datastore/manifest"
	"github.com/manxnet/manx/datastore/model"
)

// dryRun is the flag --dry-run, with kubectl's values.
type dryRun string

const (
	dryNo     dryRun = "none"
	dryClient dryRun = "client"
	dryServer dryRun = "server"
)

func (d *dryRun) String() string { return string(*d) }
func (d *dryRun) Type() string   { return "MODE" }

func (d *dryRun) Set(text string) error {
	values := []string{string(dryNo), string(dryClient), string(dryServer)}
	if !slices.Contains(values, text) {
		return fmt.Errorf("want %s", strings.Join(values, ", "))
	}
	*d = dryRun(text)
	return nil
}

func (d *dryRun) add(cmd *cobra.Command) {
	cmd.Flags().Var(d, "dry-run", "write nothing: client checks the files, server the datastore, too")
	cmd.Flags().Lookup("dry-run").NoOptDefVal = string(dryClient)
	_ = cmd.RegisterFlagCompletionFunc("dry-run", cobra.FixedCompletions(
		[]string{string(dryNo), string(dryClient), string(dryServer)}, cobra.ShellCompDirectiveNoFileComp))
}

// writeDry is writeAll without a write.
func (c *cli) writeDry(ctx context.Context, docs []manifest.Document, write writer, accept accepted,
	to *outcomes) error {
	store, err := c.openFor(ctx, docs)
	if err != nil {
		return err
	}
	defer store.Close() //nolint:errcheck // nothing was written
	unused := c.unused(docs, accept)
	err = writeTo(ctx, newDryStore(store), docs, write, to)
	if len(unused) > 0 {
		return errors.Join(err, c.report(unused))
	}
	return err
}

// dryStore is a datastore with the writes of a command, which it keeps for itself: a later object of the files may
// need an earlier one.
type dryStore struct {
	datastore.Store
	written map[model.Key]*model.Object
}

func newDryStore(s datastore.Store) *dryStore {
	return &dryStore{Store: s, written: map[model.Key]*model.Object{}}
}

func (d *dryStore) Get(ctx context.Context, key model.Key) (*model.Object, error) {
	if o, ok := d.written[key]; ok {
		return o, nil
	}
	return d.Store.Get(ctx, key)
}

func (d *dryStore) List(ctx context.Context, kind model.Kind, namespace string) ([]*model.Object, int64, error) {
	list, revision, err := d.Store.List(ctx, kind, namespace)
	list = slices.DeleteFunc(slices.Clone(list), func(o *model.Object) bool { return d.written[o.Key] != nil })
	for key, o := range d.written {
		if key.Kind == kind && (namespace == "" || key.Namespace == namespace) {
			list = append(list, o)
		}
	}
	return list, revision, err
}

func (d *dryStore) Create(ctx context.Context, o *model.Object) (*model.Object, error) {
	created := o.Clone()
	if err := codec.PrepareCreate(created, time.Now()); err != nil {
		return nil, &datastore.KeyError{Op: "create", Key: o.Key, Err: err}
	}
	if _, err := d.Get(ctx, created.Key); err == nil {
		return nil, &datastore.KeyError{Op: "create", Key: o.Key, Err: datastore.ErrExists}
	}
	d.written[created.Key] = created
	return created, nil
}

// Update expects an object that was made from the stored one.
func (d *dryStore) Update(_ context.Context, o *model.Object) (*model.Object, error) {
	updated := o.Clone()
	updated.Err = nil
	if err := codec.PrepareUpdate(updated); err != nil {
		return nil, &datastore.KeyError{Op: "update", Key: o.Key, Err: err}
	}
	d.written[updated.Key] = updated
	return updated, nil
}
