package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/manxnet/manx/datastore/table"
	manxv1 "github.com/manxnet/manx/proto/manx/v1"
)

func (c *cli) resetCommand() *cobra.Command {
	var kinds [4]bool
	words := [4]string{"soft", "soft-in", "soft-out", "hard"}
	cmd := &cobra.Command{
		Use:   "reset peer PEER (--soft | --soft-in | --soft-out | --hard)",
		Short: "Reset a BGP session of the node",
		Long: `Reset a BGP session of the node. PEER is its address, or the name of a BGPPeer with one session.

  --soft-in   evaluates the routes that the peer has sent again, with the current filters, without a route
              refresh. Traffic moves only where the filters decide otherwise than before.
  --soft-out  sends all routes to the peer again, and withdraws those that the filters now reject. Traffic
              continues, since a route that is sent again replaces itself.
  --soft      does both.
  --hard      ends the session with a NOTIFICATION (Cease, administrative reset, RFC 4486) and connects again,
              which takes seconds. Meanwhile the peer drops the routes of this node, and this node those of the
              peer: traffic without another path is lost.

Only an established session can be reset; manxd connects the others again by itself. A soft reset evaluates all
routes: a session may have six in a row, and then one in 10 s; all together twenty, and then one in 2 s.`,
		Example:           "  manxctl reset peer 10.0.1.1 --soft-in\n  manxctl reset peer tor-1 --hard",
		ValidArgsFunction: c.completePeers,
		RunE: func(cmd *cobra.Command, args []string) error {
			names, err := peerNames(cmd, args)
			if err != nil {
				return err
			}
			if len(names) != 1 {
				return usagef("%s wants one peer", cmd.CommandPath())
			}
			kind := ""
			for i, on := range kinds {
				if on && kind != "" {
					return usagef("use one of --soft, --soft-in, --soft-out and --hard")
				}
				if on {
					kind = words[i]
				}
			}
			if kind == "" {
				return usagef("choose --soft, --soft-in, --soft-out or --hard (see --help for what each " +
					"does to traffic)")
			}
			return c.resetPeer(cmd.Context(), names[0], kind)
		},
	}
	for i, usage := range []string{"as --soft-in and --soft-out", "evaluate the routes of the peer again",
		"send the peer all routes again",
		"end the session and set it up again: traffic without another path is lost meanwhile"} {
		cmd.Flags().BoolVar(&kinds[i], words[i], false, usage)
	}
	return cmd
}

// resetTime bounds a reset: with a full table it takes seconds.
const resetTime = 2 * time.Minute

func (c *cli) resetPeer(ctx context.Context, peer, kind string) error {
	return c.daemonFor(ctx, resetTime, func(ctx context.Context, m manxv1.ManxClient) error {
		r, err := m.ResetPeer(ctx, &manxv1.ResetPeerRequest{Peer: peer, Kind: kind})
		if err != nil {
			return err
		}
		return c.printf("peer/%s reset (%s)", r.GetPeer(), kind)
	})
}

func (c *cli) clearCommand() *cobra.Command {
	var all bool
	cmd := &cobra.Command{
		Use:   "clear peer (PEER... | --all)",
		Short: "Reset flaps and counters of BGP sessions to zero",
		Long: `Reset flaps, graceful restarts, counters of messages and counts of BFD of sessions to zero, and remove the last
error of a session that is up. PEER is the address of a session, or the name of a BGPPeer with one session. Sessions,
routes and traffic do not change. The metrics of the session begin at zero, as after a restart; the sums by type
continue.`,
		Example:           "  manxctl clear peer 10.0.1.1\n  manxctl clear peers --all",
		ValidArgsFunction: c.completePeers,
		RunE: func(cmd *cobra.Command, args []string) error {
			names, err := peerNames(cmd, args)
			switch {
			case err != nil:
				return err
			case all && len(names) > 0:
				return usagef("use either names or --all")
			case !all && len(names) == 0:
				return usagef("%s wants peers, or --all", cmd.CommandPath())
			}
			return c.clearPeers(cmd.Context(), names)
		},
	}
	cmd.Flags().BoolVar(&all, "all", false, "all sessions of the node")
	return cmd
}

// clearPeers clears the counters of these sessions, of all if there are no names.
func (c *cli) clearPeers(ctx context.Context, names []string) error {
	return c.daemon(ctx, func(ctx context.Context, m manxv1.ManxClient) error {
		if len(names) == 0 {
			list, err := m.ListPeers(ctx, &manxv1.ListPeersRequest{})
			if err != nil {
				return err
			}
			names = addresses(list.GetPeers())
		}
		for _, name := range names {
			r, err := m.ClearPeer(ctx, &manxv1.ClearPeerRequest{Peer: name})
			if err != nil {
				return err
			}
			if err := c.printf("peer/%s cleared (flaps: %d, graceful restarts: %d)", r.GetPeer(), r.GetFlaps(),
				r.GetRestarts()); err != nil {
				return err
			}
		}
		return nil
	})
}

// peerNames parses "peer NAME..." or "peer/NAME...".
func peerNames(cmd *cobra.Command, args []string) ([]string, error) {
	if len(args) > 0 && isPeers(args[0]) {
		return args[1:], nil
	}
	var names []string
	for _, a := range args {
		kind, name, ok := strings.Cut(a, "/")
		if !ok || !isPeers(kind) || name == "" {
			return nil, usagef("%q: %s is for peers: want peer NAME or peer/NAME", a, cmd.CommandPath())
		}
		names = append(names, name)
	}
	if len(names) == 0 {
		return nil, usagef("%s wants \"peer\" and a name", cmd.CommandPath())
	}
	return names, nil
}

