package speaker

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"time"

	"github.com/osrg/gobgp/v4/api"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/manxnet/manx/bgp/apiguard"
	"github.com/manxnet/manx/datastore/safefile"
)

// prepareSocket makes the place of the unix socket of GoBGP's own API. GoBGP creates it with the process's umask, so it
// is made in a folder that only root can enter, gets its mode there, and is then moved to its place. Without a path
// there is none.
func prepareSocket(path string) (*safefile.Socket, error) {
	if path == "" {
		return nil, nil
	}
	s, err := safefile.NewSocket(path)
	if err != nil {
		return nil, fmt.Errorf("gobgp socket: %w", err)
	}
	return s, nil
}

// publishSocket waits until GoBGP listens on the socket and moves it to its place, over one that a killed process left.
func publishSocket(s *safefile.Socket) error {
	var err error
	for range 200 {
		if err = answers(s.Address()); err == nil {
			err = s.Publish(0o600)
			break
		}
		time.Sleep(5 * time.Millisecond)
	}
	if err != nil {
		return fmt.Errorf("gobgp socket: %w", err)
	}
	return nil
}

// answers returns nil if a server listens on a socket, which is a little later than the socket exists.
func answers(path string) error {
	c, err := net.Dial("unix", path)
	if err != nil {
		return err
	}
	return c.Close()
}

// readOnlyOptions let only calls through that read, and session resets.
func readOnlyOptions(sp *Speaker, readers *readers) []grpc.ServerOption {
	streams, lists := apiguard.NewStreams(), apiguard.NewSlots(listsAtOnce, listsAtOnce)
	return append(apiguard.Limits(), grpc.Creds(apiguard.UnixCredentials()),
		grpc.UnaryInterceptor(func(ctx context.Context, req any, info *grpc.UnaryServerInfo,
			handler grpc.UnaryHandler) (any, error) {
			if err := sp.allowCall(ctx, info.FullMethod, req); err != nil {
				return nil, err
			}
			r, err := handler(ctx, req)
			if g, ok := r.(*api.GetBgpResponse); ok && g.GetGlobal() != nil {
				g.Global.ListenPort, g.Global.ListenAddresses = sp.Listening()
			}
			return r, err
		}),
		grpc.StreamInterceptor(func(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo,
			handler grpc.StreamHandler) error {
			if err := sp.allowCall(stream.Context(), info.FullMethod, nil); err != nil {
				return err
			}
			if strings.HasSuffix(info.FullMethod, "/ListPath") {
				handler = oneOf(lists, readers.intercept(handler))
			}
			return streams.Intercept(srv, scrubbedStream{stream}, info, handler)
		}))
}

// Listings of tables that may run at a time, as GoBGP copies the table for each, and how long one waits for its turn.
const (
	listsAtOnce = 4
	listWait    = 30 * time.Second
)

// oneOf has calls of handler wait for a slot.
func oneOf(slots *apiguard.Slots, handler grpc.StreamHandler) grpc.StreamHandler {
	return func(srv any, stream grpc.ServerStream) error {
		ctx, cancel := context.WithTimeout(stream.Context(), listWait)
		defer cancel()
		release, err := slots.Wait(ctx, apiguard.CallerOf(ctx).UID)
		if err != nil {
			return status.Errorf(codes.ResourceExhausted, "too many listings of tables: at most %d at a time",
				listsAtOnce)
		}
		defer release()
		return handler(srv, stream)
	}
}

func (s *Speaker) allowCall(ctx context.Context, method string, req any) error {
	name := method[strings.LastIndex(method, "/")+1:]
	switch {
	case strings.HasPrefix(name, "List"), strings.HasPrefix(name, "Get"), name == "WatchEvent":
		return nil
	case name == "ResetPeer":
		r, _ := req.(*api.ResetPeerRequest)
		return s.allowReset(ctx, r)
	}
	return status.Errorf(codes.PermissionDenied, "%s is refused: this speaker is configured by the datastore "+
		"alone; change "+
		"BGPPeer and BGPConfiguration resources instead", name)
}

// allowReset refuses harmful resets: soft resets that keep the node busy, and a hard reset of a session that is not up,
// which kills the next one.
func (s *Speaker) allowReset(ctx context.Context, r *api.ResetPeerRequest) error {
	addr, err := netip.ParseAddr(r.GetAddress())
	addr = addr.Unmap()
	var refused uint64
	switch all := r.GetAddress() == "" || r.GetAddress() == "all"; {
	case r.GetSoft():
		n := 1
		if all {
			n = resetsAtOnce
		}
		if refused, err = s.Resets.Allow(addr, n, time.Now()); err != nil {
			return status.Error(codes.ResourceExhausted, err.Error())
		}
	case err != nil:
		return status.Errorf(codes.InvalidArgument, "hard reset needs the address of one peer, not %q", r.GetAddress())
	case !s.status.IsEstablished(addr):
		return status.Errorf(codes.FailedPrecondition, "session with %s is not established; there is nothing to reset",
			addr)
	case !s.resets.beginHard(addr, s.status.EstablishedSince(addr), time.Now()):
		return status.Errorf(codes.FailedPrecondition, "session with %s is being reset already", addr)
	}
	s.log.Info("bgp session reset through gobgp.sock", append(apiguard.CallerOf(ctx).Fields(),
		zap.String("peer", r.GetAddress()), zap.Bool("soft", r.GetSoft()), zap.Uint64("refusedBefore", refused))...)
	return nil
}

// scrubbedStream removes passwords, and words in place of addresses, from the server's messages.
type scrubbedStream struct{ grpc.ServerStream }

// listBatch is how many destinations GoBGP collects before it sends them; GoBGP's default is the whole table.
const listBatch = 500

func (s scrubbedStream) RecvMsg(m any) error {
	err := s.ServerStream.RecvMsg(m)
	if r, ok := m.(*api.ListPathRequest); ok && err == nil && (r.BatchSize == 0 || r.BatchSize > listBatch) {
		r.BatchSize = listBatch
	}
	return err
}

func (s scrubbedStream) SendMsg(m any) error {
	switch m := m.(type) {
	case *api.ListPeerResponse:
		scrubPeer(m.GetPeer())
	case *api.ListPeerGroupResponse:
		if c := m.GetPeerGroup().GetConf(); c != nil {
			c.AuthPassword = ""
		}
	case *api.WatchEventResponse:
		scrubPeer(m.GetPeer().GetPeer())
	}
	return s.ServerStream.SendMsg(m)
}

func scrubPeer(p *api.Peer) {
	if c := p.GetConf(); c != nil {
		c.AuthPassword = ""
	}
	if st := p.GetState(); st != nil {
		st.AuthPassword = ""
		if st.RouterId == "invalid IP" { // of a session that is down
			st.RouterId = ""
		}
	}
}
