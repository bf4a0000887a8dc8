package main

import (
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"github.com/manxnet/manx/cmd/manxctl/fleet"
)

// explainOnNode has the node of an end explain a connection: that of the source, whose routes and rules the packets
// meet first, or else that of the destination.
func explainOnNode(r nodesRun, cmd *cobra.Command, args []string) error {
	if r.flags.node == "" {
		node, err := r.nodeOfEnds(cmd, args[:2])
		if err != nil {
			return err
		}
		r.flags.node = node
		fmt.Fprintf(r.errs, "On node %s:\n", node) //nolint:errcheck // nowhere to report it
	}
	return passOn(r, cmd, args)
}

func (r nodesRun) nodeOfEnds(cmd *cobra.Command, ends []string) (string, error) {
	nodes, err := r.cluster.Nodes(cmd.Context(), "")
	if err != nil {
		return "", err
	}
	for _, end := range ends {
		name, err := r.cluster.NodeOf(cmd.Context(), end)
		if err != nil {
			return "", fmt.Errorf("the node of %s: %w: name the node that explains with --node", end, err)
		}
		if slices.ContainsFunc(nodes, func(n fleet.Node) bool { return n.Name == name }) {
			return name, nil
		}
	}
	return "", usagef("neither %s nor %s is a pod of a node with Manx, or such a node: name the node that explains "+
		"with --node", ends[0], ends[1])
}