// completionTime bounds the shell's wait for completions.
const completionTime = 2 * time.Second

// completePeers completes the word "peer", and then the sessions of the daemon.
func (c *cli) completePeers(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) == 0 {
		return []string{"peer"}, cobra.ShellCompDirectiveNoFileComp
	}
	var list *manxv1.ListPeersResponse
	err := c.daemonFor(cmd.Context(), completionTime, func(ctx context.Context, m manxv1.ManxClient) (err error) {
		list, err = m.ListPeers(ctx, &manxv1.ListPeersRequest{})
		return err
	})
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var offers []string
	for _, p := range list.GetPeers() {
		offers = append(offers, p.GetAddress()+"\t"+p.GetType()+", "+p.GetPhase())
	}
	return offers, cobra.ShellCompDirectiveNoFileComp
}

// retryTime bounds the daemon's retry of everything.
const retryTime = time.Minute

func (c *cli) retryCommand() *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "retry",
		Short: "Repeat failed attempts now",
		Long: `Repeat failed attempts now instead of at their next time: routes, settings of interfaces, limits of
bandwidth, endpoints and rules of policy that the kernel refused. manxd also reads quarantined objects of the datastore
again. Objects without an error do not change. The exit code is 4 if an attempt still fails; manxd repeats it by
itself.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			format, err := table.ParseFormat(output, table.Table, table.JSON, table.YAML)
			if err != nil {
				return usagef("%v", err)
			}
			return c.retry(cmd.Context(), format)
		},
	}
	outputFlag(cmd, &output, table.Table, table.JSON, table.YAML)
	return cmd
}

func (c *cli) retry(ctx context.Context, format table.Format) error {
	var answer *manxv1.RetryResponse
	err := c.daemonFor(ctx, retryTime, func(ctx context.Context, m manxv1.ManxClient) (err error) {
		answer, err = m.Retry(ctx, &manxv1.RetryRequest{})
		return err
	})
	if err != nil {
		return err
	}
	if format != table.Table {
		err = c.printStructured(format, answer)
	} else {
		g := &table.Grid{Heading: []string{"PART", "FAILED", "STILL", "REASON"}}
		for _, p := range answer.GetParts() {
			g.Add(p.GetName(), utoa(p.GetFailed()), utoa(p.GetFailing()), p.GetReason())
		}
		err = g.Write(c.out, true)
	}
	for _, p := range answer.GetParts() {
		if err == nil && p.GetFailing() > 0 {
			return &exitErr{exitUnhealthy, ""}
		}
	}
	return err
}

// requestDrain requests the drain of the daemon's node; name, if any, must be its name.
func (c *cli) requestDrain(ctx context.Context, name string, timeout time.Duration, wait bool) error {
	var before string
	err := c.daemon(ctx, func(ctx context.Context, m manxv1.ManxClient) error {
		ms := timeout.Milliseconds()
		r, err := m.Drain(ctx, &manxv1.DrainRequest{Node: name, TimeoutMs: &ms})
		before = r.GetBefore()
		return err
	})
	switch {
	case err != nil:
		return err
	case before == "drained":
		return c.printf("the node is drained already")
	case !wait:
		return c.printf("the node is to be drained")
	}
	return c.awaitDrain(ctx, "withdrawn", timeout+answerMargin, map[string]string{
		"draining":  "its routes are the last choice; waiting for traffic to leave",
		"withdrawn": "drained: its routes are withdrawn"})
}

// requestUndrain requests the return of the daemon's node; name, if any, must be its name.
func (c *cli) requestUndrain(ctx context.Context, name string, wait bool) error {
	var before string
	err := c.daemon(ctx, func(ctx context.Context, m manxv1.ManxClient) error {
		r, err := m.Undrain(ctx, &manxv1.UndrainRequest{Node: name})
		before = r.GetBefore()
		return err
	})
	switch {
	case err != nil:
		return err
	case before == "":
		return c.printf("the node is in service already")
	case !wait:
		return c.printf("the node is to come back")
	}
	return c.awaitDrain(ctx, "", answerMargin,
		map[string]string{"draining": "its routes are back as the last choice", "": "in service"})
}

// awaitDrain waits until the status of the daemon has the given drain phase, and prints the phases on the way.
func (c *cli) awaitDrain(ctx context.Context, want string, patience time.Duration, words map[string]string) error {
	printed := ""
	for end := time.Now().Add(patience); ; time.Sleep(drainPoll) {
		var s *manxv1.GetStatusResponse
		err := c.daemon(ctx, func(ctx context.Context, m manxv1.ManxClient) (err error) {
			s, err = m.GetStatus(ctx, &manxv1.GetStatusRequest{})
			return err
		})
		if err != nil {
			return err
		}
		if text := words[s.GetDrain()]; text != "" && text != printed {
			printed = text
			if err := c.printf("node %s: %s", s.GetNode(), text); err != nil {
				return err
			}
		}
		if s.GetDrain() == want {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("node %s did not get there within %s. The request stays in the datastore", s.GetNode(),
				patience)
		}
	}
}

// drainPoll is the interval between queries of a drain.
const drainPoll = 500 * time.Millisecond
