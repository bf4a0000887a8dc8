package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/datastore/table"
)

// defaultAS is the AS number of a cluster that sets none.
const defaultAS = 64512

// getOptions are the flags of get.
type getOptions struct {
	files      files
	namespaces namespaces
	output     string
	selector   string
	noHeaders  bool
	showLabels bool
	watch      bool
	sortBy     string
	export     bool
	down       bool // peers: only those that are not established

	format   table.Format
	template *table.Template // instead of the format
	order    table.Order     // with sortBy
	match    labels.Selector
}

func (c *cli) getCommand() *cobra.Command {
	var o getOptions
	cmd := &cobra.Command{
		Use: "get KIND [NAME...] | KIND/NAME... | -f FILE",
		Short: "Show objects of the datastore, the BGP sessions of this node (peers), the objects that it keeps in " +
			"the kernel (hostobjects), or all policies with their effect here (policies)",
		Example: "  manxctl get peers -w\n  manxctl get bgppeers\n  manxctl get node node-1 -o yaml\n" +
			"  manxctl get weps -A -o wide\n  manxctl get policies\n" +
			"  manxctl get node node-1 -o jsonpath='{.spec.bgp.ipv4Address}'\n" +
			"  manxctl get tiers --sort-by .spec.order\n  manxctl get bgppeers -w\n" +
			"  manxctl get bgppeer tor-1 -o yaml --export\n" +
			"  manxctl get ippools -o custom-columns=NAME:.metadata.name,CIDR:.spec.cidr",
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.parse(); err != nil {
				return err
			}
			o.namespaces.context = c.namespace
			if len(args) > 0 && isPeers(args[0]) {
				if o.template != nil {
					return usagef("-o %s is for objects of the datastore: use \"get peers -o json\"", o.output)
				}
				return c.getPeersAnywhere(cmd, o, args[1:])
			}
			if len(args) > 0 && isHostObjects(args[0]) && o.watch {
				return usagef("-w is for peers and objects of the datastore; \"manxctl watch\" shows routes, too")
			}
			if len(args) > 0 && isHostObjects(args[0]) {
				return c.getHostObjects(cmd.Context(), o, args[1:])
			}
			if o.isAllPolicies(args) && !o.watch {
				return c.getPolicies(cmd.Context(), o)
			}
			if o.watch {
				return c.watchObjects(cmd.Context(), o, args)
			}
			return c.get(cmd.Context(), o, args)
		},
		ValidArgsFunction: c.completeObjects,
	}
	o.files.add(cmd)
	f := cmd.Flags()
	f.StringVarP(&o.output, "output", "o", "", "table, wide, yaml, json, name, or of objects of the datastore "+
		"jsonpath=TEMPLATE, jsonpath-file=FILE, go-template=TEMPLATE, go-template-file=FILE or "+
		"custom-columns=HEADING:PATH,... (a HEADING of the kind's table needs no PATH)")
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]string{"table", "wide", "yaml", "json",
		"name", "jsonpath=", "jsonpath-file=", "go-template=", "go-template-file=", "custom-columns="},
		cobra.ShellCompDirectiveNoFileComp))
	f.StringVarP(&o.namespaces.name, "namespace", "n", "", "namespace of namespaced kinds (\"default\" if not given)")
	f.BoolVarP(&o.namespaces.all, "all-namespaces", "A", false, "objects of all namespaces")
	f.BoolVarP(&o.namespaces.all, "every-namespace", "a", false, "as -A, for scripts of calicoctl")
	_ = f.MarkHidden("every-namespace")
	f.StringVar(&o.sortBy, "sort-by", "", "sort objects by a field, such as .spec.order")
	f.BoolVar(&o.export, "export", false, "leave out uid, resourceVersion and creationTimestamp, and the namespace of "+
		"objects that are named, to create the objects elsewhere")
	f.StringVarP(&o.selector, "selector", "l", "", "only objects with these labels, for instance app=web,tier!=db")
	f.BoolVar(&o.noHeaders, "no-headers", false, "tables without the heading")
	f.BoolVarP(&o.watch, "watch", "w", false, "follow each change")
	f.BoolVar(&o.showLabels, "show-labels", false, "tables with a column of labels")
	return cmd
}

