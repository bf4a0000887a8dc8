package gobgpapi

import (
	"net/netip"
	"sync"
	"time"

	v3 "github.com/osrg/gobgp/v3/api"
	v4 "github.com/osrg/gobgp/v4/api"
	"github.com/osrg/gobgp/v4/pkg/apiutil"
	"github.com/osrg/gobgp/v4/pkg/server"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// replacedCheck is how often a watch looks whether its server was replaced.
const replacedCheck = time.Second

// WatchEvent sends changes of peers and routes until the caller hangs up. For peers it first sends INIT for each and
// END_OF_INIT, then STATE for each change.
func (s *Service) WatchEvent(r *v3.WatchEventRequest, stream v3.GobgpApi_WatchEventServer) error {
	b, err := s.server()
	if err != nil {
		return err
	}
	options, err := watchOptions(r)
	if err != nil {
		return err
	}
	w := &watch{stream: stream, batch: int(r.BatchSize), failed: make(chan error, 1)}
	defer w.end()
	err = b.WatchEvent(stream.Context(), server.WatchEventMessageCallbacks{
		OnPathUpdate: w.paths,
		OnBestPath:   w.paths,
		OnPathEor:    func(p *apiutil.Path, at time.Time) { w.paths([]*apiutil.Path{p}, at) },
		OnPeerUpdate: w.peer,
	}, options...)
	if err != nil {
		return status.Errorf(codes.Aborted, "watch: %v", err)
	}
	tick := time.NewTicker(replacedCheck)
	defer tick.Stop()
	for {
		select {
		case <-stream.Context().Done():
			return nil
		case err := <-w.failed:
			return err
		case <-tick.C:
			if s.speaker.Server() != b {
				return status.Error(codes.Unavailable, "the BGP speaker was restarted, because AS number, router ID or listener changed; watch again")
			}
		}
	}
}

func watchOptions(r *v3.WatchEventRequest) ([]server.WatchOption, error) {
	var options []server.WatchOption
	if r.GetPeer() != nil {
		options = append(options, server.WatchPeer())
	}
	for _, f := range r.GetTable().GetFilters() {
		if f.PeerAddress != "" {
			if _, err := netip.ParseAddr(f.PeerAddress); err != nil {
				return nil, status.Errorf(codes.InvalidArgument, "peer_address = %q: must be an address", f.PeerAddress)
			}
		}
		switch f.Type {
		case v3.WatchEventRequest_Table_Filter_BEST:
			options = append(options, server.WatchBestPath(f.Init))
		case v3.WatchEventRequest_Table_Filter_ADJIN:
			options = append(options, server.WatchUpdate(f.Init, f.PeerAddress, f.PeerGroup))
		case v3.WatchEventRequest_Table_Filter_POST_POLICY:
			options = append(options, server.WatchPostUpdate(f.Init, f.PeerAddress, f.PeerGroup))
		case v3.WatchEventRequest_Table_Filter_EOR:
			options = append(options, server.WatchEor(f.Init))
		default:
			return nil, status.Errorf(codes.InvalidArgument, "unknown filter type %s", f.Type)
		}
	}
	if len(options) == 0 {
		return nil, status.Error(codes.InvalidArgument, "nothing to watch: ask for peers or for a table")
	}
	return options, nil
}

// watch sends what GoBGP reports. The callbacks come from GoBGP's goroutine and may come late, when the call is over.
type watch struct {
	stream v3.GobgpApi_WatchEventServer
	batch  int
	failed chan error

	mu   sync.Mutex
	over bool
}

func (w *watch) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.over = true
}

func (w *watch) send(m *v3.WatchEventResponse) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.over {
		return
	}
	if err := w.stream.Send(m); err != nil {
		w.over = true
		w.failed <- err
	}
}

func (w *watch) paths(list []*apiutil.Path, _ time.Time) {
	for len(list) > 0 {
		n := len(list)
		if w.batch > 0 {
			n = min(n, w.batch)
		}
		event := &v3.WatchEventResponse_TableEvent{}
		for _, p := range list[:n] {
			event.Paths = append(event.Paths, newPath(p, nil))
		}
		w.send(&v3.WatchEventResponse{Event: &v3.WatchEventResponse_Table{Table: event}})
		list = list[n:]
	}
}

func (w *watch) peer(ev *apiutil.WatchEventMessage_PeerEvent, _ time.Time) {
	types := v4.WatchEventResponse_PeerEvent_Type(0).Descriptor()
	event := &v3.WatchEventResponse_PeerEvent{
		Type: v3.WatchEventResponse_PeerEvent_Type(translateEnum(types, v4.WatchEventResponse_PeerEvent_Type(ev.Type).Number(),
			v3.WatchEventResponse_PeerEvent_Type(0).Descriptor())),
		Peer: newPeer(&ev.Peer),
	}
	w.send(&v3.WatchEventResponse{Event: &v3.WatchEventResponse_Peer{Peer: event}})
}

// newPeer translates the peer of an event, which is less than ListPeer tells.
func newPeer(p *apiutil.Peer) *v3.Peer {
	same := &v4.Peer{
		Conf: &v4.PeerConf{
			PeerAsn: p.Conf.PeerASN, LocalAsn: p.Conf.LocalASN, NeighborAddress: text(p.Conf.NeighborAddress),
			NeighborInterface: p.Conf.NeighborInterface, PeerGroup: p.Conf.PeerGroup,
		},
		State: &v4.PeerState{
			PeerAsn: p.State.PeerASN, LocalAsn: p.State.LocalASN, NeighborAddress: text(p.State.NeighborAddress), PeerGroup: p.State.PeerGroup,
			SessionState: v4.PeerState_SessionState(p.State.SessionState) + 1, // the API has UNSPECIFIED before Idle
			AdminState:   p.State.AdminState, RouterId: text(p.State.RouterID),
		},
		Transport: &v4.Transport{
			LocalAddress: text(p.Transport.LocalAddress), LocalPort: p.Transport.LocalPort, RemotePort: p.Transport.RemotePort,
		},
	}
	same.State.RemoteCap, _ = apiutil.MarshalCapabilities(p.State.RemoteCap)
	same.State.LocalCap, _ = apiutil.MarshalCapabilities(p.State.LocalCap)
	out := &v3.Peer{}
	translate(same, out)
	return out
}

func text(a netip.Addr) string {
	if a.IsValid() {
		return a.String()
	}
	return ""
}
