package server

import (
	"cmp"
	"context"
	"errors"
	"net/netip"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/manxnet/manx/bgp"
	"github.com/manxnet/manx/bgp/speaker"
	"github.com/manxnet/manx/dataplane"
	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/model"
	registration "github.com/manxnet/manx/datastore/node"
	manxv1 "github.com/manxnet/manx/proto/manx/v1"
)

// resetKinds are the words for resets, and the effects of each on the session, in order.
var resetKinds = map[string][]speaker.ResetKind{
	"soft-in":  {speaker.ResetSoftIn},
	"soft-out": {speaker.ResetSoftOut},
	"soft":     {speaker.ResetSoftIn, speaker.ResetSoftOut},
	"hard":     {speaker.ResetHard},
}

// ResetPeer implements manxv1.ManxServer.
func (v *BGPView) ResetPeer(ctx context.Context, r *manxv1.ResetPeerRequest) (*manxv1.ResetPeerResponse, error) {
	kinds, ok := resetKinds[r.GetKind()]
	if !ok {
		return nil, status.Errorf(codes.InvalidArgument, "kind = %q: want soft-in, soft-out, soft or hard", r.GetKind())
	}
	bgp, err := v.speaker()
	if err != nil {
		return nil, err
	}
	addr, err := findPeer(bgp, r.GetPeer())
	if err != nil {
		return nil, err
	}
	for _, kind := range kinds {
		switch err := bgp.ResetSession(ctx, addr, kind); {
		case errors.Is(err, speaker.ErrNotEstablished), errors.Is(err, speaker.ErrResetting):
			return nil, status.Error(codes.FailedPrecondition, err.Error())
		case errors.Is(err, speaker.ErrTooOften):
			return nil, status.Error(codes.ResourceExhausted,
				err.Error()+": each soft reset looks at all routes of the session")
		case err != nil:
			return nil, status.Error(codes.Unavailable, err.Error())
		}
	}
	return &manxv1.ResetPeerResponse{Peer: addr.String()}, nil
}

// ClearPeer implements manxv1.ManxServer.
func (v *BGPView) ClearPeer(_ context.Context, r *manxv1.ClearPeerRequest) (*manxv1.ClearPeerResponse, error) {
	bgp, err := v.speaker()
	if err != nil {
		return nil, err
	}
	addr, err := findPeer(bgp, r.GetPeer())
	if err != nil {
		return nil, err
	}
	before, ok := bgp.ClearSession(addr)
	if !ok {
		return nil, status.Errorf(codes.NotFound, "the session with %s is not wanted any more", addr)
	}
	return &manxv1.ClearPeerResponse{Peer: addr.String(), Flaps: before.Flaps, Restarts: before.Restarts}, nil
}

// Drain implements manxv1.ManxServer.
func (v *NodeView) Drain(ctx context.Context, r *manxv1.DrainRequest) (*manxv1.DrainResponse, error) {
	if len(r.GetPeers()) > 0 {
		return v.drainPeers(ctx, r)
	}
	if off := v.bgp.now().Off; off != "" {
		return nil, status.Error(codes.FailedPrecondition, off+": a drain withdraws the routes that a node announces, "+
			"and this one announces none")
	}
	timeout := model.DefaultDrainTimeout
	if r.TimeoutMs != nil {
		if timeout = time.Duration(r.GetTimeoutMs()) * time.Millisecond; timeout < 0 ||
			r.GetTimeoutMs() > longestDrain.Milliseconds() {
			return nil, status.Errorf(codes.InvalidArgument, "timeout_ms = %d: want 0 to %d", r.GetTimeoutMs(),
				longestDrain.Milliseconds())
		}
	}
	before, err := v.writeDrain(r.GetNode(), func(store datastore.Store, name string) (model.DrainPhase, error) {
		return registration.RequestDrain(ctx, store, name, timeout)
	})
	return &manxv1.DrainResponse{Before: string(before)}, err
}

// longestDrain bounds how long a drain waits for traffic to leave.
const longestDrain = 7 * 24 * time.Hour

// Undrain implements manxv1.ManxServer.
func (v *NodeView) Undrain(ctx context.Context, r *manxv1.UndrainRequest) (*manxv1.UndrainResponse, error) {
	if len(r.GetPeers()) > 0 {
		return v.undrainPeers(ctx, r)
	}
	before, err := v.writeDrain(r.GetNode(), func(store datastore.Store, name string) (model.DrainPhase, error) {
		return registration.CancelDrain(ctx, store, name)
	})
	return &manxv1.UndrainResponse{Before: string(before)}, err
}

