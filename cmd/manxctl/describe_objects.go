package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/manxnet/manx/cmd/manxctl/fleet"
	"github.com/manxnet/manx/dataplane/policy"
	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/datastore/table"
	"github.com/manxnet/manx/ipam"
)

// What describe shows from the datastore.
const (
	describedEndpoint = "endpoint"
	describedNode     = "node"
	describedPool     = "pool"
)

var describeFormats = []table.Format{table.Table, table.JSON, table.YAML}

// describedKind returns which of them a word is for; empty for none.
func describedKind(word string) string {
	switch strings.ToLower(word) {
	case describedEndpoint, "endpoints", "ep", "pod", "pods", "po", "workloadendpoint", "workloadendpoints", "wep",
		"weps":
		return describedEndpoint
	case describedNode, "nodes", "no":
		return describedNode
	case describedPool, "pools", "ippool", "ippools":
		return describedPool
	}
	return ""
}

// describeUsage is the rule of arguments of describe.
func describeUsage(cmd *cobra.Command, args []string) error {
	const want = "peer, bgppeer, endpoint, node, pool or a kind of policy"
	args = kindAndName(args)
	if len(args) == 0 {
		return usagef("name what to describe (%s) and its name, for instance \"manxctl describe endpoint shop/web\"",
			want)
	}
	word := strings.ToLower(args[0])
	_, isPolicy := policyKind(word)
	known := isPolicy || isPeers(word) || isBGPPeers(word) || describedKind(word) != ""
	_, notAddress := netip.ParseAddr(word)
	switch {
	case !known && notAddress == nil:
		return usagef("describe %s: want \"describe peer %s\" for a BGP session, or \"describe endpoint %s\" for the "+
			"pod that has the address", word, word, word)
	case !known:
		return usagef("describe %s: want %s", args[0], want)
	case describedKind(word) == "" && cmd.Flags().Changed("output"):
		return usagef("describe %s has text alone: --output is for endpoint, node and pool", args[0])
	case len(args) == 1:
		return usagef("describe %s: name the one to describe, for instance \"manxctl describe %s %s\"", args[0],
			args[0], describedExample(word))
	}
	return nil
}

func describedExample(word string) string {
	switch {
	case isPeers(word):
		return "10.0.1.1"
	case describedKind(word) == describedEndpoint:
		return "shop/web"
	}
	return "NAME"
}

func isBGPPeers(word string) bool {
	return slices.Contains([]string{"bgppeer", "bgppeers"}, strings.ToLower(word))
}

// kindAndName splits the form KIND/NAME, which "get" has, too.
func kindAndName(args []string) []string {
	if len(args) != 1 {
		return args
	}
	kind, name, ok := strings.Cut(args[0], "/")
	if !ok || name == "" {
		return args
	}
	return []string{kind, name}
}

// nodeStates asks the manxd of a node for its state. The answers are those of "status -o json" and "node endpoints -o
// json" there.
type nodeStates interface {
	status(ctx context.Context, node string) fleet.Answer
	endpoints(ctx context.Context, node string) fleet.Answer
}

// podReader reads what the Kubernetes API alone has about pods.
type podReader interface {
	Pod(ctx context.Context, namespace, name string) (*fleet.Pod, error)
	PodWarnings(ctx context.Context, namespace, name string) ([]string, error)
}

// describer prints objects of the datastore, and what a node knows about them.
type describer struct {
	out     io.Writer
	format  table.Format // table: text
	objects model.Set
	usage   []ipam.PoolUsage
	config  model.IPAMConfig
	states  nodeStates
	pods    podReader // nil without the Kubernetes API
	silent  bool      // a node did not answer
}

// describedKinds are the kinds of objects that a description needs.
var describedKinds = map[string][]model.Kind{
	describedEndpoint: append(slices.Clone(policy.Kinds), model.KindIPAMBlock),
	describedNode:     {model.KindNode, model.KindIPPool, model.KindIPAMBlock, model.KindWorkloadEndpoint},
	describedPool:     {model.KindNode, model.KindIPPool},
}

