package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/manxnet/manx/datastore/table"
	manxv1 "github.com/manxnet/manx/proto/manx/v1"
)

func (c *cli) historyCommand() *cobra.Command {
	var output string
	var noHeaders bool
	cmd := &cobra.Command{
		Use:   "history [peer PEER...]",
		Short: "Show the last changes of BGP sessions, with times and reasons",
		Long: `Show when BGP sessions came up and went down, and why, oldest first. PEER is the address of a session, or the name
of a BGPPeer; without one all sessions are shown, also those that are not configured any more.

AFTER is how long the session was in the phase before. ROUTES is what became of the peer's routes when the session
ended: "kept" for a graceful restart, or "withdrawn". While a session is down, another reason for that is a line, too.

manxd remembers at most 32 changes of a session and 4096 in all, since it started; its log has all. "clear peer" sets
FLAPS to zero and keeps the lines.

Exit codes: 0 shown, also for a session without changes; 1 error, such as an unknown peer; 2 usage.`,
		Example:           "  manxctl history\n  manxctl history peer tor-1\n  manxctl history peer 10.0.1.1 -o json",
		ValidArgsFunction: c.completePeers,
		RunE: func(cmd *cobra.Command, args []string) error {
			format, err := table.ParseFormat(output, table.Table, table.JSON, table.YAML)
			if err != nil {
				return usagef("%v", err)
			}
			names := []string{""}
			if len(args) > 0 {
				if names, err = peerNames(cmd, args); err != nil {
					return err
				}
				if len(names) == 0 {
					return usagef("%s peer: name a peer, or leave out \"peer\" for all", cmd.CommandPath())
				}
			}
			return c.history(cmd, names, format, !noHeaders)
		},
	}
	outputFlag(cmd, &output, table.Table, table.JSON, table.YAML)
	cmd.Flags().BoolVar(&noHeaders, "no-headers", false, "table without the heading")
	return cmd
}

func (c *cli) history(cmd *cobra.Command, names []string, format table.Format, heading bool) error {
	all := &manxv1.ListPeerTransitionsResponse{}
	err := c.daemon(cmd.Context(), func(ctx context.Context, m manxv1.ManxClient) error {
		for _, name := range names {
			answer, err := m.ListPeerTransitions(ctx, &manxv1.ListPeerTransitionsRequest{Peer: name})
			if err != nil {
				return err
			}
			all.Transitions = append(all.Transitions, answer.GetTransitions()...)
		}
		return nil
	})
	switch {
	case err != nil:
		return err
	case format != table.Table:
		return c.printStructured(format, all)
	case len(all.GetTransitions()) == 0:
		cmd.PrintErrln("No changes so far.")
		return nil
	}
	return historyGrid(all).Write(c.out, heading)
}

func historyGrid(r *manxv1.ListPeerTransitionsResponse) *table.Grid {
	g := &table.Grid{Heading: []string{"AT", "PEER", "FROM", "TO", "AFTER", "FLAPS", "ROUTES", "BFD", "REASON"}}
	for _, x := range r.GetTransitions() {
		g.Add(time.UnixMilli(x.GetAtUnixMs()).UTC().Format(time.RFC3339), x.GetAddress(), dash(x.GetFrom()), x.GetTo(),
			duration(time.Duration(x.GetLastedMs())*time.Millisecond), fmt.Sprint(x.GetFlaps()), dash(x.GetRoutes()),
			dash(x.GetBfd()), x.GetReason())
	}
	return g
}
