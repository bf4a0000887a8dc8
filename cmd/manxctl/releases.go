package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/manxnet/manx/datastore/table"
	manxv1 "github.com/manxnet/manx/proto/manx/v1"
)

func (c *cli) ipamCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "ipam",
		Short: "Show, check, repair, release and configure the addresses of IP address management",
		Args:  onlyCommands,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(c.releasesCommand(), c.ipamShowCommand(), c.ipamCheckCommand(), c.ipamRepairCommand(),
		c.ipamReleaseCommand(), c.ipamSplitCommand(), c.ipamConfigureCommand(), c.ipamUpgradeCommand())
	return cmd
}

func (c *cli) releasesCommand() *cobra.Command {
	var output string
	var noHeaders bool
	cmd := &cobra.Command{
		Use:   "releases",
		Short: "Show the addresses and blocks that the garbage collection released, with the reasons",
		Long: `Show which addresses and blocks the garbage collection of IPAM released, and why, oldest first.

The node or the pod that runs the controllers of the cluster does that. It remembers the last 100 releases since its
manxd started; its log has all. Elsewhere the command names the leader.

Exit codes: 0 the list, also an empty one, and on a node that does not lead; 1 error, also when manxd takes no part in
the controllers (--controllers); 2 usage.`,
		Example: "  manxctl ipam releases\n  manxctl ipam releases -o json",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			format, err := table.ParseFormat(output, table.Table, table.JSON, table.YAML)
			if err != nil {
				return usagef("%v", err)
			}
			return c.releases(cmd.Context(), format, !noHeaders)
		},
	}
	outputFlag(cmd, &output, table.Table, table.JSON, table.YAML)
	cmd.Flags().BoolVar(&noHeaders, "no-headers", false, "table without the heading")
	return cmd
}

const noControllers = "manxd on this node takes no part in the controllers of the cluster: --controllers is off, or " +
	"auto without a Kubernetes API"

func (c *cli) releases(ctx context.Context, format table.Format, heading bool) error {
	var answer *manxv1.ListReleasesResponse
	err := c.call(ctx, daemonTimeout, func(ctx context.Context, conn grpc.ClientConnInterface) (err error) {
		answer, err = manxv1.NewControllersClient(conn).ListReleases(ctx, &manxv1.ListReleasesRequest{})
		if status.Code(err) == codes.Unimplemented {
			return &exitErr{exitError, noControllers + ". Run the command on another node, or where the controllers " +
				"run: kubectl -n kube-system exec deployment/manx-controllers -- /manxctl ipam releases"}
		}
		return err
	})
	if err != nil {
		return err
	}
	if format != table.Table {
		return c.printStructured(format, answer)
	}
	if len(answer.GetReleases()) > 0 {
		if err := releaseGrid(answer).Write(c.out, heading); err != nil {
			return err
		}
	}
	_, err = io.WriteString(c.err, whoReleases(answer, time.Now()))
	return err
}

func releaseGrid(r *manxv1.ListReleasesResponse) *table.Grid {
	g := &table.Grid{Heading: []string{"RELEASED", "ADDRESS", "NODE", "HANDLE", "REASON"}}
	for _, x := range r.GetReleases() {
		handle := x.GetHandle()
		if handle == "" {
			handle = "-" // of a block
		}
		g.Add(time.UnixMilli(x.GetAtUnixMs()).UTC().Format(time.RFC3339), x.GetAddress(), x.GetNode(), handle,
			x.GetText())
	}
	return g
}

// whoReleases returns the text that accompanies the list.
func whoReleases(r *manxv1.ListReleasesResponse, now time.Time) string {
	none := len(r.GetReleases()) == 0
	switch {
	case r.GetLeading() && r.GetProblem() != "":
		return fmt.Sprintf("Nothing is released now: %s.\n", r.GetProblem())
	case r.GetLeading() && none:
		return fmt.Sprintf("Node %s runs the controllers of the cluster for %s and released nothing so far.\n",
			r.GetNode(),
			ago(r.GetSinceUnixMs(), now))
	case r.GetLeading():
		return ""
	}
	text := fmt.Sprintf("Node %s does not run the controllers of the cluster", r.GetNode())
	switch {
	case r.GetProblem() != "":
		text += "; " + r.GetProblem()
	case r.GetLeader() == "":
		text += ", and no other node does now"
	default:
		text += fmt.Sprintf(", node %s does: run the command there, or with --server", r.GetLeader())
	}
	if !none {
		text += fmt.Sprintf(". The list is of the time when node %s did", r.GetNode())
	}
	return text + ".\n"
}