// describeObjects prints endpoints, nodes or pools. The exit code is 4 if a node of a cluster does not answer.
func (c *cli) describeObjects(ctx context.Context, d *describer, kind, namespace string, names []string) error {
	store, err := c.open(ctx)
	if err != nil {
		return err
	}
	defer store.Close() //nolint:errcheck // nothing was written
	if err := c.readFor(ctx, d, store, kind); err != nil {
		return fmt.Errorf("%w (with --node NODE this is read with the rights of manxd there)", err)
	}
	var list []description
	for _, name := range names {
		var x description
		switch kind {
		case describedEndpoint:
			x, err = d.endpoint(ctx, namespace, name)
		case describedNode:
			x, err = d.node(ctx, name)
		case describedPool:
			x, err = d.pool(name)
		}
		if err != nil {
			return errors.Join(d.print(c, kind, list), err)
		}
		list = append(list, x)
	}
	if err := d.print(c, kind, list); err != nil {
		return err
	}
	if d.silent && d.pods != nil {
		return &exitErr{exitUnhealthy, ""}
	}
	return nil
}

// description is one object with all that describe shows about it. Its exported fields are the output of -o json, and
// write prints the same as text.
type description interface{ write(s *sections) error }

// print prints descriptions as text, or as an object with one list.
func (d *describer) print(c *cli, kind string, list []description) error {
	if len(list) == 0 {
		return nil
	}
	var b bytes.Buffer
	if d.format != table.Table {
		if err := table.Value(&b, d.format, map[string][]description{kind + "s": list}); err != nil {
			return err
		}
	} else {
		for i, x := range list {
			var s sections
			if err := x.write(&s); err != nil {
				return err
			}
			b.WriteString(when(i > 0, "\n") + s.String())
		}
	}
	_, err := io.WriteString(d.out, c.named(b.String()))
	return err
}

func (c *cli) readFor(ctx context.Context, d *describer, store datastore.Store, kind string) (err error) {
	if d.objects, err = c.readKinds(ctx, store, describedKinds[kind]...); err != nil {
		return err
	}
	a := ipam.New(store, nil, nil)
	if d.usage, err = a.Utilization(ctx); err != nil {
		return err
	}
	d.config, err = a.Config(ctx)
	return err
}

// describeOnNodes describes objects of the cluster's datastore with the rights of the user, and asks the node that they
// are about. With --node all of it is read there.
func describeOnNodes(r nodesRun, cmd *cobra.Command, args []string) error {
	args = kindAndName(args)
	kind := describedKind(args[0])
	switch {
	case kind == "" || r.flags.node != "":
		return passOn(r, cmd, args)
	case r.flags.all:
		return usagef("describe %s reads the datastore once: leave out --all-nodes", args[0])
	}
	word, _ := cmd.Flags().GetString("output")
	format, err := table.ParseFormat(word, describeFormats...)
	if err != nil {
		return usagef("%v", err)
	}
	namespace := r.namespace
	if f := cmd.Flags().Lookup("namespace"); f.Changed {
		namespace = f.Value.String()
	}
	return r.describeObjects(cmd.Context(), &describer{out: r.out, format: format, states: statesOfNodes{r},
		pods: r.cluster}, kind, namespace, args[1:])
}

// statesOfNodes asks nodes of a cluster.
type statesOfNodes struct{ nodesRun }

func (s statesOfNodes) ask(ctx context.Context, node string, words ...string) fleet.Answer {
	nodes, err := s.cluster.Nodes(ctx, node)
	if err != nil {
		return fleet.Answer{Node: fleet.Node{Name: node}, Err: err}
	}
	answers, err := s.cluster.RunOn(ctx, nodes, s.flags.timeout, mostBytes, words...)
	if err != nil {
		return fleet.Answer{Node: fleet.Node{Name: node}, Err: err}
	}
	return answers[0]
}

func (s statesOfNodes) status(ctx context.Context, node string) fleet.Answer {
	return s.ask(ctx, node, "status", "--output=json")
}

func (s statesOfNodes) endpoints(ctx context.Context, node string) fleet.Answer {
	return s.ask(ctx, node, "node", "endpoints", "--output=json")
}

// sinceText returns the time of an object's creation, for "since when".
func sinceText(o *model.Object) string {
	if o == nil || o.Metadata() == nil {
		return ""
	}
	t := o.Metadata().GetCreationTimestamp()
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(time.RFC3339)
}

// selectorText is a selector for people.
func selectorText(selector string) string { return cmp.Or(selector, "all()") }
