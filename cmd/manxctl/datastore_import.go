package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	"github.com/spf13/cobra"

	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/codec"
	"github.com/manxnet/manx/datastore/document"
	"github.com/manxnet/manx/datastore/etcd"
	"github.com/manxnet/manx/datastore/manifest"
	"github.com/manxnet/manx/datastore/model"
)

func (c *cli) importCommand() *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use:   "import -f FILE",
		Short: "Store an export in an empty datastore",
		Long: `Store the output of "manxctl datastore export", or of calicoctl's, in a datastore without pools, peers and addresses. If
an object of the export is refused, nothing is written. An import that failed on the way can be repeated.

The datastore is locked first and stays locked: start the nodes with their new datastore, and then use "manxctl
datastore unlock". A node that Kubernetes does not have is left out with a warning.`,
		Example: "  manxctl datastore import -f export.yaml",
		Args:    filesOnly,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if file == "" {
				return usagef("import needs -f FILE or -f -")
			}
			sources, errs := manifest.Read(file, c.in, false)
			if len(errs) > 0 {
				return c.report(errs)
			}
			x, err := parseExport(sources[0].Text)
			if err != nil {
				return fmt.Errorf("%s: %w", file, err)
			}
			store, err := c.open(cmd.Context())
			if err != nil {
				return err
			}
			defer store.Close() //nolint:errcheck // every write has been answered
			return c.importAll(cmd.Context(), store, x)
		},
	}
	cmd.Flags().StringVarP(&file, "filename", "f", "", "the export, or - for standard input")
	return cmd
}

// exportContent is an export that was read.
type exportContent struct {
	objects []*model.Object
	info    v3.ClusterInformation
	records []*model.Object
}

func parseExport(text []byte) (x exportContent, err error) {
	parts := []string{""}
	for line := range strings.Lines(string(text)) {
		if strings.TrimRight(line, "\r\n") == strings.TrimSpace(exportEnd) {
			parts = append(parts, "")
		} else {
			parts[len(parts)-1] += line
		}
	}
	if len(parts) != 3 {
		return x, fmt.Errorf("want three parts between lines %q, as \"manxctl datastore export\" prints them",
			strings.TrimSpace(exportEnd))
	}
	if strings.TrimSpace(parts[0]) != "" {
		if x.objects, err = document.Parse([]byte(parts[0])); err != nil {
			return x, err
		}
	}
	if err := json.Unmarshal([]byte(parts[1]), &x.info); err != nil {
		return x, fmt.Errorf("the ClusterInformation: %w", err)
	}
	var r exportedRecords
	if err := json.Unmarshal([]byte(parts[2]), &r); err != nil {
		return x, fmt.Errorf("the records of IPAM: %w", err)
	}
	all := slices.Concat(r.Affinities, r.Blocks, r.Handles)
	if r.Config != nil {
		all = append(all, *r.Config)
	}
	for _, record := range all {
		key, ok, err := etcd.ParsePath(record.Key)
		if err != nil || !ok {
			return x, fmt.Errorf("the records of IPAM: %q is no key of a record: %w", record.Key, err)
		}
		o := codec.Decode(key, record.Value, 0)
		if o.Err != nil {
			return x, o.Err
		}
		x.records = append(x.records, model.NewObject(key, o.Value))
	}
	return x, nil
}

// importAll stores an export, or nothing if an object of it is refused. It goes on with an import that failed: objects
// that are stored as the export has them count as stored.
func (c *cli) importAll(ctx context.Context, store datastore.Store, x exportContent) error {
	x.arrange()
	if err := x.checkEmpty(ctx, store); err != nil {
		return err
	}
	if _, errs := importInto(ctx, newDryStore(store), x); len(errs) > 0 {
		return c.report(append(errs, errors.New("nothing was written")))
	}
	r, errs := importInto(ctx, store, x)
	c.complain(r.leftOut)
	if err := c.printf("Stored %d objects and %d records of IPAM. The datastore is locked: \"manxctl datastore "+
		"unlock\" when the nodes use it.", r.objects, r.records); err != nil {
		return err
	}
	if len(errs) > 0 {
		return c.report(errs)
	}
	return nil
}

// arrange puts those objects first that others need, and removes their identity in another cluster.
func (x *exportContent) arrange() {
	first := func(o *model.Object) int {
		if o.Key.Kind == model.KindTier || o.Key.Kind == model.KindBGPFilter {
			return 0
		}
		return 1
	}
	slices.SortStableFunc(x.objects, func(a, b *model.Object) int { return first(a) - first(b) })
	for i, o := range x.objects {
		x.objects[i] = exported(o, false)
	}
}

