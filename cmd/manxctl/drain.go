package main

import (
	"context"
	"fmt"
	"iter"
	"time"

	"github.com/spf13/cobra"

	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/datastore/node"
)

// answerMargin is the time after the drain's own timeout in which the daemon must answer.
const answerMargin = 30 * time.Second

func (c *cli) nodeDrainCommand() *cobra.Command {
	var timeout time.Duration
	var noWait bool
	var peers []string
	cmd := &cobra.Command{
		Use:   "drain [NODE]",
		Short: "Move traffic away from a node, or from one of its BGP peers, before maintenance",
		Long: "Move traffic away from a node, or from one of its BGP peers, before maintenance.\n\n" +
			"The node first announces its routes as the last choice: with the community GRACEFUL_SHUTDOWN (65535:0, " +
			"RFC 8326)\n" +
			"and LOCAL_PREF 0. It withdraws them when almost no packets go to its workloads any more, or after the " +
			"timeout.\n" +
			"BGP sessions stay up, and the node can still send. The annotations " + model.AnnotationDrain + " and\n" +
			model.AnnotationDrained + " of the Node hold the state, so it survives restarts. Workloads are not " +
			"moved:\nevict them before, for instance with kubectl drain.\n\n" +
			"With --peer only the routes that are sent to this peer, and those that it sends, become the last " +
			"choice, so that an\nuplink or a router can be serviced. They are not withdrawn. The command returns " +
			"when other routers have had time to act.\n\n" +
			drainTargets,
		Example: "  manxctl node drain node-1\n  manxctl node drain node-1 --timeout 5m --no-wait\n  manxctl node " +
			"drain node-1 --peer tor-1\n  manxctl node drain --server node-1:9443 ...",
		Args:              c.oneNode,
		ValidArgsFunction: c.completeNode,
		RunE: func(cmd *cobra.Command, args []string) error {
			if timeout < 0 {
				return usagef("--timeout %s: want 0s or more", timeout)
			}
			if len(peers) > 0 {
				if cmd.Flags().Changed("timeout") {
					return usagef("--timeout does not go with --peer: the routes of a peer are not withdrawn")
				}
				return c.movePeers(cmd.Context(), args, peers, true, !noWait)
			}
			if name, daemon := c.nodeOfDaemon(args); daemon {
				return c.requestDrain(cmd.Context(), name, timeout, !noWait)
			}
			return c.drain(cmd.Context(), args[0], timeout, !noWait)
		},
	}
	cmd.Flags().DurationVar(&timeout, "timeout", model.DefaultDrainTimeout,
		"withdraw the routes after this time, also if traffic is left")
	cmd.Flags().BoolVar(&noWait, "no-wait", false, "do not wait until the routes are withdrawn, or the peer is drained")
	cmd.Flags().StringSliceVar(&peers, "peer", nil, "drain this BGP peer alone: an address, or the name of a BGPPeer")
	return cmd
}

func (c *cli) nodeUndrainCommand() *cobra.Command {
	var noWait bool
	var peers []string
	cmd := &cobra.Command{
		Use:   "undrain [NODE]",
		Short: "Bring a drained node or peer back",
		Long: "Bring a drained node back: it announces its routes as the last choice and, some seconds later, as " +
			"before the drain.\n\n" +
			"With --peer it brings this peer back, at once; the drain of the node goes on.\n\n" +
			drainTargets,
		Args:              c.oneNode,
		ValidArgsFunction: c.completeNode,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(peers) > 0 {
				return c.movePeers(cmd.Context(), args, peers, false, !noWait)
			}
			if name, daemon := c.nodeOfDaemon(args); daemon {
				return c.requestUndrain(cmd.Context(), name, !noWait)
			}
			return c.undrain(cmd.Context(), args[0], !noWait)
		},
	}
	cmd.Flags().BoolVar(&noWait, "no-wait", false, "do not wait until the node is in service again")
	cmd.Flags().StringSliceVar(&peers, "peer", nil,
		"bring this BGP peer back: an address, or the name of a BGPPeer")
	return cmd
}

// drainTargets is the end of the help of drain and undrain.
const drainTargets = "The request goes into the datastore, and NODE may be any. With --server it goes to that " +
	"daemon, for its own node, which NODE\n" +
	"has to be if it is given; with --socket and without NODE it goes to the local daemon. All end in the " +
	"same annotation."

