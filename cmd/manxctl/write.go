package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/codec"
	"github.com/manxnet/manx/datastore/manifest"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/datastore/table"
	"github.com/manxnet/manx/datastore/validation"
)

// outcomeFormats are the formats of the outcome of a command that writes.
var outcomeFormats = []table.Format{table.Table, table.JSON, table.YAML, table.Name}

// writer stores one object and returns a word for the result.
type writer func(context.Context, datastore.Store, *model.Object) (string, error)

func (c *cli) applyCommand() *cobra.Command {
	return c.writeCommand("apply", "Create objects, or update those that exist", applyObject)
}

func (c *cli) createCommand() *cobra.Command {
	var skip bool
	cmd := c.writeCommand("create", "Create objects that do not exist yet",
		func(ctx context.Context, s datastore.Store, o *model.Object) (string, error) {
			done, err := createObject(ctx, s, o)
			if skip && errors.Is(err, datastore.ErrExists) {
				return "skipped: it exists", nil
			}
			return done, err
		})
	cmd.Flags().BoolVar(&skip, "skip-exists", false, "an object that exists already is no error")
	return cmd
}

func (c *cli) replaceCommand() *cobra.Command {
	return c.writeCommand("replace", "Replace objects that exist", replaceObject)
}

func (c *cli) writeCommand(verb, short string, write writer) *cobra.Command {
	var f files
	var ns namespaces
	var output string
	var accept accepted
	dry := dryNo
	cmd := &cobra.Command{
		Use:   verb + " -f FILE",
		Short: short,
		Long: short + `. If a file cannot be read or has an unknown field, nothing is written. An object with a value that breaks a
rule is refused, with file and line, and the others are written. A setting that manxd would not use, such as a misspelt
annotation manx.io/..., is written with a warning, and an error of a dry run. So is a setting of Calico that keeps nodes
from becoming ready, unless --accept-settings names it; others that Manx does not have are warnings.

--dry-run (or --dry-run=client) checks the files alone, without a datastore. --dry-run=server reads the datastore, too,
checks the rules that need its other objects, and shows what would be done. Neither writes, and neither checks whether
you have the right to write.

-o json and -o yaml print the outcome as data: for each object its kind, namespace, name, result and errors, and
"changed", set if an object was written, or would be.`,
		Example: fmt.Sprintf("  manxctl %s -f pool.yaml\n  manxctl %s -f cluster/ -R\n"+
			"  cat peers.json | manxctl %s -f -\n  manxctl %s -f cluster/ --dry-run\n"+
			"  manxctl %s -f pool.yaml --dry-run=server -o json", verb, verb, verb, verb, verb),
		Args: filesOnly,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if len(f.paths) == 0 {
				return usagef("%s needs -f FILE, -f FOLDER or -f -", verb)
			}
			format, err := table.ParseFormat(output, outcomeFormats...)
			if err != nil {
				return usagef("%v", err)
			}
			ns.context = c.namespace
			docs, err := c.load(f, ns)
			if err != nil {
				return err
			}
			if err := c.refuseForeign(docs); err != nil {
				return err
			}
			to := c.outcomes(format, dry)
			switch dry {
			case dryNo:
				return c.writeAll(cmd.Context(), docs, write, to)
			case dryServer:
				return c.writeDry(cmd.Context(), docs, write, accept, to)
			}
			return c.checkAll(docs, accept, to)
		},
	}
	dry.add(cmd)
	accept.add(cmd)
	f.add(cmd)
	cmd.Flags().BoolVar(&f.skipEmpty, "skip-empty", false, "files without an object are no error")
	outputFlag(cmd, &output, outcomeFormats...)
	cmd.Flags().StringVarP(&ns.name, "namespace", "n", "", "namespace of documents that name none (\"default\" "+
		"if not given)")
	return cmd
}

// refuseForeign refuses documents of Kubernetes, before any other is written.
func (c *cli) refuseForeign(docs []manifest.Document) error {
	if errs := foreign(docs); len(errs) > 0 {
		return c.report(errs)
	}
	return nil
}

// foreign returns an error for each document of Kubernetes.
func foreign(docs []manifest.Document) (errs []error) {
	for _, d := range docs {
		if kind, _ := model.Lookup(d.Object.Key.Kind); kind.Kubernetes {
			errs = append(errs, fmt.Errorf("%s: %s: %w", d.Source, d.Object.Key, model.ErrKubernetes))
		}
	}
	return errs
}

