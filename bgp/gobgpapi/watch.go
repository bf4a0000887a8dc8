package gobgpapi

import (
	"context"
	"net/netip"
	"sync"
	"time"

	v3 "github.com/osrg/gobgp/v3/api"
	v4 "github.com/osrg/gobgp/v4/api"
	"github.com/osrg/gobgp/v4/pkg/apiutil"
	gobgp "github.com/osrg/gobgp/v4/pkg/packet/bgp"
	"github.com/osrg/gobgp/v4/pkg/server"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/manxnet/manx/bgp/apiguard"
)

// replacedCheck is how often a watch checks whether its server was replaced.
const replacedCheck = time.Second

// Watches that one user, and all but root together, may have open.
const (
	watchesEach   = 8
	watchesOthers = 8
)

// WatchEvent sends changes of peers and routes until the caller hangs up. For peers it first sends INIT for each and
// END_OF_INIT, then STATE for each change. A caller who falls too far behind is cut off.
func (s *Service) WatchEvent(r *v3.WatchEventRequest, stream v3.GobgpApi_WatchEventServer) error {
	b, err := s.server()
	if err != nil {
		return err
	}
	options, err := watchOptions(r)
	if err != nil {
		return err
	}
	uid := apiguard.CallerOf(stream.Context()).UID
	release, ok := s.watches.Take(uid)
	if !ok {
		return status.Errorf(codes.ResourceExhausted,
			"user ID %d has too many watches: at most %d, and %d for all users but root",
			uid, watchesEach, watchesOthers)
	}
	defer release()
	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel()
	w := newWatch(stream, int(r.BatchSize))
	err = b.WatchEvent(ctx, server.WatchEventMessageCallbacks{
		OnPathUpdate: w.paths,
		OnBestPath:   w.paths,
		OnPathEor:    func(p *apiutil.Path, at time.Time) { w.paths([]*apiutil.Path{p}, at) },
		OnPeerUpdate: w.peer,
	}, options...)
	if err != nil {
		return status.Errorf(codes.Aborted, "watch: %v", err)
	}
	for _, f := range r.GetTable().GetFilters() {
		if err := s.sendCurrent(ctx, b, f, w); err != nil {
			return err
		}
	}
	return w.run(ctx, func() error {
		if s.speaker.Server() != b {
			return status.Error(codes.Unavailable,
				"the BGP speaker was restarted, because AS number, router ID or listener changed; watch again")
		}
		return nil
	})
}

// sendCurrent sends the routes that a filter selects at the start. Changes during that time are sent after them.
func (s *Service) sendCurrent(ctx context.Context, b *server.BgpServer, f *v3.WatchEventRequest_Table_Filter,
	w *watch) error {
	if !f.Init || f.Type == v3.WatchEventRequest_Table_Filter_EOR {
		return nil
	}
	release, err := s.tables.listing(ctx, nil)
	if err != nil {
		return err
	}
	defer release()
	from, _ := netip.ParseAddr(f.PeerAddress)
	var batch []*apiutil.Path
	add := func(d destination) error {
		for _, p := range d.paths {
			switch {
			case f.Type == v3.WatchEventRequest_Table_Filter_BEST && !p.Best:
			case from.IsValid() && p.PeerAddress != from:
			default:
				batch = append(batch, p)
			}
		}
		if len(batch) < w.batch {
			return nil
		}
		err := w.send(batch)
		batch = nil
		return err
	}
	requests := []apiutil.ListPathRequest{{TableType: v4.TableType_TABLE_TYPE_GLOBAL}}
	if f.Type == v3.WatchEventRequest_Table_Filter_ADJIN {
		requests = nil
		for _, st := range s.speaker.Sessions() {
			if peer := st.Session.Address.Unmap(); st.State == "Established" && (!from.IsValid() || peer == from) {
				received := apiutil.ListPathRequest{TableType: v4.TableType_TABLE_TYPE_ADJ_IN, Name: peer.String()}
				requests = append(requests, received)
			}
		}
	}
	for _, r := range requests {
		for _, r.Family = range []gobgp.Family{gobgp.RF_IPv4_UC, gobgp.RF_IPv6_UC} {
			if err := s.tables.each(ctx, b, r, add); err != nil {
				return err
			}
		}
	}
	return w.send(batch)
}

// watchOptions selects the events that GoBGP reports. GoBGP would send the current state as one event; sendCurrent
// sends it instead.
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
			options = append(options, server.WatchBestPath(false))
		case v3.WatchEventRequest_Table_Filter_ADJIN:
			options = append(options, server.WatchUpdate(false, f.PeerAddress, f.PeerGroup))
		case v3.WatchEventRequest_Table_Filter_POST_POLICY:
			options = append(options, server.WatchPostUpdate(false, f.PeerAddress, f.PeerGroup))
		case v3.WatchEventRequest_Table_Filter_EOR:
			options = append(options, server.WatchEor(f.Init))
		default:
			return nil, status.Errorf(codes.InvalidArgument, "unknown filter type %s", f.Type)
		}
	}
	if len(options) == 0 {
		return nil, status.Error(codes.InvalidArgument, "nothing to watch: select peers or a table")
	}
	return options, nil
}

