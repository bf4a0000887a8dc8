package main

import (
	"errors"

	"github.com/spf13/cobra"

	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/datastore/table"
)

func (c *cli) deleteCommand() *cobra.Command {
	var f files
	var ns namespaces
	var ignore bool
	cmd := &cobra.Command{
		Use:   "delete KIND NAME... | KIND/NAME... | -f FILE",
		Short: "Delete objects",
		Long: `Delete objects. Deleting a node also deletes the objects that exist for it alone: its workload endpoints, their
addresses and those of its tunnels, its blocks, its host endpoints, BGPPeers that name it, and its own Felix and BGP
configuration. A tier with policies cannot be deleted. A pool is disabled first, and its blocks are released; pods keep
their addresses.

If an object is named that does not exist, the others are deleted, and the exit code is 1.`,
		Example: "  manxctl delete bgppeer tor-1\n  manxctl delete -f peers.yaml",
		RunE: func(cmd *cobra.Command, args []string) error {
			ns.context = c.namespace
			keys, err := c.deleteKeys(f, ns, args)
			if err != nil || len(keys) == 0 {
				return err
			}
			store, err := c.open(cmd.Context())
			if err != nil {
				return err
			}
			defer store.Close() //nolint:errcheck // every delete has been answered
			var errs []error
			for _, k := range keys {
				gone, err := deleteObject(cmd.Context(), store, k)
				for _, g := range gone {
					err = errors.Join(err, table.Names(c.out, []*model.Object{{Key: g}}, "deleted"))
				}
				if err != nil && !(ignore && errors.Is(err, datastore.ErrNotFound)) {
					errs = append(errs, err)
				}
			}
			if len(errs) > 0 {
				return c.report(errs)
			}
			return nil
		},
		ValidArgsFunction: c.completeObjects,
	}
	f.add(cmd)
	cmd.Flags().StringVarP(&ns.name, "namespace", "n", "", "namespace of namespaced kinds (\"default\" if not given)")
	cmd.Flags().BoolVarP(&ignore, "ignore-not-found", "s", false, "an object that does not exist is no error")
	cmd.Flags().BoolVar(&f.skipEmpty, "skip-empty", false, "files without an object are no error")
	cmd.Flags().BoolVar(&ignore, "skip-not-exists", false, "the same, as calicoctl spells it")
	return cmd
}

// deleteKeys returns the objects that the command line or the files name, in that order.
func (c *cli) deleteKeys(f files, ns namespaces, args []string) ([]model.Key, error) {
	var keys []model.Key
	if len(f.paths) > 0 {
		if len(args) > 0 {
			return nil, usagef("give either -f or a kind and names, not both")
		}
		docs, err := c.load(f, ns)
		for _, d := range docs {
			keys = append(keys, d.Object.Key)
		}
		return keys, err
	}
	targets, err := parseTargets(args)
	if err == nil {
		err = ns.fit(targets)
	}
	if err != nil {
		return nil, err
	}
	for _, t := range targets {
		if !t.kind.Resource {
			return nil, usagef("%s belongs to the address allocator and cannot be deleted here", t.kind.Kind)
		}
		if len(t.names) == 0 {
			return nil, usagef("name the objects to delete: %s is a whole kind", t.kind.Plural)
		}
		for _, name := range t.names {
			keys = append(keys, t.key(ns, name))
		}
	}
	return keys, nil
}