// nodeOfDaemon reports whether a request goes to a daemon, and the required name of its node.
func (c *cli) nodeOfDaemon(args []string) (name string, daemon bool) {
	if len(args) == 0 {
		return "", true
	}
	remote, err := c.remote()
	return args[0], remote != nil || err != nil // the daemon's way reports the error
}

// oneNode requires a name, unless the command line selects a daemon.
func (c *cli) oneNode(cmd *cobra.Command, args []string) error {
	remote, err := c.remote()
	switch {
	case err != nil:
		return err
	case len(args) == 1, len(args) == 0 && (remote != nil || c.socketFlag.Changed):
		return nil
	}
	return usagef("%s wants the name of one node", cmd.CommandPath())
}

func (c *cli) drain(ctx context.Context, name string, timeout time.Duration, wait bool) error {
	store, err := c.open(ctx)
	if err != nil {
		return err
	}
	defer store.Close()
	if err := needsBGP(ctx, store, name); err != nil {
		return err
	}
	before, err := node.RequestDrain(ctx, store, name, timeout)
	if err != nil {
		return err
	}
	if before == model.Drained {
		return c.printf("node %s is drained already", name)
	}
	if !wait {
		return c.printf("node %s is to be drained", name)
	}
	return c.followDrain(ctx, store, name, model.Drained, timeout+answerMargin)
}

// needsBGP returns an error if the daemon of a node has noted that it speaks no BGP.
func needsBGP(ctx context.Context, store datastore.Store, name string) error {
	o, err := store.Get(ctx, model.ResourceKey(model.KindNode, name))
	if err != nil {
		return err
	}
	n, ok := o.Value.(*model.Node)
	if !ok || n.Annotations[model.AnnotationBGPOff] == "" {
		return nil
	}
	return fmt.Errorf("node %s: %s: a drain withdraws the routes that a node announces, and this one announces none",
		name, n.Annotations[model.AnnotationBGPOff])
}

func (c *cli) undrain(ctx context.Context, name string, wait bool) error {
	store, err := c.open(ctx)
	if err != nil {
		return err
	}
	defer store.Close()
	before, err := node.CancelDrain(ctx, store, name)
	if err != nil {
		return err
	}
	if before == model.InService {
		return c.printf("node %s is in service already", name)
	}
	if !wait {
		return c.printf("node %s is to come back", name)
	}
	return c.followDrain(ctx, store, name, model.InService, answerMargin)
}

func (c *cli) printf(format string, args ...any) error {
	_, err := fmt.Fprintf(c.out, format+"\n", args...)
	return err
}

// followDrain waits until the node's daemon has reached a phase, and prints the phases on the way.
func (c *cli) followDrain(
	ctx context.Context, store datastore.Store, name string, want model.DrainPhase, patience time.Duration,
) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	words := map[model.DrainPhase]string{
		model.Draining:  "its routes are the last choice; waiting for traffic to leave",
		model.Drained:   "drained: its routes are withdrawn",
		model.Returning: "its routes are back as the last choice",
		model.InService: "in service",
	}
	printed := model.DrainPhase("none yet")
	for n := range nodeVersions(ctx, store, name) {
		phase := n.DrainPhase()
		if phase != printed {
			printed = phase
			if err := c.printf("node %s: %s", name, words[phase]); err != nil {
				return err
			}
		}
		if phase == want {
			return nil
		}
	}
	if ctx.Err() == context.DeadlineExceeded {
		return fmt.Errorf("node %s did not get there within %s: does manxd run on it, with BGP? The request stays in "+
			"the datastore; manxd follows it when it runs", name, patience)
	}
	return ctx.Err()
}

// nodeVersions yields the present version of a Node and each later one, until ctx ends.
func nodeVersions(ctx context.Context, store datastore.Store, name string) iter.Seq[*model.Node] {
	return func(yield func(*model.Node) bool) {
		for e := range store.Watch(ctx, model.KindNode) {
			if e.Object == nil || e.Key.Name != name {
				continue
			}
			if n, ok := e.Object.Value.(*model.Node); ok && !yield(n) {
				return
			}
		}
	}
}
