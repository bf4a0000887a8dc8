// Package bgpstatus fills in CalicoNodeStatus objects with the sessions and routes of this node.
package bgpstatus

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"

	"github.com/manxnet/manx/bgp"
	"github.com/manxnet/manx/bgp/speaker"
	"github.com/manxnet/manx/daemon/deps"
	"github.com/manxnet/manx/dataplane/kernel"
	"github.com/manxnet/manx/dataplane/locrib"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/datastore/nodestatus"
	"github.com/manxnet/manx/proto/server"
)

// statusGrace is the time after a start in which sessions may come up before CalicoNodeStatus objects report them as
// down: a status that is written only once should not be outdated a moment later.
const statusGrace = 30 * time.Second

// Part fills in CalicoNodeStatus objects about this node.
type Part struct{ *nodestatus.Reporter }

// New returns the part for the sessions of a speaker. decided returns its configuration, and when it last changed.
// Without a speaker the objects say that BGP does not run.
func New(d deps.Deps, s *speaker.Speaker, decided func() (bgp.Desired, time.Time), version string) *Part {
	facts := nodeFacts{speaker: s, decided: decided, version: version, kernel: d.Kernel, started: time.Now()}
	return &Part{&nodestatus.Reporter{Store: d.Store, Node: d.Node.Name, Facts: facts.gather,
		Log: d.Log.Named("node-status"), Retry: time.Second}}
}

func (n *Part) Name() string                  { return "node-status" }
func (n *Part) Run(ctx context.Context) error { return n.Reporter.Run(ctx) }

// Notices report objects whose status is not written because they cannot be decoded.
func (n *Part) Notices() (list []server.Notice) {
	unusable := n.Unusable()
	for _, key := range slices.SortedFunc(maps.Keys(unusable), func(a, b model.Key) int {
		return strings.Compare(a.Name, b.Name)
	}) {
		list = append(list, server.Notice{Topic: "datastore", Subject: key.String(),
			Text: fmt.Sprintf("cannot be used, and is not filled in by its node: %v", unusable[key])})
	}
	return list
}

// nodeFacts collects the content of CalicoNodeStatus objects.
type nodeFacts struct {
	speaker *speaker.Speaker
	decided func() (bgp.Desired, time.Time)
	version string
	kernel  interface {
		ListRoutes(tables ...kernel.Table) ([]kernel.Route, error)
		ListLinks() ([]kernel.Link, error)
	}
	started time.Time
}

func (n nodeFacts) gather(routes bool) (nodestatus.Facts, error) {
	s := n.speaker
	if s == nil {
		return nodestatus.Facts{}, nil
	}
	if ready, _ := s.Ready(); !ready && time.Since(n.started) < statusGrace {
		return nodestatus.Facts{}, nodestatus.ErrNotYet
	}
	d, decided := n.decided()
	f := nodestatus.Facts{Running: s.Server() != nil, Version: "manx " + n.version, RouterID: d.Global.RouterID,
		Started: n.started, Reconfigured: decided}
	sessions := s.Sessions()
	f.Sessions = statusSessions(sessions)
	if !routes {
		return f, nil
	}
	inKernel, err := n.kernel.ListRoutes()
	if err != nil {
		return f, err
	}
	links, err := n.kernel.ListLinks()
	if err != nil {
		return f, err
	}
	f.Routes = statusRoutes(inKernel, links, s.Snapshot(), sessions, d.Originated)
	return f, nil
}

// statusSessions omits the sessions with workloads, as Calico does, which does not count them as peers of the node.
func statusSessions(sessions []speaker.SessionStatus) []nodestatus.Session {
	var list []nodestatus.Session
	for _, s := range sessions {
		if s.Session.Workload != "" {
			continue
		}
		x := nodestatus.Session{Peer: s.Session.Address, State: v3.BGPSessionState(s.State), Since: s.Since,
			Type: v3.BGPPeerTypeNodePeer}
		switch s.Session.Type {
		case bgp.SessionMesh:
			x.Type = v3.BGPPeerTypeNodeMesh
		case bgp.SessionGlobal:
			x.Type = v3.BGPPeerTypeGlobalPeer
		}
		if x.State == "" {
			x.State = v3.BGPSessionStateIdle
		}
		list = append(list, x)
	}
	return list
}

