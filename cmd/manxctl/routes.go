package main

import (
	"context"
	"net/netip"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/manxnet/manx/datastore/table"
	manxv1 "github.com/manxnet/manx/proto/manx/v1"
)

func (c *cli) routesCommand() *cobra.Command {
	request := &manxv1.ListRoutesRequest{}
	q := query[*manxv1.ListRoutesResponse]{
		use: "routes", short: "Show the routes that this node wants and those of the kernel, with reasons for " +
			"differences; or the BGP routes of a peer",
		request: func(ctx context.Context, m manxv1.ManxClient) (*manxv1.ListRoutesResponse, error) {
			return m.ListRoutes(ctx, request)
		},
		grid: routeGrid, none: "No routes found.", limit: routesTimeout,
	}
	cmd := q.command(c)
	cmd.Example = "  manxctl routes\n  manxctl routes --within 10.244.0.0/16 --phase " + phaseFailed +
		"\n  manxctl routes --received-from tor-1 -o wide\n  manxctl routes --rejected"
	var peer peerRouteFlags
	peer.add(cmd)
	ofKernel := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		r, err := peer.request(cmd)
		switch {
		case err != nil:
			return err
		case r == nil:
			return ofKernel(cmd, args)
		}
		output, _ := cmd.Flags().GetString("output")
		noHeaders, _ := cmd.Flags().GetBool("no-headers")
		return c.peerRoutes(cmd.Context(), r, output, !noHeaders)
	}
	cmd.Flags().StringVar(&request.Within, "within", "", "only prefixes inside this one")
	cmd.Flags().StringSliceVar(&request.Phases, "phase", nil, "only routes in these phases: "+oneOf(routePhases))
	cmd.Flags().StringSliceVar(&request.Sources, "source", nil, "only routes of these sources: "+oneOf(routeSources))
	_ = cmd.RegisterFlagCompletionFunc("phase", cobra.FixedCompletions(routePhases, cobra.ShellCompDirectiveNoFileComp))
	_ = cmd.RegisterFlagCompletionFunc("source", cobra.FixedCompletions(routeSources,
		cobra.ShellCompDirectiveNoFileComp))
	cmd.PreRunE = func(*cobra.Command, []string) error {
		for _, p := range request.Phases {
			if !slices.Contains(routePhases, p) {
				return usagef("--phase %q: want %s", p, oneOf(routePhases))
			}
		}
		for _, s := range request.Sources {
			if !slices.Contains(routeSources, s) {
				return usagef("--source %q: want %s", s, oneOf(routeSources))
			}
		}
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

// The words of --phase and --source.
var (
	routePhases  = []string{"pending", phaseDone, phaseFailed, phaseBlocked, "leftover", "removing"}
	routeSources = []string{"bgp", "ipam", "block", "workload", "static"}
)

// oneOf formats "a, b or c".
func oneOf(words []string) string {
	last := len(words) - 1
	return strings.Join(words[:last], ", ") + " or " + words[last]
}

func routeGrid(r *manxv1.ListRoutesResponse) *table.Grid {
	g := &table.Grid{Heading: []string{"PREFIX", "SOURCE", "DESIRED", "ACTUAL", "PHASE", "REASON"}}
	for _, x := range r.GetRoutes() {
		g.Add(x.GetPrefix(), orNone(sourceText(x)), orNone(withoutPrefix(x.GetDesired(), x.GetPrefix())), actualText(x),
			x.GetPhase(), x.GetReason())
	}
	return g
}

// sourceText returns the source of a route, and its workload.
func sourceText(x *manxv1.Route) string {
	if x.GetEndpoint() == "" {
		return x.GetSource()
	}
	return x.GetSource() + " " + x.GetEndpoint()
}

// actualText is short without a difference, so that differences stand out.
func actualText(x *manxv1.Route) string {
	var words []string
	for _, a := range x.GetActual() {
		if a == x.GetDesired() {
			a = "same"
		}
		words = append(words, withoutPrefix(a, x.GetPrefix()))
	}
	return orNone(strings.Join(words, "; "))
}

// withoutPrefix removes the destination from a route in the format of ip(8): it has its own column.
func withoutPrefix(route, prefix string) string { return strings.Replace(route, prefix+" ", "", 1) }

func orNone(s string) string {
	if s == "" {
		return "none"
	}
	return s
}
