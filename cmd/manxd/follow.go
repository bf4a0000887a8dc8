package main

import (
	"context"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/manxnet/manx/bgp"
	"github.com/manxnet/manx/bgp/password"
	"github.com/manxnet/manx/bgp/speaker"
	"github.com/manxnet/manx/dataplane"
	"github.com/manxnet/manx/dataplane/link"
	"github.com/manxnet/manx/dataplane/policy"
	"github.com/manxnet/manx/dataplane/route"
	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/model"
)

// watched are the kinds that decide what this node does.
var watched = []model.Kind{
	model.KindNode, model.KindIPPool, model.KindBGPConfiguration, model.KindBGPPeer, model.KindBGPFilter, model.KindClusterInformation,
	model.KindFelixConfiguration, model.KindWorkloadEndpoint, model.KindBlockAffinity,
}

// watchedForPolicy are the further kinds that decide about its packet filter.
var watchedForPolicy = func() []model.Kind {
	var list []model.Kind
	for _, k := range policy.Kinds {
		if info, ok := model.Lookup(k); ok && !info.Kubernetes && !slices.Contains(watched, k) {
			list = append(list, k)
		}
	}
	return list
}()

const (
	// retryAfter is how soon a speaker that could not do everything is told again.
	retryAfter = time.Second
	// passwordPoll is how often passwords in files are looked at again when nothing tells that they changed.
	passwordPoll = 10 * time.Second
	// routeBatch bounds how many routes go from the speaker to the kernel side at once.
	routeBatch = 4096
)

// follower carries what the datastore and BGP say to those who act on it.
type follower struct {
	node       string
	routerID   string
	clusterIPs string
	prefix     string // of workloads' interfaces
	passwords  *password.Folder
	refuse     bgp.RefuseSettings
	connected  *connectedSubnets
	log        *zap.Logger

	tables  *datastore.Tables
	speaker *speaker.Speaker
	agent   *dataplane.HostAgent
	policy  *dataplane.PolicyAgent // nil: policy is not this daemon's business

	desired atomic.Pointer[bgp.Desired]
	changed atomic.Pointer[time.Time] // when desired was stored
	failure string                    // of the last attempt to configure the speaker, as logged

	handing sync.Mutex // states reach the agents in the order in which they are made

	passwordsChanged chan struct{} // holds one token when passwords may have changed
}

// lookAtPasswords makes passwords be read again soon. It does not wait.
func (f *follower) lookAtPasswords() {
	select {
	case f.passwordsChanged <- struct{}{}:
	default:
	}
}

// lookAtLinks follows changes of interfaces and addresses of this host. It does not wait.
func (f *follower) lookAtLinks() {
	f.connected.lookAgain()
	if f.policy != nil {
		f.policy.LookAtInterfaces()
	}
}

// waitForSnapshot waits for another snapshot, but not longer than until a time, or until passwords may have changed: then
// it returns the one that was seen.
func (f *follower) waitForSnapshot(ctx context.Context, seen *datastore.Snapshot, until time.Time) *datastore.Snapshot {
	newer := f.tables.Changed()
	if s := f.tables.Snapshot(); s != seen {
		return s
	}
	timer := time.NewTimer(time.Until(until))
	defer timer.Stop()
	select {
	case <-newer:
		return f.tables.Snapshot()
	case <-f.passwordsChanged:
	case <-timer.C:
	case <-ctx.Done():
	}
	return seen
}

// Desired is what the speaker was last told.
func (f *follower) Desired() bgp.Desired {
	if d := f.desired.Load(); d != nil {
		return *d
	}
	return bgp.Desired{}
}

// followDatastore hands each new snapshot to the agent, and to the speaker if it concerns BGP.
func (f *follower) followDatastore(ctx context.Context) error {
	snapshot, err := f.tables.WaitInSync(ctx)
	if err != nil {
		return err
	}
	f.hand(dataplane.State{Reader: snapshot, All: true}, snapshot)
	again := time.Now().Add(f.configure(ctx, snapshot))
	for {
		next := f.waitForSnapshot(ctx, snapshot, again)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if next == snapshot { // passwords may have changed, or the speaker has something left to do
			again = time.Now().Add(f.configure(ctx, snapshot))
			continue
		}
		var changed []model.Key
		concerned := false
		for c := range next.Changes(snapshot) {
			changed = append(changed, c.Key)
			concerned = concerned || f.concernsBGP(c)
		}
		snapshot = next
		f.hand(dataplane.State{Reader: snapshot, Changed: changed}, snapshot)
		if concerned {
			again = time.Now().Add(f.configure(ctx, snapshot))
		}
	}
}