func (o *getOptions) parse() (err error) {
	if o.template, err = table.ParseTemplate(o.output); err != nil {
		return usagef("%v", err)
	}
	if o.template != nil {
		o.format = table.JSON
	} else if o.format, err = table.ParseFormat(o.output); err != nil {
		return usagef("%v", err)
	}
	if o.order, err = table.ParseOrder(cmp.Or(o.sortBy, ".metadata.name")); err != nil {
		return usagef("--sort-by: %v", err)
	}
	if o.match, err = labels.Parse(o.selector); err != nil {
		return usagef("-l %q: %v", o.selector, err)
	}
	if o.namespaces.all && o.namespaces.name != "" {
		return usagef("use either -n or -A")
	}
	return nil
}

// answer is the result of get for one kind.
type answer struct {
	kind     model.KindInfo
	objects  []*model.Object
	revision int64
	named    bool
}

func (c *cli) get(ctx context.Context, o getOptions, args []string) error {
	targets, err := c.getTargets(&o, args)
	if err != nil {
		return err
	}
	store, err := c.open(ctx)
	if err != nil {
		return err
	}
	defer store.Close() //nolint:errcheck // nothing was written

	var errs []error
	for _, t := range targets {
		a, err := find(ctx, store, t, o)
		errs = append(errs, err...)
		a.objects = c.usable(a.objects, &errs, o.format)
		if err := o.arrange(&a); err != nil {
			return err
		}
		if err := c.print(ctx, store, a, o); err != nil {
			errs = append(errs, err)
		}
	}
	if len(errs) > 0 {
		return c.report(errs)
	}
	return nil
}

// arrange sorts the objects, and removes what is of this cluster alone, as the flags say.
func (o *getOptions) arrange(a *answer) error {
	if o.export {
		for i, x := range a.objects {
			if x.Metadata() != nil {
				a.objects[i] = exported(x, a.named)
			}
		}
	}
	if o.sortBy == "" {
		return nil
	}
	return o.order.Sort(a.objects)
}

// exported is an object without its identity in this cluster; without its namespace, too, if it is named.
func exported(o *model.Object, named bool) *model.Object {
	o = o.Clone()
	m := o.Metadata()
	m.SetUID("")
	m.SetResourceVersion("")
	m.SetCreationTimestamp(zeroTime)
	m.SetGeneration(0)
	m.SetManagedFields(nil)
	m.SetDeletionTimestamp(nil)
	m.SetDeletionGracePeriodSeconds(nil)
	if named {
		m.SetNamespace("")
	}
	return o
}

// getTargets returns the kinds and names of the command line, or those of the documents in files.
func (c *cli) getTargets(o *getOptions, args []string) ([]target, error) {
	if len(o.files.paths) == 0 {
		targets, err := parseTargets(args)
		if err != nil {
			return nil, err
		}
		return targets, o.namespaces.fit(targets)
	}
	if len(args) > 0 {
		return nil, usagef("give either -f or a kind, not both")
	}
	docs, err := c.load(o.files, o.namespaces)
	if err != nil {
		return nil, err
	}
	var targets []target
	for _, d := range docs {
		kind, _ := model.Lookup(d.Object.Key.Kind)
		targets = append(targets, target{kind: kind, names: []string{d.Object.Key.Name},
			namespace: d.Object.Key.Namespace})
	}
	return targets, nil
}

