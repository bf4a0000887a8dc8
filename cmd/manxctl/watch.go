package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"github.com/manxnet/manx/datastore/table"
	manxv1 "github.com/manxnet/manx/proto/manx/v1"
)

func (c *cli) watchCommand() *cobra.Command {
	var output string
	request := &manxv1.WatchRequest{}
	cmd := &cobra.Command{
		Use:   "watch",
		Short: "Print the BGP sessions and routes of this node, and then each change",
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			format, err := table.ParseFormat(output, table.Table, table.JSON)
			if err != nil {
				return usagef("%v", err)
			}
			if request.Status || request.Peers || request.Routes {
				return c.watch(cmd.Context(), request, format)
			}
			return c.watchAll(cmd.Context(), format)
		},
	}
	outputFlag(cmd, &output, table.Table, table.JSON)
	cmd.Flags().BoolVar(&request.Peers, "peers", false, "only BGP sessions, and the others of these flags that are set")
	cmd.Flags().BoolVar(&request.Routes, "routes", false, "only routes, and the others of these flags that are set")
	cmd.Flags().BoolVar(&request.Status, "status", false, "only the readiness of the node, and the others of these "+
		"flags that are set")
	return cmd
}

// watchAll watches sessions and routes; on a node without BGP, the routes alone.
func (c *cli) watchAll(ctx context.Context, format table.Format) error {
	request := &manxv1.WatchRequest{Peers: true, Routes: true}
	status := &manxv1.GetStatusResponse{}
	err := c.daemon(ctx, func(ctx context.Context, m manxv1.ManxClient) (err error) {
		status, err = m.GetStatus(ctx, &manxv1.GetStatusRequest{})
		return err
	})
	if err != nil {
		return err
	}
	if off := status.GetBgpOff(); off != "" {
		fmt.Fprintf(c.err, "%s: there are no sessions, only routes\n", off) //nolint:errcheck // nowhere to report it
		request.Peers = false
	}
	return c.watch(ctx, request, format)
}

// watch prints until it is interrupted, its normal end.
func (c *cli) watch(ctx context.Context, request *manxv1.WatchRequest, format table.Format) error {
	return stream(ctx, c, watching(request), func(e *manxv1.WatchResponse) error {
		return writeLine(c.out, format, e, func() string {
			return time.Now().Format(time.TimeOnly) + "  " +
				eventText(e)
		})
	})
}

func watching(
	request *manxv1.WatchRequest,
) func(context.Context, manxv1.ManxClient) (grpc.ServerStreamingClient[manxv1.WatchResponse], error) {
	return func(ctx context.Context, m manxv1.ManxClient) (grpc.ServerStreamingClient[manxv1.WatchResponse], error) {
		return m.Watch(ctx, request)
	}
}

func eventText(e *manxv1.WatchResponse) string {
	switch {
	case e.GetPeer() != nil:
		p := e.GetPeer()
		return "peer " + peerName(p) + "  " + strings.Join(present(p.GetState(), p.GetReason(), p.GetWarning()), ": ")
	case e.GetPeerGone() != "":
		return "peer " + e.GetPeerGone() + "  not wanted any more"
	case e.GetRoute() != nil:
		r := e.GetRoute()
		return "route " + r.GetPrefix() + "  " +
			strings.Join(present(r.GetPhase(), orNone(withoutPrefix(r.GetDesired(), r.GetPrefix())), r.GetReason()),
				": ")
	case e.GetRouteGone() != "":
		return "route " + e.GetRouteGone() + "  gone"
	case e.GetStatus() != nil:
		if wrong := unhealthy(e.GetStatus()); len(wrong) > 0 {
			return "node  " + strings.Join(wrong, "; ")
		}
		return "node  healthy"
	}
	return "that is all there is now; changes follow"
}