func (v *NodeView) drainPeers(ctx context.Context, r *manxv1.DrainRequest) (*manxv1.DrainResponse, error) {
	if r.TimeoutMs != nil {
		return nil, status.Error(codes.InvalidArgument, "timeout_ms: the routes of a drained peer are not withdrawn")
	}
	if _, err := v.bgp.speaker(); err != nil {
		return nil, err
	}
	peers, err := bgp.PeersToDrain(v.bgp.desired().Sessions, r.GetPeers())
	if err != nil {
		return nil, status.Error(codes.NotFound, err.Error())
	}
	before, err := v.writeDrain(r.GetNode(), func(store datastore.Store, name string) (model.DrainPhase, error) {
		return registration.RequestPeerDrain(ctx, store, name, peers)
	})
	return &manxv1.DrainResponse{Before: string(before), Peers: texts(peers)}, err
}

func (v *NodeView) undrainPeers(ctx context.Context, r *manxv1.UndrainRequest) (*manxv1.UndrainResponse, error) {
	var drained []netip.Addr
	if snapshot := v.datastore.snapshot(); snapshot != nil {
		if n := model.Get[model.Node](snapshot, model.ResourceKey(model.KindNode, v.node)); n != nil {
			drained, _ = n.DrainPeers()
		}
	}
	peers, err := bgp.PeersToUndrain(v.bgp.desired().Sessions, drained, r.GetPeers())
	if err != nil {
		return nil, status.Error(codes.NotFound, err.Error())
	}
	before, err := v.writeDrain(r.GetNode(), func(store datastore.Store, name string) (model.DrainPhase, error) {
		return registration.CancelPeerDrain(ctx, store, name, peers)
	})
	return &manxv1.UndrainResponse{Before: string(before), Peers: texts(peers)}, err
}

// writeDrain writes the request for a drain, or removes it, if the call is for this node. It returns the phase before.
func (v *NodeView) writeDrain(
	name string, write func(datastore.Store, string) (model.DrainPhase, error),
) (model.DrainPhase, error) {
	own := v.node
	store := v.datastore.now().Store
	switch {
	case name != "" && name != own:
		return "", status.Errorf(codes.InvalidArgument,
			"node = %q: this is the daemon of node %q, which drains no other", name, own)
	case store == nil:
		return "", status.Error(codes.Unavailable, "manxd is starting: the datastore is not connected yet")
	}
	before, err := write(store, own)
	if err != nil {
		return "", status.Error(codes.Unavailable, "the Node cannot be written: "+err.Error())
	}
	return before, nil
}

// retryPatience is how long the parts of the daemon may take to try again.
const retryPatience = 30 * time.Second

// retries retries the failures of every registered keeper.
type retries struct {
	datastore *DatastoreView
	dataplane *DataplaneView
	policy    *PolicyView
}

// Retry implements manxv1.ManxServer. Objects come first, so that newly usable ones are programmed.
func (x *retries) Retry(ctx context.Context, _ *manxv1.RetryRequest) (*manxv1.RetryResponse, error) {
	known, agent, enforcer := x.datastore.now(), x.dataplane.now().Agent, x.policy.now().Agent
	switch {
	case agent == nil:
		return nil, status.Error(codes.Unavailable, "manxd is starting: the dataplane does not run yet")
	case known.Tables == nil || known.Store == nil:
		return nil, status.Error(codes.Unavailable, "manxd waits for the datastore, and tries that by itself")
	}
	ctx, cancel := context.WithTimeout(ctx, retryPatience)
	defer cancel()
	objects, unread := known.Tables.Reread(ctx, known.Store)
	list, err := agent.Retry(ctx)
	if err == nil && enforcer != nil {
		var policy dataplane.Retried
		policy, err = enforcer.Retry(ctx)
		list = append(list, policy)
	}
	if err != nil {
		return nil, status.Error(codes.Unavailable, err.Error())
	}
	answer := &manxv1.RetryResponse{}
	for _, p := range list {
		answer.Parts = append(answer.Parts, &manxv1.RetriedPart{Name: p.Part, Failed: uint32(p.Failed),
			Failing: uint32(p.Failing), Reason: p.Reason})
	}
	part := &manxv1.RetriedPart{Name: "objects", Failed: uint32(objects.Quarantined), Failing: uint32(objects.Still),
		Reason: objects.Reason}
	if unread != nil {
		part.Reason = cmp.Or(unread.Error(), part.Reason)
	}
	answer.Parts = append(answer.Parts, part)
	return answer, nil
}
