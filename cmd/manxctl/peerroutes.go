package main

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/manxnet/manx/datastore/table"
	manxv1 "github.com/manxnet/manx/proto/manx/v1"
)

// peerRouteFlags select routes of BGP peers instead of those of the kernel.
type peerRouteFlags struct {
	advertisedTo, receivedFrom, peer string
	rejected                         bool
}

func (f *peerRouteFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.advertisedTo, "advertised-to", "",
		"BGP routes that are sent to this peer (address or BGPPeer)")
	cmd.Flags().StringVar(&f.receivedFrom, "received-from", "", "BGP routes from this peer (address or BGPPeer), "+
		"with the outcome of each")
	cmd.Flags().BoolVar(&f.rejected, "rejected", false, "BGP routes from peers that are not used, with the "+
		"rule that rejects each; with --peer also routes that are not sent to that peer")
	cmd.Flags().StringVar(&f.peer, "peer", "", "with --rejected: only this peer (address or BGPPeer)")
}

// request returns the request of the flags; nil for the routes of the kernel.
func (f *peerRouteFlags) request(cmd *cobra.Command) (*manxv1.ListPeerRoutesRequest, error) {
	var ways, others []string
	for _, name := range []string{"advertised-to", "received-from", "rejected"} {
		if cmd.Flags().Changed(name) {
			ways = append(ways, "--"+name)
		}
	}
	for _, name := range []string{"within", "phase", "source"} {
		if cmd.Flags().Changed(name) {
			others = append(others, "--"+name)
		}
	}
	switch {
	case len(ways) > 1:
		return nil, usagef("use one of %s", strings.Join(ways, ", "))
	case len(ways) == 1 && len(others) > 0:
		return nil, usagef("%s is for routes of the kernel and does not go with %s", others[0], ways[0])
	case f.peer != "" && !f.rejected:
		return nil, usagef("--peer goes with --rejected")
	case f.advertisedTo != "":
		return &manxv1.ListPeerRoutesRequest{Direction: "advertised", Peer: f.advertisedTo}, nil
	case f.receivedFrom != "":
		return &manxv1.ListPeerRoutesRequest{Direction: "received", Peer: f.receivedFrom}, nil
	case f.rejected:
		return &manxv1.ListPeerRoutesRequest{Direction: "rejected", Peer: f.peer}, nil
	}
	return nil, nil
}

func (c *cli) peerRoutes(
	ctx context.Context, request *manxv1.ListPeerRoutesRequest, output string, headers bool,
) error {
	format, err := table.ParseFormat(output, table.Table, table.Wide, table.JSON, table.YAML)
	if err != nil {
		return usagef("%v", err)
	}
	var answer *manxv1.ListPeerRoutesResponse
	err = c.daemonFor(ctx, routesTimeout, func(ctx context.Context, m manxv1.ManxClient) (err error) {
		answer, err = manxv1.PeerRoutes(ctx, m, request)
		return err
	})
	switch {
	case err != nil:
		return err
	case format == table.JSON || format == table.YAML:
		return c.printStructured(format, answer)
	case len(answer.GetRoutes()) == 0:
		fmt.Fprintln(c.err, "No routes found.") //nolint:errcheck // nowhere to report it
		return nil
	}
	return peerRouteGrid(answer.GetRoutes(), format == table.Wide).Write(c.out, headers)
}

func peerRouteGrid(routes []*manxv1.PeerRoute, wide bool) *table.Grid {
	g := &table.Grid{Heading: []string{"PREFIX", "PEER", "WAY", "VERDICT", "NEXT-HOP"}}
	if wide {
		g.Heading = append(g.Heading, "LOCAL-PREF", "MED", "AS-PATH", "ORIGIN", "COMMUNITIES")
	}
	g.Heading = append(g.Heading, "RULE")
	for _, r := range routes {
		verdict := "rejected"
		if r.GetAccepted() {
			verdict = "accepted"
		}
		row := []string{r.GetPrefix(), r.GetPeer(), r.GetDirection(), verdict, r.GetNextHop()}
		if wide {
			row = append(row, number(r.LocalPref), number(r.Med), dash(asPath(r.GetAsPath())), r.GetOrigin(),
				dash(strings.Join(slices.Concat(r.GetCommunities(), r.GetLargeCommunities(),
					r.GetExtendedCommunities()), ",")))
		}
		g.Add(append(row, r.GetRule())...)
	}
	return g
}

func number(n *uint32) string {
	if n == nil {
		return "-"
	}
	return utoa(*n)
}

func asPath(path []uint32) string {
	words := make([]string, len(path))
	for i, as := range path {
		words[i] = utoa(as)
	}
	return strings.Join(words, " ")
}