// find reads the objects of a target.
func find(ctx context.Context, store datastore.Store, t target, o getOptions) (answer, []error) {
	a := answer{kind: t.kind, named: len(t.names) > 0}
	if !a.named {
		return list(ctx, store, a, o)
	}
	var errs []error
	for _, name := range t.names {
		key := t.key(o.namespaces, name)
		found, err := store.Get(ctx, key)
		if errors.Is(err, datastore.ErrNotFound) && key == defaultAllow {
			found, err = builtInProfile(), nil
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		a.objects = append(a.objects, withClaim(found))
	}
	return a, errs
}

// defaultAllow is the key of Calico's built-in profile.
var defaultAllow = model.ResourceKey(model.KindProfile, model.DefaultAllowProfile)

// builtInProfile is the profile that host endpoints may name and no datastore stores.
func builtInProfile() *model.Object {
	allow := []v3.Rule{{Action: v3.Allow}}
	return model.NewObject(defaultAllow, &v3.Profile{Spec: v3.ProfileSpec{Ingress: allow, Egress: allow}})
}

func list(ctx context.Context, store datastore.Store, a answer, o getOptions) (answer, []error) {
	namespace := ""
	if a.kind.Namespaced && !o.namespaces.all {
		namespace = o.namespaces.orDefault()
	}
	all, revision, err := store.List(ctx, a.kind.Kind, namespace)
	if err != nil {
		return a, []error{err}
	}
	for _, x := range all {
		if m := x.Metadata(); o.match.Empty() || m != nil && o.match.Matches(labels.Set(m.GetLabels())) {
			a.objects = append(a.objects, withClaim(x))
		}
	}
	if a.kind.Kind == model.KindTier {
		slices.SortStableFunc(a.objects, func(x, y *model.Object) int {
			return cmp.Compare(tierOrder(x), tierOrder(y))
		})
	}
	a.revision = revision
	return a, nil
}

// withClaim shows a pod's addresses as Calico does: also those that only its annotations name so far.
func withClaim(o *model.Object) *model.Object {
	w, ok := o.Value.(*model.WorkloadEndpoint)
	if !ok || w.Spec.Claim == nil {
		return o
	}
	shown := *o
	shown.Value = w.Confirmed()
	return &shown
}

// tierOrder puts tiers without an order last.
func tierOrder(o *model.Object) float64 {
	if t, ok := o.Value.(*model.Tier); ok && t.Spec.Order != nil {
		return *t.Spec.Order
	}
	return math.Inf(1)
}

// usable removes undecodable objects, and warns of every object that manxd will not use.
func (c *cli) usable(objects []*model.Object, errs *[]error, f table.Format) []*model.Object {
	return slices.DeleteFunc(slices.Clone(objects), func(o *model.Object) bool {
		switch {
		case o.Err == nil:
			return false
		case o.Value == nil && (f == table.YAML || f == table.JSON):
			*errs = append(*errs, fmt.Errorf("%s is stored but cannot be read: %w", o.Key, o.Err))
			return true
		}
		//nolint:errcheck // nowhere to report it
		fmt.Fprintf(c.err, "Warning: %s is stored but not used: %v\n", o.Key, o.Err)
		return false
	})
}

func (c *cli) print(ctx context.Context, store datastore.Store, a answer, o getOptions) error {
	opts := table.Options{
		Format: o.format, NoHeading: o.noHeaders, Labels: o.showLabels,
		Namespace: a.kind.Namespaced && o.namespaces.given(),
	}
	if a.kind.Kind == model.KindNode && (o.format == table.Wide || o.template != nil) {
		opts.InheritAS = inheritedAS(ctx, store)
	}
	if a.named && len(a.objects) == 0 {
		return nil
	}
	if o.template != nil {
		opts.Named = a.named
		return o.template.Write(c.out, a.kind.Kind, a.objects, a.revision, opts)
	}
	if a.named {
		return table.Named(c.out, a.kind.Kind, a.objects, opts)
	}
	if len(a.objects) == 0 && (o.format == table.Table || o.format == table.Wide) {
		fmt.Fprintf(c.err, "No %s found.\n", a.kind.Plural) //nolint:errcheck // nowhere to report it
		return nil
	}
	return table.Objects(c.out, a.kind.Kind, a.objects, a.revision, opts)
}

// inheritedAS returns the AS number of nodes that have none.
func inheritedAS(ctx context.Context, store datastore.Store) string {
	o, err := store.Get(ctx, model.ResourceKey(model.KindBGPConfiguration, "default"))
	if err != nil {
		if !errors.Is(err, datastore.ErrNotFound) {
			return "?"
		}
		return strconv.Itoa(defaultAS)
	}
	if v, ok := o.Value.(*model.BGPConfiguration); ok && v.Spec.ASNumber != nil {
		return strconv.FormatUint(uint64(*v.Spec.ASNumber), 10)
	}
	return strconv.Itoa(defaultAS)
}

func completeKind(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return append(kindNames(), "peers", "policies", "hostobjects"), cobra.ShellCompDirectiveNoFileComp
}