// statusRoutes lists the kernel's routes, which are used for forwarding, and the learned routes that are not in the
// kernel.
func statusRoutes(inKernel []kernel.Route, links []kernel.Link, learned []locrib.Route,
	sessions []speaker.SessionStatus, own []bgp.Origin) []nodestatus.Route {
	t := routeFacts{interfaces: map[int]string{}, mesh: map[netip.Addr]bool{}, paths: map[netip.Prefix][]locrib.Path{}}
	for _, l := range links {
		t.interfaces[l.Index] = l.Name
	}
	for _, s := range sessions {
		t.mesh[s.Session.Address] = s.Session.Type == bgp.SessionMesh
	}
	for _, r := range learned {
		t.paths[r.Prefix] = r.Paths
	}
	var list []nodestatus.Route
	known, installed := map[netip.Prefix]bool{}, map[netip.Prefix]bool{}
	for _, r := range inKernel {
		if a := r.Dst.Addr(); a.Is6() && (a.IsLinkLocalUnicast() || a.IsMulticast()) {
			continue // of every interface; BGP has nothing to do with them
		}
		known[r.Dst] = true
		installed[r.Dst] = installed[r.Dst] || t.learned(r) && len(r.NextHops) > 0
		list = append(list, t.used(r)...)
	}
	for prefix, from := range t.paths {
		for _, p := range from {
			if !installed[prefix] {
				list = append(list, nodestatus.Route{Prefix: prefix, Gateway: p.NextHop, Source: t.source(p.Peer),
					Peer: p.Peer})
			}
		}
	}
	for _, o := range own {
		if !o.Withheld && !known[o.Prefix] {
			list = append(list, nodestatus.Route{Prefix: o.Prefix, Source: v3.RouteSourceTypeStatic})
		}
	}
	return list
}

// routeFacts determines gateways, interfaces and sources of the kernel's routes.
type routeFacts struct {
	interfaces map[int]string
	mesh       map[netip.Addr]bool
	paths      map[netip.Prefix][]locrib.Path // as learned
}

// learned reports whether BGP created a route.
func (t routeFacts) learned(r kernel.Route) bool {
	return r.Type == kernel.Unicast && r.Protocol == kernel.ProtocolBIRD && len(t.paths[r.Dst]) > 0
}

// source returns the type of the peer from which a route was learned.
func (t routeFacts) source(peer netip.Addr) v3.CalicoNodeRouteSourceType {
	if t.mesh[peer] {
		return v3.RouteSourceTypeNodeMesh
	}
	return v3.RouteSourceTypeBGPPeer
}

// used lists a route of the kernel, once for each of its next hops.
func (t routeFacts) used(r kernel.Route) (list []nodestatus.Route) {
	x := nodestatus.Route{Prefix: r.Dst, Used: true, Source: kernelSource(r)}
	if r.Type != kernel.Unicast {
		x.Interface = r.Type.String()
		return []nodestatus.Route{x}
	}
	for _, hop := range r.NextHops {
		x := x
		x.Gateway, x.Interface = hop.Gateway, t.interfaces[hop.Link]
		if t.learned(r) {
			from := t.paths[r.Dst]
			// A gateway may stand for the next hop.
			at := max(0, slices.IndexFunc(from, func(p locrib.Path) bool { return p.NextHop == hop.Gateway }))
			x.Peer, x.Source = from[at].Peer, t.source(from[at].Peer)
		}
		list = append(list, x)
	}
	return list
}

// kernelSource returns the source of a route that BGP has not learned, in the terms of Calico's BGP daemon: its own are
// static, those of interfaces direct.
func kernelSource(r kernel.Route) v3.CalicoNodeRouteSourceType {
	switch {
	case r.Protocol == kernel.ProtocolKernel:
		return v3.RouteSourceTypeDirect
	case r.Protocol == kernel.ProtocolBIRD && r.Type == kernel.Blackhole:
		return v3.RouteSourceTypeStatic
	}
	return v3.RouteSourceTypeKernel
}