// concernsBGP keeps the pods and blocks of other nodes, which are most of what changes in a cluster, from having the
// sessions computed again.
func (f *follower) concernsBGP(c datastore.Change) bool {
	if !slices.Contains(watched, c.Key.Kind) {
		return false
	}
	switch c.Key.Kind {
	case model.KindClusterInformation:
		return false
	case model.KindBlockAffinity:
		a, ok := c.Key.Affinity()
		return ok && (a.Host == f.node || f.Desired().RefusesByBlocks())
	case model.KindWorkloadEndpoint:
		return slices.ContainsFunc([]*model.Object{c.Old, c.New}, func(o *model.Object) bool {
			if o == nil {
				return false
			}
			w, ok := o.Value.(*model.WorkloadEndpoint)
			return ok && w.Spec.Node == f.node
		})
	}
	return true
}

// configure tells the speaker what it should do; it returns when to do so again if nothing changes before.
func (f *follower) configure(ctx context.Context, snapshot *datastore.Snapshot) time.Duration {
	d := bgp.Compute(bgp.Input{Reader: snapshot, Node: f.node, RouterID: f.routerID, ClusterIPs: f.clusterIPs,
		InterfacePrefix: f.prefix, Passwords: f.passwords, Refuse: f.refuse, Connected: f.connected.list()})
	if before := f.Desired(); d.Global.LocalAS == 0 && before.Global.LocalAS != 0 {
		// Our Node was deleted or spoilt. That is no reason to cut the node off.
		before.Notices = []bgp.Notice{{Object: "Node/" + f.node, Reason: "is not there or cannot be used any more: BGP is kept as it was"}}
		f.desired.Store(&before)
		f.log.Error("the Node of this node is not there or cannot be used any more: BGP is kept as it was", zap.String("node", f.node))
		return time.Hour
	}
	f.logNotices(f.Desired().Notices, d.Notices)
	f.desired.Store(&d)
	f.hand(dataplane.State{}, snapshot)
	now := time.Now()
	f.changed.Store(&now)
	if err := f.speaker.Set(ctx, d); err != nil {
		if text := err.Error(); text != f.failure {
			f.failure = text
			f.log.Error("BGP is not as it should be, trying again", zap.Error(err))
		}
		return retryAfter
	}
	f.failure = ""
	if f.passwords.BeingWritten() {
		return retryAfter
	}
	return passwordPoll
}

// logNotices logs the notices that were not there before: the log then says when a password could not be read.
func (f *follower) logNotices(before, now []bgp.Notice) {
	for _, n := range now {
		if !slices.Contains(before, n) {
			f.log.Warn("BGP notice", zap.String("object", n.Object), zap.String("reason", n.Reason))
		}
	}
}

// staticRoutes translates the routes to peers.
func staticRoutes(statics []bgp.Static) []route.Static {
	list := make([]route.Static, len(statics))
	for i, s := range statics {
		list[i] = route.Static{Prefix: s.Prefix, Via: s.Via}
	}
	return list
}

// peeringAddresses translates the addresses towards workloads.
func peeringAddresses(peerings []bgp.Peering) []link.Peering {
	list := make([]link.Peering, len(peerings))
	for i, p := range peerings {
		list[i] = link.Peering(p)
	}
	return list
}

// followBGP carries learned routes to the kernel side.
func (f *follower) followBGP(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-f.speaker.Changed():
		}
		for routes := f.speaker.Take(routeBatch); len(routes) > 0; routes = f.speaker.Take(routeBatch) {
			learned := make([]route.Learned, len(routes))
			var hops []netip.Addr
			for i, r := range routes {
				learned[i] = learnedRoute(r, hops)
				hops = learned[i].NextHops
			}
			f.agent.Learn(learned)
		}
		f.hand(dataplane.State{}, f.tables.Snapshot())
	}
}

// learnedRoute translates r. Routes that follow each other mostly have the same next hops: before, those of the last
// one, serve both then.
func learnedRoute(r bgp.Route, before []netip.Addr) route.Learned {
	l := route.Learned{Prefix: r.Prefix, Metric: r.Metric}
	if slices.EqualFunc(r.Paths, before, func(p bgp.Path, nh netip.Addr) bool { return p.NextHop == nh }) {
		l.NextHops = before
		return l
	}
	for _, p := range r.Paths { // sorted by next hop
		if n := len(l.NextHops); n == 0 || l.NextHops[n-1] != p.NextHop {
			l.NextHops = append(l.NextHops, p.NextHop)
		}
	}
	return l
}

// hand hands a state to the agents, completed with what has been decided for BGP.
func (f *follower) hand(s dataplane.State, snapshot *datastore.Snapshot) {
	f.handing.Lock()
	defer f.handing.Unlock()
	d := f.Desired()
	s.Statics, s.Peering = staticRoutes(d.Statics), peeringAddresses(d.Peering)
	s.DatastoreSynced = snapshot.InSync()
	s.BGPSynced, _ = f.speaker.Synced()
	f.agent.SetState(s)
	if f.policy != nil && s.Reader != nil {
		f.policy.SetState(s)
	}
}
