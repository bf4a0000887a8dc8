package main

import (
	"context"
	"errors"
	"fmt"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	"github.com/spf13/cobra"

	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/model"
)

func (c *cli) datastoreCommand() *cobra.Command {
	group := func(use, short string, hidden bool) *cobra.Command {
		cmd := &cobra.Command{Use: use, Short: short, Args: onlyCommands, Hidden: hidden,
			RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() }}
		cmd.AddCommand(c.lockCommand("lock", "Stop assignments of addresses in the whole cluster", true),
			c.lockCommand("unlock", "Allow assignments of addresses again", false), c.exportCommand(),
			c.importCommand())
		return cmd
	}
	cmd := group("datastore", "Lock, export and import the datastore", false)
	cmd.AddCommand(group("migrate", "The same, as calicoctl has them", true))
	return cmd
}

// lockCommand sets datastoreReady of the cluster.
func (c *cli) lockCommand(use, short string, locked bool) *cobra.Command {
	return &cobra.Command{
		Use:   use,
		Short: short,
		Long: short + `. While the datastore is locked (datastoreReady of ClusterInformation is false), no pod gets an address, no node
registers, and nothing is released: ADDs of the CNI plugin fail and are repeated. Pods that run keep their network.`,
		Example: "  manxctl datastore " + use,
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			store, err := c.open(cmd.Context())
			if err != nil {
				return err
			}
			defer store.Close() //nolint:errcheck // the write has been answered
			if !locked {
				if err := mayUnlock(cmd.Context(), store); err != nil {
					return err
				}
			}
			if err := setReady(cmd.Context(), store, !locked); err != nil {
				return err
			}
			return c.printf("Datastore %sed.", use)
		},
	}
}

// mayUnlock returns an error while a migration of the Kubernetes datastore holds the lock.
func mayUnlock(ctx context.Context, store datastore.Store) error {
	if w, ok := store.(interface{ Unwrap() datastore.Backend }); ok {
		store = w.Unwrap()
	}
	migrated, ok := store.(interface {
		Held(context.Context) (string, error)
	})
	if !ok {
		return nil
	}
	why, err := migrated.Held(ctx)
	if err == nil && why != "" {
		err = fmt.Errorf("the datastore stays locked: %s", why)
	}
	return err
}

// setReady writes the one field of ClusterInformation that users set.
func setReady(ctx context.Context, store datastore.Store, ready bool) error {
	key := model.ResourceKey(model.KindClusterInformation, "default")
	for range casRetries {
		stored, err := store.Get(ctx, key)
		switch {
		case errors.Is(err, datastore.ErrNotFound):
			return fmt.Errorf("no manxd or calico/node has started in this cluster yet: %w", err)
		case err != nil:
			return err
		case stored.Value == nil:
			return fmt.Errorf("%s is stored but cannot be read: %w", key, stored.Err)
		}
		next := stored.Clone()
		next.Value.(*v3.ClusterInformation).Spec.DatastoreReady = &ready
		if same(stored, next) {
			return nil
		}
		if _, err = store.Update(ctx, next); !errors.Is(err, datastore.ErrConflict) {
			return err
		}
	}
	return busy(&model.Object{Key: key})
}
