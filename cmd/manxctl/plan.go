package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/manxnet/manx/bgp"
	"github.com/manxnet/manx/cmd/manxctl/fleet"
	"github.com/manxnet/manx/dataplane/policy"
	"github.com/manxnet/manx/datastore/manifest"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/datastore/table"
	"github.com/manxnet/manx/plan"
)

// planText is plan's format for people.
const planText table.Format = "text"

// planOptions are the flags of plan.
type planOptions struct {
	settings  plan.Settings
	files     files
	against   []string
	namespace string
	output    string
	allNodes  bool
}

// liveState is the word of --against for the datastore.
const liveState = "cluster"

func (c *cli) planCommand() *cobra.Command {
	var o planOptions
	cmd := &cobra.Command{
		Use:   "plan --node NODE|--all-nodes -f FILE|DIR [-f ...] [--against FILE|DIR|cluster]",
		Short: "Compute the BGP and policy of a node from files, or the effect of a change of files",
		Long: `Compute from files the sessions that a node would have, the prefixes that it would originate, and those that it would
send to each peer, without daemon and datastore. manxd decides with the same code.

Files contain YAML or JSON: resources of Calico, also as Kubernetes stores them, Nodes, Services, EndpointSlices and
Secrets of Kubernetes, and BlockAffinity objects; a node originates only blocks with an affinity. The order of files and
of documents does not matter. Invalid objects are skipped and reported on standard error.

With --against only the difference is shown: --against is the state now, -f the state then. "+" is only then, "-" is
only now, "~" changes; each changed session shows whether it is reset. The difference includes the node's packet filter:
the policies of its endpoints in order, the rules of those policies, and the members of their selectors.

With --against cluster the state now is the datastore, which is read once, and the state then is the datastore after
"apply" of the files of -f: objects that they lack stay. Passwords are not read. A folder of that name is ./cluster.

With --all-nodes the difference is a line for each node that changes: sessions that are reset, routes that are
withdrawn, policies that change; and the totals. -o json has all names.

Exit codes: 0 no error and no difference; 1 error; 2 usage; 3 with --against: there are differences.`,
		Example: `  manxctl plan --node node-1 -f cluster/
  manxctl plan --node node-1 -f nodes.yaml -f peers.yaml -o json
  manxctl plan --node node-1 -f new/ --against current/
  manxctl plan --all-nodes -f new/ --against cluster
  kubectl get bgppeers,nodes,blockaffinities -o yaml | manxctl plan --node node-1 -f -`,
		Args: filesOnly,
		RunE: func(cmd *cobra.Command, _ []string) error { return c.plan(cmd.Context(), o) },
	}
	o.files.add(cmd)
	f := cmd.Flags()
	f.StringVar(&o.settings.Node, "node", "", "name of the node")
	_ = cmd.RegisterFlagCompletionFunc("node", c.completeNode)
	f.BoolVar(&o.allNodes, "all-nodes", false, "with --against: a summary of all nodes")
	f.StringSliceVar(&o.against, "against", nil, "file or folder with the state now, or \"cluster\" for the "+
		"datastore; shows only how -f, the state then, differs from it")
	f.StringVar(&o.settings.RouterID, "router-id", c.env("CALICO_ROUTER_ID"),
		"router ID: an IPv4 address or \"hash\" (CALICO_ROUTER_ID; default the node's IPv4 address)")
	f.StringVar(&o.settings.InterfacePrefix, "interface-prefix", c.env("FELIX_INTERFACEPREFIX"),
		"prefix of workloads' interfaces, instead of FelixConfiguration's (FELIX_INTERFACEPREFIX)")
	f.StringVar(&o.settings.ClusterIPs, "advertise-cluster-ips", c.env("CALICO_ADVERTISE_CLUSTER_IPS"),
		"CIDRs of cluster IPs instead of BGPConfiguration's (CALICO_ADVERTISE_CLUSTER_IPS)")
	f.StringVar(&o.namespace, "namespace", cmp.Or(c.env("NAMESPACE"), "kube-system"),
		"namespace of the Secrets with passwords (NAMESPACE)")
	outputFlag(cmd, &o.output, planText, table.JSON, table.YAML)
	return cmd
}

func (c *cli) plan(ctx context.Context, o planOptions) error {
	format, err := table.ParseFormat(cmp.Or(o.output, string(planText)), planText, table.JSON, table.YAML)
	switch {
	case err != nil:
		return usagef("%v", err)
	case o.allNodes && o.settings.Node != "":
		return usagef("use either --node or --all-nodes")
	case o.allNodes && len(o.against) == 0:
		return usagef("plan --all-nodes is about a change: name the state now with --against FILE or --against cluster")
	case o.settings.Node == "" && !o.allNodes:
		return usagef("plan needs --node NODE, or --all-nodes with --against")
	case slices.Contains(o.against, liveState) && len(o.against) > 1:
		return usagef("--against %s is the whole state now: leave out the other --against", liveState)
	case len(o.files.paths) == 0:
		return usagef("plan needs -f FILE, -f FOLDER or -f -")
	case slices.Contains(o.files.paths, "-") && slices.Contains(o.against, "-"):
		return usagef("standard input (-) can be either -f or --against")
	}
	then, err := c.readState(o.files.paths, o)
	if err != nil {
		return err
	}
	if len(o.against) > 0 {
		return c.planAgainst(ctx, then, o, format)
	}
	c.complain(then.Remarks)
	if err := knownNode(o.settings.Node, then); err != nil {
		return err
	}
	desired := then.Compute(o.settings)
	c.complain(plan.Notices(desired))
	c.complain(undoneOn(o.settings.Node, then))
	return c.show(plan.New(o.settings.Node, desired), format)
}

