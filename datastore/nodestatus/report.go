package nodestatus

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Facts are the state of a node.
type Facts struct {
	Running      bool // BGP runs; else it is NotReady and nothing else is known
	Version      string
	RouterID     netip.Addr
	Started      time.Time // of BGP
	Reconfigured time.Time // time of BGP's last configuration
	Sessions     []Session
	Routes       []Route // only on request
}

// Session is one BGP session.
type Session struct {
	Peer  netip.Addr
	Type  v3.BGPPeerType
	State v3.BGPSessionState
	Since time.Time // zero: unknown
}

// Route is one path to a prefix.
type Route struct {
	Prefix    netip.Prefix
	Gateway   netip.Addr // invalid for none
	Interface string     // or "blackhole"; empty for none
	Used      bool       // for forwarding
	Source    v3.CalicoNodeRouteSourceType
	Peer      netip.Addr // its sender, invalid for none
}

// maxRoutes is the maximum number of routes of one family in a status: the datastore limits an object to about a
// megabyte. Routes used for forwarding come first.
const maxRoutes = 2500

// bootFormat is Calico's format of its BGP daemons' times.
const bootFormat = "2006-01-02 15:04:05"

// report returns the status of a CalicoNodeStatus. Classes that the spec does not name stay empty.
func report(spec v3.CalicoNodeStatusSpec, f Facts, now time.Time) v3.CalicoNodeStatusStatus {
	s := v3.CalicoNodeStatusStatus{LastUpdated: metav1.NewTime(now.UTC().Truncate(time.Second))}
	if slices.Contains(spec.Classes, v3.NodeStatusClassTypeAgent) {
		s.Agent.BIRDV4 = f.daemon() // one speaker replaces both of Calico's daemons
		s.Agent.BIRDV6 = f.daemon()
	}
	if slices.Contains(spec.Classes, v3.NodeStatusClassTypeBGP) {
		s.BGP = f.bgp()
	}
	if slices.Contains(spec.Classes, v3.NodeStatusClassTypeRoutes) {
		s.Routes = f.routes()
	}
	return s
}

func (f Facts) daemon() v3.BGPDaemonStatus {
	if !f.Running {
		return v3.BGPDaemonStatus{State: v3.BGPDaemonStateNotReady}
	}
	return v3.BGPDaemonStatus{
		State: v3.BGPDaemonStateReady, Version: f.Version, RouterID: f.RouterID.String(),
		LastBootTime: written(f.Started), LastReconfigurationTime: written(f.Reconfigured),
	}
}

// written formats a time; an unknown one is empty.
func written(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(bootFormat)
}

func (f Facts) bgp() (s v3.CalicoNodeBGPStatus) {
	for _, x := range f.Sessions {
		p := v3.CalicoNodePeer{PeerIP: x.Peer.String(), Type: x.Type, State: x.State, Since: written(x.Since)}
		up, down, peers := &s.NumberEstablishedV4, &s.NumberNotEstablishedV4, &s.PeersV4
		if x.Peer.Is6() {
			up, down, peers = &s.NumberEstablishedV6, &s.NumberNotEstablishedV6, &s.PeersV6
		}
		if x.State == v3.BGPSessionStateEstablished {
			*up++
		} else {
			*down++
		}
		*peers = append(*peers, p)
	}
	return s
}

func (f Facts) routes() (s v3.CalicoNodeBGPRouteStatus) {
	sorted := slices.Clone(f.Routes)
	slices.SortStableFunc(sorted, func(a, b Route) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), a.Prefix.Compare(b.Prefix), a.Gateway.Compare(b.Gateway),
			a.Peer.Compare(b.Peer))
	})
	for _, x := range sorted {
		to := &s.RoutesV4
		if x.Prefix.Addr().Is6() {
			to = &s.RoutesV6
		}
		if len(*to) < maxRoutes {
			*to = append(*to, x.written())
		}
	}
	return s
}

func rank(r Route) int {
	if r.Used {
		return 0
	}
	return 1
}

// none is Calico's text for a route without gateway or interface.
const none = "N/A"

func (r Route) written() v3.CalicoNodeRoute {
	out := v3.CalicoNodeRoute{Type: v3.RouteTypeRIB, Destination: r.Prefix.String(), Gateway: none,
		Interface:   cmp.Or(r.Interface, none),
		LearnedFrom: v3.CalicoNodeRouteLearnedFrom{SourceType: r.Source}}
	if r.Used {
		out.Type = v3.RouteTypeFIB
	}
	if r.Gateway.IsValid() {
		out.Gateway = r.Gateway.String()
	}
	if r.Peer.IsValid() {
		out.LearnedFrom.PeerIP = r.Peer.String()
	}
	return out
}
