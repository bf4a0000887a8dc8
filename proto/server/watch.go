package server

import (
	"context"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/manxnet/manx/bgp/speaker"
	"github.com/manxnet/manx/dataplane"
	"github.com/manxnet/manx/dataplane/route"
	manxv1 "github.com/manxnet/manx/proto/manx/v1"
)

// Watch implements manxv1.ManxServer. It compares the present state with the sent one: at once when a BGP session
// changes, and regularly. A state that lasts shorter may be missed, the last one never.
func (o *overview) Watch(r *manxv1.WatchRequest, stream grpc.ServerStreamingServer[manxv1.WatchResponse]) error {
	ctx := stream.Context()
	if off := o.server.BGP.now().Off; off != "" && r.GetPeers() {
		return status.Error(codes.FailedPrecondition, off)
	}
	if !r.GetStatus() && !r.GetPeers() && !r.GetRoutes() {
		r = &manxv1.WatchRequest{Status: true, Peers: true, Routes: true}
	}
	w := watcher{overview: o, request: r, send: stream.Send, peers: map[string]*manxv1.Peer{},
		routes: map[string]*manxv1.Route{}}
	defer w.close()
	if err := w.update(); err != nil {
		return err
	}
	if err := stream.Send(&manxv1.WatchResponse{Event: &manxv1.WatchResponse_Synced{Synced: true}}); err != nil {
		return err
	}
	tick := time.NewTicker(o.server.config.Poll)
	defer tick.Stop()
	var sessions wakeUp
	for {
		sessions.follow(ctx, r.GetPeers(), o.server.BGP.now().Speaker)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		case _, ok := <-sessions.events:
			if !ok {
				sessions = wakeUp{gone: sessions.bgp} // the speaker has ended
			}
		}
		if err := w.update(); err != nil {
			return err
		}
	}
}

// wakeUp follows the session events of a speaker that may not run yet.
type wakeUp struct {
	bgp, gone BGP
	events    <-chan speaker.SessionEvent
}

func (u *wakeUp) follow(ctx context.Context, wanted bool, b BGP) {
	if wanted && b != nil && b != u.bgp && b != u.gone {
		u.bgp, u.events = b, b.WatchSessions(ctx)
	}
}

// watcher has the state sent to one client.
type watcher struct {
	*overview
	request *manxv1.WatchRequest
	send    func(*manxv1.WatchResponse) error

	status *manxv1.GetStatusResponse // as sent
	peers  map[string]*manxv1.Peer
	routes map[string]*manxv1.Route

	agent   Dataplane // whose routes are followed; nil for none
	changes *dataplane.RouteChanges
}

// update sends the differences.
func (w *watcher) update() error {
	if w.request.GetStatus() {
		now := w.overview.status()
		now.Datastore.Kinds = nil // each change of an object is an answer about its kind
		if !proto.Equal(now, w.status) {
			w.status = now
			if err := w.send(&manxv1.WatchResponse{Event: &manxv1.WatchResponse_Status{Status: now}}); err != nil {
				return err
			}
		}
	}
	if w.request.GetPeers() {
		if err := w.updatePeers(); err != nil {
			return err
		}
	}
	if w.request.GetRoutes() {
		return w.updateRoutes()
	}
	return nil
}

// updatePeers ignores the time of the next attempt and of the last failure: a change of these alone is not sent.
func (w *watcher) updatePeers() error {
	rows := w.server.BGP.peers()
	for _, p := range rows {
		p.NextAttemptUnixMs, p.LastErrorAtUnixMs = 0, 0
	}
	return update(w.peers, rows, (*manxv1.Peer).GetAddress,
		func(p *manxv1.Peer) error {
			return w.send(&manxv1.WatchResponse{Event: &manxv1.WatchResponse_Peer{Peer: p}})
		},
		func(address string) error {
			return w.send(&manxv1.WatchResponse{Event: &manxv1.WatchResponse_PeerGone{PeerGone: address}})
		})
}

func (w *watcher) updateRoutes() error {
	w.followRoutes()
	var list []route.Status
	all := true
	if w.changes != nil {
		list, all = w.changes.Take()
	}
	changed := func(r *manxv1.Route) error {
		return w.send(&manxv1.WatchResponse{Event: &manxv1.WatchResponse_Route{Route: r}})
	}
	gone := func(prefix string) error {
		return w.send(&manxv1.WatchResponse{Event: &manxv1.WatchResponse_RouteGone{RouteGone: prefix}})
	}
	if all {
		slices.SortFunc(list, func(a, b route.Status) int { return a.Prefix.Compare(b.Prefix) })
		rows := make([]*manxv1.Route, len(list))
		for i, r := range list {
			rows[i] = routeRow(r)
		}
		return update(w.routes, rows, (*manxv1.Route).GetPrefix, changed, gone)
	}
	for _, r := range list {
		if err := updateRow(w.routes, text(r.Prefix), r, changed, gone); err != nil {
			return err
		}
	}
	return nil
}

// updateRow is update for one row of which something may have changed.
func updateRow(sent map[string]*manxv1.Route, key string, r route.Status, changed func(*manxv1.Route) error,
	gone func(string) error) error {
	old, there := sent[key]
	switch {
	case r.Gone() && there:
		delete(sent, key)
		return gone(key)
	case r.Gone():
		return nil
	}
	row := routeRow(r)
	if there && proto.Equal(old, row) {
		return nil
	}
	sent[key] = row
	return changed(row)
}

// followRoutes follows those of the agent that there is now.
func (w *watcher) followRoutes() {
	agent := w.server.Dataplane.now().Agent
	if agent == w.agent {
		return
	}
	w.close()
	if w.agent = agent; agent != nil {
		w.changes = agent.FollowRoutes()
	}
}

func (w *watcher) close() {
	if w.changes != nil {
		w.changes.Close()
	}
	w.agent, w.changes = nil, nil
}

// update makes sent equal to rows and calls changed for each row that is new or different, and gone for each that is
// not there any more.
func update[M proto.Message](
	sent map[string]M, rows []M, key func(M) string, changed func(M) error, gone func(string) error,
) error {
	present := make(map[string]bool, len(rows))
	for _, row := range rows {
		k := key(row)
		present[k] = true
		if old, ok := sent[k]; ok && proto.Equal(old, row) {
			continue
		}
		sent[k] = row
		if err := changed(row); err != nil {
			return err
		}
	}
	for k := range sent {
		if present[k] {
			continue
		}
		delete(sent, k)
		if err := gone(k); err != nil {
			return err
		}
	}
	return nil
}
