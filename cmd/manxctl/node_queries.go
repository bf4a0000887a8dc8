package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	"github.com/manxnet/manx/datastore/table"
	manxv1 "github.com/manxnet/manx/proto/manx/v1"
)

// query is a command with one request to the daemon, whose response it prints.
type query[M proto.Message] struct {
	use, short string
	request    func(context.Context, manxv1.ManxClient) (M, error)
	grid       func(M) *table.Grid
	none       string        // text for an empty response
	instead    string        // the command that answers without a daemon
	limit      time.Duration // how long the daemon may take
}

func (q query[M]) command(c *cli) *cobra.Command {
	var output string
	var noHeaders bool
	cmd := &cobra.Command{
		Use:   q.use,
		Short: q.short,
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			format, err := table.ParseFormat(output, table.Table, table.JSON, table.YAML)
			if err != nil {
				return usagef("%v", err)
			}
			var answer M
			err = c.daemonFor(cmd.Context(), cmp.Or(q.limit, daemonTimeout),
				func(ctx context.Context, m manxv1.ManxClient) (err error) {
					answer, err = q.request(ctx, m)
					return err
				})
			var noDaemon *noDaemonError
			if q.instead != "" && errors.As(err, &noDaemon) {
				return fmt.Errorf("%w; without a daemon: %s", err, q.instead)
			}
			if err != nil {
				return err
			}
			if format != table.Table {
				return c.printStructured(format, answer)
			}
			g := q.grid(answer)
			if len(g.Rows) == 0 {
				cmd.PrintErrln(q.none)
				return nil
			}
			return g.Write(c.out, !noHeaders)
		},
	}
	outputFlag(cmd, &output, table.Table, table.JSON, table.YAML)
	cmd.Flags().BoolVar(&noHeaders, "no-headers", false, "table without the heading")
	return cmd
}

func (c *cli) nodeAddressesCommand() *cobra.Command {
	return query[*manxv1.ListAddressesResponse]{
		use:   "addresses",
		short: "Show every candidate for this node's address, with the reason why it was chosen or skipped",
		request: func(ctx context.Context, m manxv1.ManxClient) (*manxv1.ListAddressesResponse, error) {
			return m.ListAddresses(ctx, &manxv1.ListAddressesRequest{})
		},
		grid: addressGrid, none: "No addresses found.", instead: "manxd config addresses",
	}.command(c)
}

func addressGrid(r *manxv1.ListAddressesResponse) *table.Grid {
	g := &table.Grid{Heading: []string{"FAMILY", "ADDRESS", "INTERFACE", "METHOD", "CHOSEN", "REASON"}}
	for _, a := range r.GetAddresses() {
		chosen := ""
		if a.GetChosen() {
			chosen = "*"
		}
		g.Add(a.GetFamily(), a.GetAddress(), a.GetInterface(), a.GetMethod(), chosen, a.GetReason())
	}
	return g
}

func (c *cli) nodeProblemsCommand() *cobra.Command {
	return query[*manxv1.ListQuarantinedResponse]{
		use: "problems", short: "Show the invalid objects of the datastore, with reasons",
		request: func(ctx context.Context, m manxv1.ManxClient) (*manxv1.ListQuarantinedResponse, error) {
			return m.ListQuarantined(ctx, &manxv1.ListQuarantinedRequest{})
		},
		grid: func(r *manxv1.ListQuarantinedResponse) *table.Grid {
			g := &table.Grid{Heading: []string{"KIND", "NAMESPACE", "NAME", "REASON"}}
			for _, o := range r.GetObjects() {
				g.Add(o.GetKind(), o.GetNamespace(), o.GetName(), o.GetReason())
			}
			return g
		},
		none: "Every object can be used.",
	}.command(c)
}

func (c *cli) nodeEndpointsCommand() *cobra.Command {
	return query[*manxv1.ListEndpointsResponse]{
		use: "endpoints", short: "Show the workload endpoints of this node and their state",
		request: func(ctx context.Context, m manxv1.ManxClient) (*manxv1.ListEndpointsResponse, error) {
			return m.ListEndpoints(ctx, &manxv1.ListEndpointsRequest{})
		},
		grid: func(r *manxv1.ListEndpointsResponse) *table.Grid {
			g := &table.Grid{Heading: []string{"NAMESPACE", "WORKLOAD", "INTERFACE", "ADDRESSES", "PHASE", "REASON"}}
			for _, e := range r.GetEndpoints() {
				g.Add(e.GetNamespace(), e.GetWorkload(), e.GetInterface(), strings.Join(e.GetAddresses(), ","),
					e.GetPhase(), e.GetReason())
			}
			return g
		},
		none: "This node has no workload endpoints.",
	}.command(c)
}
