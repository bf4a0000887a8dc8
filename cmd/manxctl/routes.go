package main

import (
	"context"
	"fmt"
	"net/netip"
	"strings"

	"github.com/spf13/cobra"

	"github.com/manxnet/manx/cmd/manxctl/table"
	manxv1 "github.com/manxnet/manx/proto/manx/v1"
)

func (c *cli) routesCommand() *cobra.Command {
	request := &manxv1.ListRoutesRequest{}
	q := question[*manxv1.ListRoutesResponse]{
		use: "routes", short: "Show the routes that this node wants, what the kernel has, and why they differ",
		ask: func(ctx context.Context, m manxv1.ManxClient) (*manxv1.ListRoutesResponse, error) {
			return m.ListRoutes(ctx, request)
		},
		grid: routeGrid, none: "No routes found.",
	}
	cmd := q.command(c)
	cmd.Example = "  manxctl routes\n  manxctl routes --within 10.244.0.0/16 --phase " + phaseFailed
	cmd.Flags().StringVar(&request.Within, "within", "", "only prefixes inside this one")
	cmd.Flags().StringSliceVar(&request.Phases, "phase", nil, "only routes in these phases")
	cmd.Flags().StringSliceVar(&request.Sources, "source", nil, "only routes that these ask for")
	cmd.PreRunE = func(*cobra.Command, []string) error {
		if request.Within == "" {
			return nil
		}
		if _, err := netip.ParsePrefix(request.Within); err != nil {
			return usagef("--within %q: want a prefix like 10.244.0.0/16", request.Within)
		}
		return nil
	}
	return cmd
}

func routeGrid(r *manxv1.ListRoutesResponse) *table.Grid {
	g := &table.Grid{Heading: []string{"PREFIX", "SOURCE", "DESIRED", "ACTUAL", "PHASE", "REASON"}}
	for _, x := range r.GetRoutes() {
		actual := routeText(x.GetActual())
		desired := routeText(x.GetDesired())
		if actual == desired {
			actual = "same"
		}
		g.Add(x.GetPrefix(), x.GetSource(), desired, actual, x.GetPhase(), x.GetReason())
	}
	return g
}

// routeText spells a route as "ip route" does, without the prefix.
func routeText(s *manxv1.RouteState) string {
	if s == nil {
		return "none"
	}
	var words []string
	if s.GetType() != "unicast" {
		words = append(words, s.GetType())
	}
	for i, n := range s.GetNextHops() {
		if i > 0 {
			words = append(words, "+")
		}
		if n.GetGateway() != "" {
			words = append(words, "via "+n.GetGateway())
		}
		if n.GetDevice() != "" {
			words = append(words, "dev "+n.GetDevice())
		}
		if n.GetOnlink() {
			words = append(words, "onlink")
		}
	}
	if s.GetSource() != "" {
		words = append(words, "src "+s.GetSource())
	}
	if s.GetMetric() != 0 {
		words = append(words, fmt.Sprintf("metric %d", s.GetMetric()))
	}
	if s.GetProtocol() != 0 {
		words = append(words, fmt.Sprintf("proto %d", s.GetProtocol()))
	}
	return strings.Join(words, " ")
}
