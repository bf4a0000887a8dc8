package follow

import (
	"context"
	"iter"
	"net/netip"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/manxnet/manx/bgp"
	"github.com/manxnet/manx/dataplane"
	"github.com/manxnet/manx/dataplane/hoststate"
	"github.com/manxnet/manx/dataplane/reconcile"
	"github.com/manxnet/manx/dataplane/route"
	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/model"
)

// configure decides BGP, gives the agents their part of the decision, and configures the speaker. It returns the
// interval between checks whether to decide again, 0 if only changes require it. With all, which is the first decision
// from the datastore, the agents evaluate all objects.
func (f *Follower) configure(ctx context.Context, snapshot *datastore.Snapshot, all bool) time.Duration {
	d, held := f.decide(snapshot, !all)
	f.held = held
	f.setState(all, func(s *dataplane.State) {
		s.Reader, s.All, s.DatastoreSynced, s.Last = snapshot, all, snapshot.InSync(), false
		s.Statics, s.Peering, s.Peers = staticRoutes(d.Statics), peeringAddresses(d.Peering), peers(d.Sessions)
	})
	if held {
		return 0
	}
	f.keep(snapshot, d)
	return f.set(ctx, d)
}

// configureFromLast is configure for the last state of an earlier run. The agents get its nodes, pools and blocks, and
// no workloads: those of this host stay in the kernel as they are until the datastore has been read.
func (f *Follower) configureFromLast(ctx context.Context) time.Duration {
	d, _ := f.decide(f.last, false)
	f.setState(true, func(s *dataplane.State) {
		s.Reader, s.All, s.DatastoreSynced, s.Last = withoutWorkloads{f.last}, true, false, true
		s.Statics, s.Peering, s.Peers = staticRoutes(d.Statics), peeringAddresses(d.Peering), peers(d.Sessions)
	})
	return f.set(ctx, d)
}

// withoutWorkloads is a Reader without WorkloadEndpoints.
type withoutWorkloads struct{ model.Reader }

// Get implements model.Reader.
func (w withoutWorkloads) Get(k model.Key) *model.Object {
	if k.Kind == model.KindWorkloadEndpoint {
		return nil
	}
	return w.Reader.Get(k)
}

// All implements model.Reader.
func (w withoutWorkloads) All(kind model.Kind) iter.Seq[*model.Object] {
	if kind == model.KindWorkloadEndpoint {
		return func(func(*model.Object) bool) {}
	}
	return w.Reader.All(kind)
}

// set configures the speaker. Its result is that of configure.
func (f *Follower) set(ctx context.Context, d bgp.Desired) time.Duration {
	period := f.config.Passwords.EndDecision()
	if err := f.config.Speaker.Set(ctx, d); err != nil {
		if text := err.Error(); text != f.failure {
			f.failure = text
			f.config.Log.Error("BGP is not as it should be, trying again", zap.Error(err))
		}
		return retryAfter
	}
	f.failure = ""
	return period
}

// decide computes the configuration of BGP. If this host's Node was deleted, is invalid or has lost its IPv4 address
// since an earlier decision from the datastore, it keeps that one, which keeps the node connected. The address is the
// router ID: without it, all sessions would restart, and again when registration has restored it.
func (f *Follower) decide(r model.Reader, again bool) (d bgp.Desired, held bool) {
	if f.off {
		return bgp.Desired{}, false
	}
	in := f.config.Settings
	in.Reader, in.Passwords, in.Connected = r, f.config.Passwords, f.config.Connected()
	in.Kernel = f.config.Kernel()
	if f.config.Moves != nil {
		in.Moves = f.config.Moves()
	}
	d = bgp.Compute(in)
	before, at := f.Decided()
	if why := lost(before, d); why != "" && again {
		before.Notices = []bgp.Notice{{Object: "Node/" + in.Node, Reason: why + ": BGP is kept as it was"}}
		f.desired.Store(&decision{before, at})
		f.config.Log.Error("the Node of this node "+why+": BGP is kept as it was", zap.String("node", in.Node))
		return before, true
	}
	f.logNotices(before.Notices, d.Notices)
	f.desired.Store(&decision{d, time.Now()})
	return d, false
}

// lost returns what this host's Node lacks since a decision, empty if nothing that BGP cannot do without.
func lost(before, now bgp.Desired) string {
	switch {
	case before.Global.LocalAS == 0:
		return ""
	case now.Global.LocalAS == 0:
		return "is not there or cannot be used any more"
	case before.IPv4.IsValid() && !now.IPv4.IsValid():
		return "has no IPv4 address any more (if that is meant, restart manxd)"
	}
	return ""
}

// logNotices logs new notices, so that the log shows when a password could not be read.
func (f *Follower) logNotices(before, now []bgp.Notice) {
	for _, n := range now {
		if !slices.Contains(before, n) {
			f.config.Log.Warn("BGP notice", zap.String("object", n.Object), zap.String("reason", n.Reason))
		}
	}
}

// staticRoutes converts the routes to peers.
func staticRoutes(statics []bgp.Static) []route.Static {
	list := make([]route.Static, len(statics))
	for i, s := range statics {
		list[i] = route.Static{Prefix: s.Prefix, Via: s.Via}
	}
	return list
}

// peeringAddresses converts the addresses towards workloads.
func peeringAddresses(peerings []bgp.Peering) []hoststate.Peering {
	list := make([]hoststate.Peering, len(peerings))
	for i, p := range peerings {
		list[i] = hoststate.Peering(p)
	}
	return list
}

// peers lists the peers that are no workloads of this host.
func peers(sessions []bgp.Session) (list []netip.Addr) {
	for _, s := range sessions {
		if s.Workload == "" {
			list = append(list, s.Address.WithZone(""))
		}
	}
	return list
}

// linger is the time for which followBGP collects routes in a burst of them. Each batch wakes the agents and costs the
// kernel's lock once.
const linger = 2 * time.Millisecond

// followBGP passes learned routes to the agents. It reports their completeness only after the routes.
func (f *Follower) followBGP(ctx context.Context) error {
	var burst reconcile.Burst
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-f.config.Speaker.Changed():
		}
		if burst.Continues(time.Now()) {
			time.Sleep(linger)
		}
		synced, _ := f.config.Speaker.Synced()
		n := f.passLearned()
		burst.Record(time.Now(), n)
		f.setState(false, func(s *dataplane.State) { s.BGPSynced = synced })
	}
}

// passLearned passes all learned routes that changed to the agents, and returns their number.
func (f *Follower) passLearned() (count int) {
	for {
		routes := f.config.Speaker.Take(routeBatch)
		if len(routes) == 0 {
			return count
		}
		count += len(routes)
		for _, a := range f.config.Agents {
			a.Learn(routes)
		}
	}
}
