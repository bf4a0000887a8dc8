package main

import (
	"context"
	"fmt"
	"io"
	"net/netip"
	"time"

	"github.com/spf13/cobra"

	"github.com/manxnet/manx/datastore/table"
	manxv1 "github.com/manxnet/manx/proto/manx/v1"
)

func (c *cli) nodeCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "node",
		Short: "Show the local node; drain a node",
		Args:  onlyCommands,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	for _, sub := range []*cobra.Command{c.nodeStatusCommand(), c.nodeAddressesCommand(), c.nodeProblemsCommand(),
		c.nodeEndpointsCommand()} {
		cmd.AddCommand(c.onNodes(sub, namedNodes, passOn))
	}
	cmd.AddCommand(c.nodeDrainCommand(), c.nodeUndrainCommand(), c.nodeDiagsCommand())
	return cmd
}

func (c *cli) nodeStatusCommand() *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show the BGP sessions of this node with the reasons of their states",
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			format, err := table.ParseFormat(output, table.Table, table.Wide, table.JSON, table.YAML)
			if err != nil {
				return usagef("%v", err)
			}
			var status *manxv1.GetStatusResponse
			var peers *manxv1.ListPeersResponse
			err = c.daemon(cmd.Context(), func(ctx context.Context, m manxv1.ManxClient) (err error) {
				if status, err = m.GetStatus(ctx, &manxv1.GetStatusRequest{}); err != nil {
					return err
				}
				peers, err = listPeersOf(ctx, m, status)
				return err
			})
			switch {
			case err != nil:
				return err
			case format == table.Table:
				return writeSessions(c.out, status, peers.GetPeers(), time.Now())
			case format == table.Wide:
				return peerGrid(peers.GetPeers(), true, time.Now()).Write(c.out, true)
			}
			return c.printStructured(format, peers)
		},
	}
	outputFlag(cmd, &output, table.Table, table.Wide, table.JSON, table.YAML)
	return cmd
}

// writeSessions prints the tables of "calicoctl node status".
func writeSessions(w io.Writer, s *manxv1.GetStatusResponse, peers []*manxv1.Peer, now time.Time) error {
	as := ""
	if s.GetAsNumber() != 0 {
		as = fmt.Sprintf(", AS %d", s.GetAsNumber())
	}
	if _, err := fmt.Fprintf(w, "manxd is running: node %s%s.\n", s.GetNode(), as); err != nil {
		return err
	}
	if off := s.GetBgpOff(); off != "" {
		_, err := fmt.Fprintf(w, "\n%s\n", off)
		return err
	}
	for _, family := range []string{"IPv4", "IPv6"} {
		g := &table.Grid{Heading: []string{"PEER ADDRESS", "PEER TYPE", "STATE", "SINCE", "INFO"}}
		for _, p := range peers {
			if familyOf(p.GetAddress()) == family {
				g.Add(peerName(p), peerType(p.GetType()), upOrStart(p), clock(p.GetSinceUnixMs(), now), info(p))
			}
		}
		if _, err := fmt.Fprintf(w, "\n%s BGP status\n", family); err != nil {
			return err
		}
		if len(g.Rows) == 0 {
			if _, err := fmt.Fprintf(w, "No %s peers found.\n", family); err != nil {
				return err
			}
			continue
		}
		if err := g.WriteBoxed(w); err != nil {
			return err
		}
	}
	return nil
}

func familyOf(address string) string {
	if a, err := netip.ParseAddr(address); err == nil && a.Is6() && !a.Is4In6() {
		return "IPv6"
	}
	return "IPv4"
}

// peerName returns the address, and the port if it is not BGP's default.
func peerName(p *manxv1.Peer) string {
	a, err := netip.ParseAddr(p.GetAddress())
	if err != nil || p.GetPort() == 0 || p.GetPort() == 179 {
		return p.GetAddress()
	}
	return netip.AddrPortFrom(a, uint16(p.GetPort())).String()
}

// peerType returns calicoctl's name of the type.
func peerType(t string) string {
	switch t {
	case "mesh":
		return "node-to-node mesh"
	case "node":
		return "node specific"
	}
	return t
}

func upOrStart(p *manxv1.Peer) string {
	if p.GetState() == established {
		return "up"
	}
	return "start"
}

// info returns the state of the state machine and its reason.
func info(p *manxv1.Peer) string {
	reason := p.GetReason()
	if p.GetState() == established {
		reason = p.GetWarning()
	}
	if reason == "" {
		return p.GetState()
	}
	return p.GetState() + ": " + reason
}

// clock returns the time of day, or the date if that was another day.
func clock(unixMs int64, now time.Time) string {
	if unixMs == 0 {
		return ""
	}
	t := time.UnixMilli(unixMs).In(now.Location())
	if t.Format(time.DateOnly) != now.Format(time.DateOnly) {
		return t.Format(time.DateOnly)
	}
	return t.Format(time.TimeOnly)
}
