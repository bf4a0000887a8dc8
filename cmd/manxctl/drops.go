package main

import (
	"context"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"github.com/manxnet/manx/datastore/table"
	manxv1 "github.com/manxnet/manx/proto/manx/v1"
)

func (c *cli) dropsCommand() *cobra.Command {
	var output string
	var port uint16
	request := &manxv1.WatchDropsRequest{}
	cmd := &cobra.Command{
		Use: "drops",
		Short: "Print packets that policy on this node drops or logs, with the rule, as it happens (manxd " +
			"--flow-log)",
		Long: `Print packets that policy on this node drops, or that its rules with the action Log match, with the rule, as it happens.

The first packet of a flow is printed at once, the number of further ones every ten seconds. manxd must run with
--flow-log=stream, or with a file for the same lines.

Exit codes: 0 interrupted, or manxd ended; 1 error, also when manxd has no flow log; 2 usage.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			format, err := table.ParseFormat(output, table.Table, table.JSON)
			if err != nil {
				return usagef("%v", err)
			}
			request.Port = uint32(port)
			return c.drops(cmd.Context(), request, format)
		},
	}
	outputFlag(cmd, &output, table.Table, table.JSON)
	cmd.Flags().StringVar(&request.Endpoint, "endpoint", "", "only of endpoints of this node with this in their "+
		"name, NAMESPACE/NAME")
	cmd.Flags().StringVar(&request.Rule, "rule", "", "only by rules with this in their name, such as "+
		"NetworkPolicy/shop/web")
	cmd.Flags().StringVar(&request.Action, "action", "", "drop or log: only dropped packets, or only logged ones")
	cmd.Flags().StringVar(&request.Net, "net", "", "only from or to this address or network")
	cmd.Flags().Uint16Var(&port, "port", 0, "only to this port")
	return cmd
}

// drops prints until it is interrupted, its normal end.
func (c *cli) drops(ctx context.Context, request *manxv1.WatchDropsRequest, format table.Format) error {
	watching := func(ctx context.Context, m manxv1.ManxClient) (grpc.ServerStreamingClient[manxv1.Drop], error) {
		return m.WatchDrops(ctx, request)
	}
	return stream(ctx, c, watching, func(d *manxv1.Drop) error {
		return writeLine(c.out, format, d, func() string { return dropLine(d) })
	})
}

// dropLine returns the line of a drop for people.
func dropLine(d *manxv1.Drop) string {
	end := func(address, endpoint string) string {
		if endpoint == "" {
			return address
		}
		return address + " (" + endpoint + ")"
	}
	var b strings.Builder
	table.Fprintf(&b, "%s  %s -> %s  %s", time.UnixMilli(d.GetTimeUnixMs()).Format("15:04:05.000"),
		end(d.GetSource(), d.GetSourceEndpoint()), end(d.GetDestination(), d.GetDestinationEndpoint()), d.GetProtocol())
	switch {
	case d.GetDestinationPort() != 0:
		table.Fprintf(&b, "/%d", d.GetDestinationPort())
	case d.GetIcmpType() >= 0:
		table.Fprintf(&b, " type %d code %d", d.GetIcmpType(), d.GetIcmpCode())
	}
	what := "dropped"
	if d.GetAction() == "log" {
		what = "logged"
	}
	table.Fprintf(&b, "  %s by %s", what, d.GetRule())
	if d.GetPackets() > 1 {
		table.Fprintf(&b, ", %d packets", d.GetPackets())
	}
	if d.GetSuppressed() > 0 {
		table.Fprintf(&b, " (%d other flows not recorded)", d.GetSuppressed())
	}
	return b.String()
}
