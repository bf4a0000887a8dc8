package main

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"

	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/manxnet/manx/bgp/apiguard"
	"github.com/manxnet/manx/bgp/gobgpapi"
	"github.com/manxnet/manx/bgp/speaker"
	"github.com/manxnet/manx/daemon/deps"
	"github.com/manxnet/manx/daemon/envflag"
	"github.com/manxnet/manx/daemon/listen"
	"github.com/manxnet/manx/daemon/part"
	"github.com/manxnet/manx/dataplane/kernel/sockdiag"
)

const (
	gobgpFlag     = "gobgp-listen"
	gobgpUIDsFlag = "gobgp-allow-uids"
)

// gobgpOptions configure the service for the gobgp command line.
type gobgpOptions struct{ listen, users string }

// Flags implements group.
func (o *gobgpOptions) Flags(s envflag.Set) {
	s.String(&o.listen, gobgpFlag, "127.0.0.1:50051", "ADDRESS:PORT for the stock gobgp command line (version "+
		"3); empty: off", "MANX_GOBGP_LISTEN")
	s.String(&o.users, gobgpUIDsFlag, "", "user IDs, comma separated, that --gobgp-listen serves "+
		"in addition to root", "MANX_GOBGP_ALLOW_UIDS")
}

// gobgpOf has the service for the gobgp command line over a speaker.
func gobgpOf(s *speaker.Speaker, log *zap.Logger) func([]grpc.ServerOption) *grpc.Server {
	return func(options []grpc.ServerOption) *grpc.Server {
		g := grpc.NewServer(options...)
		gobgpapi.New(s, log).Register(g)
		return g
	}
}

// noGobgp answers every call of the gobgp command line with the reason why there is no BGP.
func noGobgp(off string) func([]grpc.ServerOption) *grpc.Server {
	return func(options []grpc.ServerOption) *grpc.Server {
		return grpc.NewServer(append(options, grpc.UnknownServiceHandler(func(any, grpc.ServerStream) error {
			return status.Error(codes.FailedPrecondition, off)
		}))...)
	}
}

// newGobgp serves the gobgp command line of version 3 for root and the users of --gobgp-allow-uids.
func newGobgp(d deps.Deps, o gobgpOptions, service func([]grpc.ServerOption) *grpc.Server) part.Part {
	log := d.Log.Named("gobgp")
	users, _ := parseUIDs(o.users) // checked with the options
	guard := apiguard.New(apiguard.Config{Users: users, Owner: socketOwner, Log: log,
		Hint: "only root and the users of --" + gobgpUIDsFlag +
			" of manxd are served, from the network namespace of the host"})
	return part.Optional(listen.NewPort(gobgpFlag, o.listen, func(ctx context.Context, l net.Listener) error {
		g := service(guard.Options())
		defer context.AfterFunc(ctx, g.Stop)()
		defer g.Stop()
		if err := g.Serve(guard.Listener(l)); err != nil && ctx.Err() == nil {
			return fmt.Errorf("gobgp service: %w", err)
		}
		return nil
	}))
}

// socketOwner returns the user of a connection's peer.
func socketOwner(c *net.TCPConn) (apiguard.Caller, error) {
	owner, err := sockdiag.PeerOwner(nil, c)
	process := func() (int, string) { return sockdiag.ProcessOf(owner.Inode) }
	return apiguard.Caller{UID: owner.UID, Process: process}, err
}

// Check implements group. It requires loopback, where the kernel knows the user of the peer, and a list of users.
func (o *gobgpOptions) Check() error {
	if _, err := parseUIDs(o.users); err != nil {
		return err
	}
	if o.listen == "" {
		return nil
	}
	at, err := netip.ParseAddrPort(o.listen)
	if err != nil || !at.Addr().IsLoopback() {
		return fmt.Errorf("--%s=%s: want a loopback ADDRESS:PORT, because only there it is known which user connects",
			gobgpFlag, o.listen)
	}
	return nil
}

// noUID is the user ID of no user: (uid_t) -1.
const noUID = 1<<32 - 1

// parseUIDs parses a list of user IDs.
func parseUIDs(list string) ([]uint32, error) {
	var users []uint32
	if list == "" {
		return nil, nil
	}
	for text := range strings.SplitSeq(list, ",") {
		uid, err := strconv.ParseUint(strings.TrimSpace(text), 10, 32)
		if err != nil || uid == noUID {
			return nil, fmt.Errorf("--%s=%s: %q is no user ID: want a number from 0 to %d, several with commas (id "+
				"-u USER prints it)",
				gobgpUIDsFlag, list, text, uint32(noUID-1))
		}
		users = append(users, uint32(uid))
	}
	return users, nil
}
