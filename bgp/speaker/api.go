package speaker

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/osrg/gobgp/v4/api"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func netipPort(a netip.Addr, port uint16) string {
	return net.JoinHostPort(a.String(), fmt.Sprint(port))
}

// apiSocket is the unix socket of GoBGP's own API. GoBGP creates it with the process's umask, so it is made in a
// directory that only root can enter, gets its mode there, and is then moved to its place.
type apiSocket struct {
	path      string
	temporary string
}

func prepareSocket(path string) (*apiSocket, error) {
	if path == "" {
		return nil, nil
	}
	dir, err := os.MkdirTemp(filepath.Dir(path), ".gobgp-") // mode 0700
	if err != nil {
		return nil, fmt.Errorf("gobgp socket %s: %w", path, err)
	}
	return &apiSocket{path: path, temporary: filepath.Join(dir, "s")}, nil
}

// publish waits for the socket and moves it to its place, over one that a killed process left.
func (s *apiSocket) publish() error {
	defer os.RemoveAll(filepath.Dir(s.temporary))
	var err error
	for range 200 {
		if err = os.Chmod(s.temporary, 0o600); err == nil {
			break
		}
		time.Sleep(5 * time.Millisecond)
	}
	if err == nil {
		err = os.Rename(s.temporary, s.path)
	}
	if err != nil {
		return fmt.Errorf("gobgp socket %s: %w", s.path, err)
	}
	return nil
}

// discard removes what prepareSocket made.
func (s *apiSocket) discard() {
	if s != nil {
		os.RemoveAll(filepath.Dir(s.temporary))
	}
}

// readOnlyOptions let only calls through that read, and session resets.
func readOnlyOptions(sp *Speaker) []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.UnaryInterceptor(func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
			if err := sp.allowCall(info.FullMethod, req); err != nil {
				return nil, err
			}
			return handler(ctx, req)
		}),
		grpc.StreamInterceptor(func(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
			if err := sp.allowCall(info.FullMethod, nil); err != nil {
				return err
			}
			return handler(srv, scrubbedStream{stream})
		}),
	}
}

func (s *Speaker) allowCall(method string, req any) error {
	name := method[strings.LastIndex(method, "/")+1:]
	switch {
	case strings.HasPrefix(name, "List"), strings.HasPrefix(name, "Get"), name == "WatchEvent":
		return nil
	case name == "ResetPeer":
		r, _ := req.(*api.ResetPeerRequest)
		return s.allowReset(r)
	}
	return status.Errorf(codes.PermissionDenied, "%s is refused: this speaker does what the datastore says; change BGPPeer and BGPConfiguration resources instead", name)
}

// allowReset refuses what would hurt: a hard reset of a session that is not up kills the next one.
func (s *Speaker) allowReset(r *api.ResetPeerRequest) error {
	if r.GetSoft() {
		return nil
	}
	addr, err := netip.ParseAddr(r.GetAddress())
	if err != nil {
		return status.Errorf(codes.InvalidArgument, "hard reset needs the address of one peer, not %q", r.GetAddress())
	}
	up := s.status.establishedSince(addr.Unmap())
	switch {
	case up.IsZero():
		return status.Errorf(codes.FailedPrecondition, "session with %s is not established; there is nothing to reset", addr)
	case !s.resets.beginHard(addr.Unmap(), up, time.Now()):
		return status.Errorf(codes.FailedPrecondition, "session with %s is being reset already", addr)
	}
	return nil
}

// scrubbedStream removes passwords, and words in place of addresses, from what the server sends.
type scrubbedStream struct{ grpc.ServerStream }

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
