package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/model"
)

// answerMargin is how long after the drain's own timeout the daemon may take to answer.
const answerMargin = 30 * time.Second

func (c *cli) nodeDrainCommand() *cobra.Command {
	var timeout time.Duration
	var noWait bool
	cmd := &cobra.Command{
		Use:   "drain NODE",
		Short: "Take a node out of the network's paths before maintenance",
		Long: "Take a node out of the network's paths before maintenance.\n\n" +
			"Its routes are first announced as the last choice: with the community GRACEFUL_SHUTDOWN (65535:0, RFC 8326) and LOCAL_PREF 0.\n" +
			"When next to no packets go to its workloads any more, or the timeout is over, they are withdrawn. BGP sessions stay up, and\n" +
			"the node goes on sending. The state is kept in the annotations " + model.AnnotationDrain + " and " + model.AnnotationDrained + "\n" +
			"of the Node, so it survives restarts. Workloads are not moved: evict them before, for instance with kubectl drain.",
		Example: "  manxctl node drain node-1\n  manxctl node drain node-1 --timeout 5m --no-wait",
		Args:    exactlyOneNode,
		RunE: func(cmd *cobra.Command, args []string) error {
			if timeout < 0 {
				return usagef("--timeout %s: want 0s or more", timeout)
			}
			return c.drain(cmd.Context(), args[0], timeout, !noWait)
		},
	}
	cmd.Flags().DurationVar(&timeout, "timeout", model.DefaultDrainTimeout, "withdraw the routes after this time, whatever traffic is left")
	cmd.Flags().BoolVar(&noWait, "no-wait", false, "do not wait until the routes are withdrawn")
	return cmd
}

func (c *cli) nodeUndrainCommand() *cobra.Command {
	var noWait bool
	cmd := &cobra.Command{
		Use:   "undrain NODE",
		Short: "Bring a drained node back",
		Long:  "Bring a drained node back: its routes are announced as the last choice first and, some seconds later, as before the drain.",
		Args:  exactlyOneNode,
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.undrain(cmd.Context(), args[0], !noWait)
		},
	}
	cmd.Flags().BoolVar(&noWait, "no-wait", false, "do not wait until the node is in service again")
	return cmd
}

func exactlyOneNode(cmd *cobra.Command, args []string) error {
	if len(args) != 1 {
		return usagef("%s wants the name of one node", cmd.CommandPath())
	}
	return nil
}

func (c *cli) drain(ctx context.Context, name string, timeout time.Duration, wait bool) error {
	store, err := c.open(ctx)
	if err != nil {
		return err
	}
	defer store.Close()
	before, err := annotateNode(ctx, store, name, func(annotations map[string]string) {
		if _, ordered := annotations[model.AnnotationDrain]; !ordered {
			annotations[model.AnnotationDrain] = time.Now().UTC().Format(time.RFC3339)
		}
		annotations[model.AnnotationDrainTimeout] = timeout.String()
	})
	if err != nil {
		return err
	}
	if before == model.Drained {
		return c.say("node %s is drained already", name)
	}
	if !wait {
		return c.say("node %s is to be drained", name)
	}
	return c.followDrain(ctx, store, name, model.Drained, timeout+answerMargin)
}

func (c *cli) undrain(ctx context.Context, name string, wait bool) error {
	store, err := c.open(ctx)
	if err != nil {
		return err
	}
	defer store.Close()
	before, err := annotateNode(ctx, store, name, func(annotations map[string]string) {
		delete(annotations, model.AnnotationDrain)
		delete(annotations, model.AnnotationDrainTimeout)
	})
	if err != nil {
		return err
	}
	if before == model.InService {
		return c.say("node %s is in service already", name)
	}
	if !wait {
		return c.say("node %s is to come back", name)
	}
	return c.followDrain(ctx, store, name, model.InService, answerMargin)
}

func (c *cli) say(format string, args ...any) error {
	_, err := fmt.Fprintf(c.out, format+"\n", args...)
	return err
}

// annotateNode changes the annotations of a Node, whoever else writes it meanwhile, and returns its phase before.
func annotateNode(ctx context.Context, store datastore.Store, name string, change func(map[string]string)) (model.DrainPhase, error) {
	for {
		o, err := store.Get(ctx, model.ResourceKey(model.KindNode, name))
		if err != nil {
			return "", err
		}
		n, ok := o.Value.(*model.Node)
		if !ok {
			return "", fmt.Errorf("node %s cannot be read: %w", name, o.Err)
		}
		before := n.DrainPhase()
		if n.Annotations == nil {
			n.Annotations = map[string]string{}
		}
		change(n.Annotations)
		if _, err = store.Update(ctx, o); !errors.Is(err, datastore.ErrConflict) {
			return before, err
		}
	}
}

// followDrain waits until the node's daemon has brought it into a phase, and tells of the steps.
func (c *cli) followDrain(ctx context.Context, store datastore.Store, name string, want model.DrainPhase, patience time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	words := map[model.DrainPhase]string{
		model.Draining:  "its routes are the last choice; waiting for traffic to leave",
		model.Drained:   "drained: its routes are withdrawn",
		model.Returning: "its routes are back as the last choice",
		model.InService: "in service",
	}
	told := model.DrainPhase("none yet")
	for e := range store.Watch(ctx, model.KindNode) {
		if e.Object == nil || e.Key.Name != name {
			continue
		}
		n, ok := e.Object.Value.(*model.Node)
		if !ok {
			continue
		}
		phase := n.DrainPhase()
		if phase != told {
			told = phase
			if err := c.say("node %s: %s", name, words[phase]); err != nil {
				return err
			}
		}
		if phase == want {
			return nil
		}
	}
	if ctx.Err() == context.DeadlineExceeded {
		return fmt.Errorf("node %s did not get there within %s: is manxd running on it? The order stands, and is acted upon when it runs", name, patience)
	}
	return ctx.Err()
}