// invalid returns the rules that each document breaks, whatever is stored.
func invalid(docs []manifest.Document) []error {
	var errs []error
	for _, d := range docs {
		if kind, _ := model.Lookup(d.Object.Key.Kind); kind.Kubernetes {
			continue
		}
		if err := codec.PrepareUpdate(d.Object.Clone()); err != nil {
			errs = append(errs, d.Invalid(err)...)
		}
	}
	return errs
}

// checkAll checks documents without a datastore. It prints no object as valid if any is not.
func (c *cli) checkAll(docs []manifest.Document, accept accepted, to *outcomes) error {
	unused := c.unused(docs, accept)
	if errs := slices.Concat(invalid(docs), ofOthers(docs), overlapping(docs), unused); len(errs) > 0 {
		return c.report(errs)
	}
	for _, d := range docs {
		if err := to.add(d.Object, "valid"); err != nil {
			return err
		}
	}
	return to.end()
}

// ofOthers returns an error for each document that another program owns.
func ofOthers(docs []manifest.Document) (errs []error) {
	for _, d := range docs {
		if err := refused(d.Object.Key); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", d.At(""), err))
		}
	}
	return errs
}

// overlapping returns the pools of documents that overlap an earlier one.
func overlapping(docs []manifest.Document) (errs []error) {
	before := model.Set{}
	for _, d := range docs {
		pool, ok := d.Object.Value.(*model.IPPool)
		if !ok {
			continue
		}
		if fields := validation.CheckPoolOverlap(d.Object.Key, pool, before); len(fields) > 0 {
			errs = append(errs, d.Invalid(&model.InvalidError{Key: d.Object.Key, Fields: fields})...)
		}
		before[d.Object.Key] = d.Object
	}
	return errs
}

// openFor opens the datastore for documents. Without one it reports what is wrong with them, too: no datastore is
// needed for that.
func (c *cli) openFor(ctx context.Context, docs []manifest.Document) (datastore.Store, error) {
	store, err := c.open(ctx)
	if err == nil {
		return store, nil
	}
	return nil, c.report(append(invalid(docs), err))
}

// writeAll continues after an error and reports all of them.
func (c *cli) writeAll(ctx context.Context, docs []manifest.Document, write writer, to *outcomes) error {
	store, err := c.openFor(ctx, docs)
	if err != nil {
		return err
	}
	defer store.Close() //nolint:errcheck // every write has been answered
	c.warnUnused(docs)
	return writeTo(ctx, store, docs, write, to)
}

func writeTo(ctx context.Context, store datastore.Store, docs []manifest.Document, write writer, to *outcomes) error {
	for _, d := range docs {
		done, err := write(ctx, store, d.Object)
		if err != nil {
			to.fail(d.Object, d.Invalid(err))
			continue
		}
		if err := to.add(d.Object, done); err != nil {
			return err
		}
	}
	return to.end()
}

// createObject stores a new object. It drops the identity of another cluster or time, so that a backup can be restored.
func createObject(ctx context.Context, store datastore.Store, o *model.Object) (string, error) {
	o = o.Clone()
	m := o.Metadata()
	m.SetResourceVersion("")
	m.SetUID("")
	m.SetCreationTimestamp(zeroTime)
	if err := checkNew(ctx, store, o); err != nil {
		return "", err
	}
	_, err := store.Create(ctx, o)
	return "created", err
}

// checkNew applies the rules for a new object that need other objects: an overlapping pool would assign the same
// addresses, and a policy needs its tier.
func checkNew(ctx context.Context, store datastore.Store, o *model.Object) error {
	if err := refused(o.Key); err != nil {
		return err
	}
	if pool, ok := o.Value.(*model.IPPool); ok {
		err := checkAgainst(ctx, store, o, model.KindIPPool, func(pools model.Reader) []model.FieldError {
			return validation.CheckPoolOverlap(o.Key, pool, pools)
		})
		if err != nil {
			return err
		}
		return checkAgainst(ctx, store, o, model.KindIPAMBlock, func(blocks model.Reader) []model.FieldError {
			return validation.CheckPoolBlocks(pool, blocks)
		})
	}
	if model.PolicyTier(o.Value) != "" {
		return checkTier(ctx, store, o)
	}
	return checkFilters(ctx, store, o)
}