// checkEmpty refuses a datastore with pools, peers or addresses that the export does not have.
func (x *exportContent) checkEmpty(ctx context.Context, store datastore.Store) error {
	for _, kind := range []model.Kind{model.KindIPPool, model.KindBGPPeer, model.KindIPAMBlock, model.KindBlockAffinity,
		model.KindIPAMHandle} {
		there, _, err := store.List(ctx, kind, "")
		if err != nil {
			return err
		}
		for _, o := range there {
			is, err := x.has(ctx, store, o)
			if err != nil {
				return err
			}
			if !is {
				return fmt.Errorf("the datastore is not empty: it has %s, which the export does not have, or has "+
					"otherwise", o.Key)
			}
		}
	}
	return nil
}

// has reports whether the export has a stored object as it is.
func (x *exportContent) has(ctx context.Context, store datastore.Store, stored *model.Object) (bool, error) {
	is := func(o *model.Object) bool { return o.Key == stored.Key }
	if i := slices.IndexFunc(x.objects, is); i >= 0 {
		done, err := applyObject(ctx, newDryStore(store), x.objects[i])
		return done == "unchanged", err
	}
	i := slices.IndexFunc(x.records, is)
	return i >= 0 && same(x.records[i], stored), nil
}

// imported is the result of an import.
type imported struct {
	objects, records int
	leftOut          []string // warnings about nodes that Kubernetes does not have
}

// importInto stores an export. Pools come before blocks, whose sizes would be compared with them.
func importInto(ctx context.Context, store datastore.Store, x exportContent) (r imported, errs []error) {
	if err := importInfo(ctx, store, x.info); err != nil {
		return r, []error{err}
	}
	for _, o := range x.objects {
		_, err := applyObject(ctx, store, o)
		switch {
		case err == nil:
			r.objects++
		case o.Key.Kind == model.KindNode && errors.Is(err, datastore.ErrNotFound):
			r.leftOut = append(r.leftOut, fmt.Sprintf("Warning: %s is left out: %v", o.Key, err))
		default:
			errs = append(errs, fmt.Errorf("%s: %w", o.Key, err))
		}
	}
	for _, o := range x.records {
		if err := importRecord(ctx, store, o); err != nil {
			errs = append(errs, err)
			continue
		}
		r.records++
	}
	return r, errs
}

// importRecord stores a record. The configuration of IPAM exists already, if it was among the objects, too: with the
// Kubernetes API both are one custom resource.
func importRecord(ctx context.Context, store datastore.Store, o *model.Object) error {
	if o.Key != model.IPAMConfigKey {
		_, err := store.Create(ctx, o)
		if !errors.Is(err, datastore.ErrExists) {
			return err
		}
		if stored, e := store.Get(ctx, o.Key); e == nil && same(stored, o) {
			return nil
		}
		return err
	}
	return configureIPAM(ctx, store, func(to *model.Object) error {
		*to.Value.(*model.IPAMConfig) = *o.Value.(*model.IPAMConfig)
		return nil
	})
}

// importInfo gives the cluster its identity, and locks it.
func importInfo(ctx context.Context, store datastore.Store, info v3.ClusterInformation) error {
	key, locked := model.ResourceKey(model.KindClusterInformation, "default"), false
	stored, err := store.Get(ctx, key)
	switch {
	case errors.Is(err, datastore.ErrNotFound):
		_, err := store.Create(ctx, model.NewObject(key, &v3.ClusterInformation{Spec: v3.ClusterInformationSpec{
			ClusterGUID: info.Spec.ClusterGUID, ClusterType: info.Spec.ClusterType,
			CalicoVersion: info.Spec.CalicoVersion, DatastoreReady: &locked}}))
		return err
	case err != nil:
		return err
	}
	next := stored.Clone()
	to, ok := next.Value.(*v3.ClusterInformation)
	if !ok {
		return fmt.Errorf("%s is stored but cannot be read: %w", key, stored.Err)
	}
	to.Spec.ClusterGUID, to.Spec.ClusterType = info.Spec.ClusterGUID, info.Spec.ClusterType
	to.Spec.CalicoVersion, to.Spec.DatastoreReady = info.Spec.CalicoVersion, &locked
	_, err = store.Update(ctx, next)
	return err
}
