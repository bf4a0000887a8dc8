package main

import (
	"context"
	"fmt"
	"net"
	"net/netip"

	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	"github.com/manxnet/manx/bgp/gobgpapi"
	"github.com/manxnet/manx/bgp/speaker"
)

const gobgpFlag = "gobgp-listen"

// serveGobgp serves the stock gobgp command line of version 3.
func serveGobgp(ctx context.Context, tasks *errgroup.Group, p *ports, listen string, speaker *speaker.Speaker, log *zap.Logger) {
	if listen == "" {
		return
	}
	g := grpc.NewServer()
	gobgpapi.New(speaker, log).Register(g)
	context.AfterFunc(ctx, g.Stop)
	tasks.Go(func() error {
		return p.serve(ctx, gobgpFlag, listen, func(l net.Listener) error {
			if err := g.Serve(l); err != nil && ctx.Err() == nil {
				return fmt.Errorf("gobgp service: %w", err)
			}
			return nil
		})
	})
}

// checkGobgpListen wants loopback: the protocol of gobgp's command line knows no users.
func checkGobgpListen(listen string) error {
	if listen == "" {
		return nil
	}
	at, err := netip.ParseAddrPort(listen)
	if err != nil || !at.Addr().IsLoopback() {
		return fmt.Errorf("--%s=%s: want a loopback ADDRESS:PORT, because whoever reaches it may read everything", gobgpFlag, listen)
	}
	return nil
}