// checkTier applies to a policy that is new, or that another tier gets: without its tier no node enforces it.
func checkTier(ctx context.Context, store datastore.Store, o *model.Object) error {
	return checkAgainst(ctx, store, o, model.KindTier, func(tiers model.Reader) []model.FieldError {
		return validation.CheckPolicyTier(o.Value, tiers)
	})
}

// checkFilters applies to each written BGPPeer, new or not: with a missing filter, its sessions would carry too many
// routes.
func checkFilters(ctx context.Context, store datastore.Store, o *model.Object) error {
	peer, ok := o.Value.(*model.BGPPeer)
	if !ok || len(peer.Spec.Filters) == 0 {
		return nil
	}
	return checkAgainst(ctx, store, o, model.KindBGPFilter, func(filters model.Reader) []model.FieldError {
		return validation.CheckPeerFilters(peer, filters)
	})
}

// checkAgainst applies a rule that needs all objects of another kind.
func checkAgainst(ctx context.Context, store datastore.Store, o *model.Object, kind model.Kind,
	rule func(model.Reader) []model.FieldError) error {
	objects, _, err := store.List(ctx, kind, "")
	if err != nil {
		return err
	}
	if errs := rule(model.NewSet(objects...)); len(errs) > 0 {
		return &model.InvalidError{Key: o.Key, Fields: errs}
	}
	return nil
}

func applyObject(ctx context.Context, store datastore.Store, o *model.Object) (string, error) {
	for range casRetries {
		done, err := update(ctx, store, o, keepFilled, "configured")
		if errors.Is(err, datastore.ErrNotFound) {
			done, err = createObject(ctx, store, o)
		}
		if !repeatable(o, err) {
			return done, err
		}
	}
	return "", busy(o)
}

func replaceObject(ctx context.Context, store datastore.Store, o *model.Object) (string, error) {
	for range casRetries {
		done, err := update(ctx, store, o, keepNothing, "replaced")
		if !repeatable(o, err) {
			return done, err
		}
	}
	return "", busy(o)
}

// casRetries bounds the attempts of a write after conflicts.
const casRetries = 10

func busy(o *model.Object) error {
	return fmt.Errorf("%s: given up after %d tries: %w", o.Key, casRetries, datastore.ErrConflict)
}

// repeatable reports whether a write with a conflict may be repeated: not if the user named the revision to replace.
func repeatable(o *model.Object, err error) bool {
	if errors.Is(err, datastore.ErrExists) {
		return true // created after our read
	}
	return errors.Is(err, datastore.ErrConflict) && o.Metadata().GetResourceVersion() == ""
}

// update replaces the stored object by o and keeps the fields that users do not write, and those that keep copies to
// the next value from the stored one. It does not write an unchanged object, which would notify watchers.
func update(
	ctx context.Context, store datastore.Store, o *model.Object, keep func(next, stored any), done string,
) (string, error) {
	stored, err := store.Get(ctx, o.Key)
	if err != nil {
		return "", err
	}
	if err := sameObject(o, stored); err != nil {
		return "", err
	}
	return storeChanged(ctx, store, stored, onTopOf(stored, o, keep), done)
}

// sameObject checks a document's identity fields against the stored object.
func sameObject(o, stored *model.Object) error {
	m := stored.Metadata()
	rv := o.Metadata().GetResourceVersion()
	switch {
	case rv == "" || rv == strconv.FormatInt(stored.Revision, 10):
	case m != nil && strings.Contains(m.GetResourceVersion(), "/"):
		// The revision of a Profile derived from a Namespace or a ServiceAccount. The datastore refuses a change of
		// such a Profile.
	default:
		return fmt.Errorf("%s: %w (metadata.resourceVersion is %q, but %d is stored; remove the field to write anyway)",
			o.Key, datastore.ErrConflict, rv, stored.Revision)
	}
	if uid := o.Metadata().GetUID(); uid != "" && m != nil && m.GetUID() != "" && m.GetUID() != uid {
		return fmt.Errorf("%s: metadata.uid is %q, but the stored object is another one with uid %q: remove the "+
			"field to write anyway", o.Key, uid, m.GetUID())
	}
	return nil
}