func (c *cli) planAgainst(ctx context.Context, then plan.State, o planOptions, format table.Format) error {
	now, then, err := c.nowAndThen(ctx, then, o)
	if err != nil {
		return err
	}
	if o.allNodes {
		return c.planAllNodes(now, then, o, format)
	}
	if err := knownNode(o.settings.Node, now, then); err != nil {
		return err
	}
	from, to := now.Compute(o.settings), then.Compute(o.settings)
	c.complainBoth(plan.Notices(from), plan.Notices(to))
	c.complainBoth(undoneOn(o.settings.Node, now), undoneOn(o.settings.Node, then))
	diff := plan.Compare(o.settings.Node, from, to)
	storedNow, remarksNow := now.AsStored()
	storedThen, remarksThen := then.AsStored()
	c.complainBoth(remarksNow, remarksThen)
	diff.ComparePolicy(storedNow, storedThen)
	if diff.Empty() && format == planText {
		return nil
	}
	if err := c.show(diff, format); err != nil || diff.Empty() {
		return err
	}
	return &exitErr{exitDifferent, ""}
}

// nowAndThen returns the state now, and the state then, which "then" is or, against the datastore, makes.
func (c *cli) nowAndThen(ctx context.Context, then plan.State, o planOptions) (plan.State, plan.State, error) {
	if o.against[0] != liveState {
		now, err := c.readState(o.against, o)
		c.complainBoth(now.Remarks, then.Remarks)
		return now, then, err
	}
	if _, err := os.Stat(liveState); err == nil {
		c.complain([]string{"Warning: --against cluster is the datastore; the file or folder of this name is " +
			"./cluster"})
	}
	store, err := c.open(ctx)
	if err != nil {
		return plan.State{}, plan.State{}, err
	}
	defer store.Close() //nolint:errcheck // nothing was written
	kinds := append(bgp.Kinds(), policy.Kinds...)
	slices.Sort(kinds)
	objects, err := c.readKinds(ctx, store, slices.Compact(kinds)...)
	if err != nil {
		return plan.State{}, plan.State{}, err
	}
	now, remarks := plan.Live(objects)
	applied, more := now.Applied(then)
	c.complain(slices.Concat(then.Remarks, remarks, more))
	return now, applied, nil
}

// planAllNodes prints the summary of all nodes.
func (c *cli) planAllNodes(now, then plan.State, o planOptions, format table.Format) error {
	summary := plan.Summarize(now, then, o.settings)
	if summary.Totals.Nodes == 0 {
		return errors.New("neither state has a node that can be used")
	}
	c.complain(summary.Notices)
	c.complainBoth(undoneAnywhere(now), undoneAnywhere(then))
	if err := c.show(summary, format); err != nil ||
		summary.Totals.NodesChanged == 0 && len(summary.Modes) == 0 {
		return err
	}
	return &exitErr{exitDifferent, ""}
}

func (c *cli) readState(paths []string, o planOptions) (plan.State, error) {
	var sources []manifest.Source
	var errs []error
	for _, p := range paths {
		s, e := manifest.Read(p, c.in, o.files.recursive)
		sources, errs = append(sources, s...), append(errs, e...)
	}
	if len(errs) > 0 {
		return plan.State{}, c.report(errs)
	}
	return plan.Read(sources, o.namespace), nil
}

// knownNode refuses a node that is in none of the states.
func knownNode(name string, states ...plan.State) error {
	var known []string
	for _, s := range states {
		known = append(known, s.Nodes()...)
		if s.Objects.Get(model.ResourceKey(model.KindNode, name)) != nil {
			return nil
		}
	}
	if len(known) == 0 {
		return fmt.Errorf("node %q is not in the files or the datastore: they hold no node that can be used", name)
	}
	slices.Sort(known)
	return fmt.Errorf("node %q is not in the files or the datastore; the nodes are: %s", name,
		strings.Join(slices.Compact(known), ", "))
}

// show prints a plan or a difference.
func (c *cli) show(v interface{ WriteText(io.Writer) error }, format table.Format) error {
	if format == planText {
		return v.WriteText(fleet.Clean(c.out))
	}
	return table.Value(c.out, format, v)
}

// complain prints lines on standard error. They may have texts of others, such as names from the datastore.
func (c *cli) complain(lines []string) {
	for _, l := range lines {
		fmt.Fprintln(c.err, table.OneLine(l)) //nolint:errcheck // nowhere to report it
	}
}

// complainBoth prints the remarks of two states, once if they are equal.
func (c *cli) complainBoth(now, then []string) {
	for _, l := range now {
		if !slices.Contains(then, l) {
			c.complain([]string{"now: " + l})
		}
	}
	for _, l := range then {
		if !slices.Contains(now, l) {
			l = "then: " + l
		}
		c.complain([]string{l})
	}
}