// Routes in one message by default and at most, and how many may wait for the caller.
const (
	watchBatch = 256
	watchQueue = 32 << 10
)

// watch sends the events that GoBGP reports. Its callbacks must not block: GoBGP queues untaken events without a bound.
type watch struct {
	stream v3.GobgpApi_WatchEventServer
	batch  int
	limit  int

	mu      sync.Mutex
	queue   []watchEvent
	waiting int // routes and peers in queue
	behind  bool
	wake    chan struct{}
}

// watchEvent is about routes or about a peer.
type watchEvent struct {
	paths []*apiutil.Path
	peer  *apiutil.WatchEventMessage_PeerEvent
}

func newWatch(stream v3.GobgpApi_WatchEventServer, batch int) *watch {
	if batch < 1 || batch > watchBatch {
		batch = watchBatch
	}
	return &watch{stream: stream, batch: batch, limit: watchQueue, wake: make(chan struct{}, 1)}
}

func (w *watch) paths(list []*apiutil.Path, _ time.Time) {
	if len(list) > 0 {
		w.put(watchEvent{paths: list}, len(list))
	}
}

func (w *watch) peer(ev *apiutil.WatchEventMessage_PeerEvent, _ time.Time) {
	w.put(watchEvent{peer: ev}, 1)
}

func (w *watch) put(e watchEvent, n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.behind:
		return
	case w.waiting+n > w.limit:
		w.behind, w.queue = true, nil
	default:
		w.queue = append(w.queue, e)
		w.waiting += n
	}
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// take returns the waiting events.
func (w *watch) take() (queue []watchEvent, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.behind {
		return nil, status.Errorf(codes.ResourceExhausted,
			"cut off: the caller is more than %d routes behind; watch again", w.limit)
	}
	queue, w.queue, w.waiting = w.queue, nil, 0
	return queue, nil
}

// run sends until the caller hangs up, is cut off, or check finds a reason to end.
func (w *watch) run(ctx context.Context, check func() error) error {
	tick := time.NewTicker(replacedCheck)
	defer tick.Stop()
	for {
		queue, err := w.take()
		if err != nil {
			return err
		}
		if err := w.sendAll(queue); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-w.wake:
		case <-tick.C:
			if err := check(); err != nil {
				return err
			}
		}
	}
}

// sendAll sends events in their order, routes of several events in one message.
func (w *watch) sendAll(queue []watchEvent) error {
	var batch []*apiutil.Path
	for i, e := range queue {
		queue[i] = watchEvent{} // free the sent event
		if e.peer != nil || len(batch) >= w.batch {
			if err := w.send(batch); err != nil {
				return err
			}
			batch = nil
		}
		batch = append(batch, e.paths...)
		if e.peer != nil {
			event := &v3.WatchEventResponse_Peer{Peer: newPeerEvent(e.peer)}
			if err := w.stream.Send(&v3.WatchEventResponse{Event: event}); err != nil {
				return err
			}
		}
	}
	return w.send(batch)
}

// send sends routes.
func (w *watch) send(list []*apiutil.Path) error {
	for len(list) > 0 {
		n := min(len(list), w.batch)
		event := &v3.WatchEventResponse_TableEvent{}
		for _, p := range list[:n] {
			event.Paths = append(event.Paths, newPath(p, nil))
		}
		if err := w.stream.Send(&v3.WatchEventResponse{Event: &v3.WatchEventResponse_Table{Table: event}}); err != nil {
			return err
		}
		list = list[n:]
	}
	return nil
}

func newPeerEvent(ev *apiutil.WatchEventMessage_PeerEvent) *v3.WatchEventResponse_PeerEvent {
	types := v4.WatchEventResponse_PeerEvent_Type(0).Descriptor()
	return &v3.WatchEventResponse_PeerEvent{
		Type: v3.WatchEventResponse_PeerEvent_Type(
			translateEnum(types, v4.WatchEventResponse_PeerEvent_Type(ev.Type).Number(),
				v3.WatchEventResponse_PeerEvent_Type(0).Descriptor())),
		Peer: newPeer(&ev.Peer),
	}
}

// newPeer translates the peer of an event, which has fewer fields than ListPeer returns.
func newPeer(p *apiutil.Peer) *v3.Peer {
	same := &v4.Peer{
		Conf: &v4.PeerConf{
			PeerAsn: p.Conf.PeerASN, LocalAsn: p.Conf.LocalASN, NeighborAddress: text(p.Conf.NeighborAddress),
			NeighborInterface: p.Conf.NeighborInterface, PeerGroup: p.Conf.PeerGroup,
		},
		State: &v4.PeerState{
			PeerAsn: p.State.PeerASN, LocalAsn: p.State.LocalASN, NeighborAddress: text(p.State.NeighborAddress),
			PeerGroup:    p.State.PeerGroup,
			SessionState: v4.PeerState_SessionState(p.State.SessionState) + 1, // the API has UNSPECIFIED before Idle
			AdminState:   p.State.AdminState, RouterId: text(p.State.RouterID),
		},
		Transport: &v4.Transport{
			LocalAddress: text(p.Transport.LocalAddress), LocalPort: p.Transport.LocalPort,
			RemotePort: p.Transport.RemotePort,
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
