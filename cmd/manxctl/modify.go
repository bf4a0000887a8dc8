package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/codec"
	"github.com/manxnet/manx/datastore/document"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/datastore/table"
)

// modification is a command that changes stored objects by name, such as label.
type modification struct {
	done   string // the word for an object that was changed
	change func(*model.Object) error
	warn   bool // of settings of the result that manxd would not use
}

// modify changes the objects of a target and prints the result of each. It continues after an error.
func (c *cli) modify(ctx context.Context, t target, ns namespaces, m modification) error {
	store, err := c.open(ctx)
	if err != nil {
		return err
	}
	defer store.Close() //nolint:errcheck // every write has been answered
	var errs []error
	for _, name := range t.names {
		key := t.key(ns, name)
		var next *model.Object
		done, err := modifyObject(ctx, store, key, modification{done: m.done, change: func(o *model.Object) error {
			next = o
			return m.change(o)
		}})
		if err == nil && m.warn {
			c.warnUnusedOf(next)
		}
		if err == nil {
			err = table.Names(c.out, []*model.Object{{Key: key}}, done)
		}
		if err != nil {
			errs = append(errs, err)
		}
	}
	if len(errs) > 0 {
		return c.report(errs)
	}
	return nil
}

// modifyObject changes a private copy of a stored object and stores it. After a conflict it begins again.
func modifyObject(ctx context.Context, store datastore.Store, key model.Key, m modification) (string, error) {
	for range casRetries {
		stored, err := store.Get(ctx, key)
		if err != nil {
			return "", err
		}
		if stored.Value == nil {
			return "", fmt.Errorf("%s is stored but cannot be read: %w", key, stored.Err)
		}
		next := stored.Clone()
		next.Err = nil
		if err := m.change(next); err != nil {
			return "", fmt.Errorf("%s: %w", key, err)
		}
		done, err := storeChanged(ctx, store, stored, next, m.done)
		if !errors.Is(err, datastore.ErrConflict) {
			return done, err
		}
	}
	return "", busy(&model.Object{Key: key})
}

// storeChanged stores the next version of an object, unless it is the same.
func storeChanged(ctx context.Context, store datastore.Store, stored, next *model.Object, done string) (string, error) {
	if err := codec.PrepareUpdate(next); err != nil {
		return "", err
	}
	if same(stored, next) {
		return "unchanged", nil
	}
	err := errors.Join(refused(next.Key), checkFilters(ctx, store, next))
	if model.PolicyTier(next.Value) != model.PolicyTier(stored.Value) {
		err = errors.Join(err, checkTier(ctx, store, next))
	}
	if err != nil {
		return "", err
	}
	_, err = store.Update(ctx, next)
	return done, err
}

// oneTarget parses KIND NAME... for a command that writes objects.
func oneTarget(cmd *cobra.Command, args []string, ns namespaces) (target, error) {
	targets, err := parseTargets(args)
	if err == nil {
		err = ns.fit(targets)
	}
	if err != nil {
		return target{}, err
	}
	t := targets[0]
	switch {
	case len(targets) > 1:
		return target{}, usagef("%s takes one object", cmd.CommandPath())
	case !t.kind.Resource:
		return target{}, usagef("%s belongs to the address allocator and cannot be changed here", t.kind.Kind)
	case len(t.names) == 0:
		return target{}, usagef("name the %s to %s", t.kind.Kind, cmd.Name())
	}
	return t, nil
}

// documentJSON is an object as the JSON of "get -o json".
func documentJSON(o *model.Object) ([]byte, error) {
	var b bytes.Buffer
	err := table.Named(&b, o.Key.Kind, []*model.Object{o}, table.Options{Format: table.JSON})
	return b.Bytes(), err
}

// setDocument makes the text of a document the value of o, of the same name. It is as strict as apply.
func setDocument(o *model.Object, text []byte) error {
	parsed, err := document.Parse(text)
	if err != nil {
		return errors.New(strings.TrimPrefix(err.Error(), "document 1: "))
	}
	if len(parsed) != 1 || parsed[0].Key != o.Key {
		return fmt.Errorf("it would become %s: kind, name and namespace cannot be changed", parsed[0].Key)
	}
	o.Value = parsed[0].Value
	return nil
}
