package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"

	"github.com/manxnet/manx/bgp"
	"github.com/manxnet/manx/bgp/speaker"
	"github.com/manxnet/manx/daemon/bgpstatus"
	"github.com/manxnet/manx/daemon/bus"
	"github.com/manxnet/manx/daemon/connected"
	"github.com/manxnet/manx/daemon/deps"
	"github.com/manxnet/manx/daemon/envflag"
	"github.com/manxnet/manx/daemon/follow"
	"github.com/manxnet/manx/daemon/part"
	"github.com/manxnet/manx/dataplane/kernel"
	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/livemigration"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/proto/server"
)

// bgpOptions are this node's settings of BGP.
type bgpOptions struct {
	routerID                  string
	clusterIPs                string
	maxPrefixes, warnPrefixes int // of one peer
	refuse                    bgp.RefuseSettings
	bmpCollectors, bmpPolicy  string
}

const clusterIPsFlag = "advertise-cluster-ips"

// Flags implements group.
func (o *bgpOptions) Flags(s envflag.Set) {
	s.String(&o.bmpCollectors, "bmp-collector", "", "BMP collectors (RFC 7854) for sessions and routes: "+
		"ADDRESS:PORT, comma separated", "MANX_BMP_COLLECTOR")
	s.String(&o.bmpPolicy, "bmp-policy", "pre-policy", "routes for BMP collectors: pre-policy (as received), "+
		"post-policy (as accepted), local-rib (as chosen, RFC 9069) or all", "MANX_BMP_POLICY")
	s.String(&o.routerID, "router-id", "", "BGP router ID: an IPv4 address, or hash; empty: the node's IPv4 address",
		"CALICO_ROUTER_ID")
	s.String(&o.clusterIPs, clusterIPsFlag, "", "cluster IPs of services to advertise: prefixes, comma separated; "+
		"empty: serviceClusterIPs of BGPConfiguration", "CALICO_ADVERTISE_CLUSTER_IPS")
	o.limitFlags(s)
}

// limitFlags adds the flags about routes of peers to a set.
func (o *bgpOptions) limitFlags(s envflag.Set) {
	s.Int(&o.maxPrefixes, "bgp-max-prefixes", 500_000, "limit of prefixes of one BGP peer; above it the session "+
		"is shut down for five minutes. A BGPPeer's annotation manx.io/max-prefixes overrides it",
		"MANX_BGP_MAX_PREFIXES")
	s.Int(&o.warnPrefixes, "bgp-warn-prefixes", 50_000, "prefixes of one BGP peer above which its status "+
		"shows a warning", "MANX_BGP_WARN_PREFIXES")
	s.Bool(&o.refuse.Default, "bgp-refuse-default-route", false,
		"refuse default routes from BGP peers. BGPConfiguration's annotation manx.io/refuse-default-route overrides it",
		"MANX_BGP_REFUSE_DEFAULT_ROUTE")
	s.Bool(&o.refuse.Connected, "bgp-refuse-connected-routes", false,
		"refuse routes of BGP peers inside subnets that this host is on; annotation manx.io/refuse-connected-routes",
		"MANX_BGP_REFUSE_CONNECTED_ROUTES")
	s.Bool(&o.refuse.Pools, "bgp-refuse-pool-routes", false,
		"refuse routes of external BGP peers inside IP pools, except whole blocks of nodes; annotation "+
			"manx.io/refuse-pool-routes", "MANX_BGP_REFUSE_POOL_ROUTES")
	s.Int(&o.refuse.Longest[0], "bgp-max-prefix-length-v4", 0,
		"refuse longer IPv4 prefixes from BGP peers; 0: any length; annotation manx.io/max-prefix-length-v4",
		"MANX_BGP_MAX_PREFIX_LENGTH_V4")
	s.Int(&o.refuse.Longest[1], "bgp-max-prefix-length-v6", 0,
		"refuse longer IPv6 prefixes from BGP peers; 0: any length; annotation manx.io/max-prefix-length-v6",
		"MANX_BGP_MAX_PREFIX_LENGTH_V6")
}

// Check implements group.
func (o *bgpOptions) Check() error {
	_, err := o.bmp("")
	return errors.Join(o.checkRouteLimits(), checkPrefixes(clusterIPsFlag, o.clusterIPs), err)
}

// checkRouteLimits refuses limits that no table could meet.
func (o *bgpOptions) checkRouteLimits() error {
	for flag, n := range map[string]int{"bgp-max-prefixes": o.maxPrefixes, "bgp-warn-prefixes": o.warnPrefixes} {
		if n < 1 {
			return fmt.Errorf("--%s=%d: want 1 or more", flag, n)
		}
	}
	for i, flag := range []string{"bgp-max-prefix-length-v4", "bgp-max-prefix-length-v6"} {
		if n, most := o.refuse.Longest[i], []int{32, 128}[i]; n < 0 || n > most {
			return fmt.Errorf("--%s=%d: want 1 to %d, or 0 for any length", flag, n, most)
		}
	}
	return nil
}

// checkPrefixes refuses a malformed list of prefixes.
func checkPrefixes(flag, list string) error {
	if list == "" {
		return nil
	}
	for text := range strings.SplitSeq(list, ",") {
		if _, err := netip.ParsePrefix(strings.TrimSpace(text)); err != nil {
			return fmt.Errorf("--%s=%s: %q is no prefix: want ADDRESS/LENGTH, several with commas", flag, list, text)
		}
	}
	return nil
}

// bgpPart runs BGP according to the datastore, and passes its state and the learned routes to the agents of the
// dataplane.
type bgpPart struct {
	*follow.Follower
	speaker *speaker.Speaker
	view    *server.BGPView
}

// bgpHost has the facts of the host that BGP depends on, and the agents that program the routes that it learns.
type bgpHost struct {
	passwords passwordsPart
	networks  *connected.Subnets
	ways      ways
	moves     func() map[model.Key]livemigration.Phase
	agents    []follower
}

func newBGP(d deps.Deps, o bgpOptions, h bgpHost) (*bgpPart, error) {
	bmp, err := o.bmp(d.Node.Name)
	if err != nil {
		return nil, usage(err)
	}
	log := d.Log.Named("bgp")
	s := speaker.New(speaker.Config{Logger: log, GobgpSocket: filepath.Join(d.Node.RunDir, "gobgp.sock"), BMP: bmp,
		MaxPrefixes: o.maxPrefixes, WarnPrefixes: o.warnPrefixes, InterfaceOf: h.ways.forFilters(log),
		Uplink: h.ways.uplink, Forwarding: forwarding(uptime, d.Kernel.ListRoutes),
		Again: func() { d.Bus.Undecided.Publish(struct{}{}) }})
	d.Bus.Links.Subscribe(func(events []kernel.Event) {
		for _, e := range events {
			if why := whyDown(e); why != "" {
				s.UplinkDown(e.Link.Name, why)
			}
		}
	})
	f := newBGPFollower(d, o, h.agents, follow.Config{Connected: h.networks.List, Kernel: h.networks.Routes,
		Moves: h.moves, Passwords: h.passwords, Speaker: s, Log: log})
	d.Control.BGP.Show(server.BGPSource{Speaker: s, Desired: f.Desired})
	return &bgpPart{f, s, d.Control.BGP}, nil
}

// newFollower completes the settings of a Follower that every node needs.
func newFollower(d deps.Deps, agents []follower, c follow.Config) *follow.Follower {
	c.Tables = d.Tables
	for _, a := range agents {
		c.Agents, c.Kinds = append(c.Agents, a), append(c.Kinds, a.Needs().Kinds()...)
	}
	return follow.New(c)
}

// newBGPFollower completes the settings of a Follower, and connects it to the bus.
func newBGPFollower(d deps.Deps, o bgpOptions, agents []follower, c follow.Config) *follow.Follower {
	c.Settings = bgp.Input{Node: d.Node.Name, RouterID: o.routerID, ClusterIPs: o.clusterIPs,
		Felix: d.Node.Felix, Refuse: o.refuse}
	last := make(chan model.Reader, 1)
	d.Bus.LastState.Subscribe(func(r model.Reader) { last <- r })
	c.Last = last
	c.Keep = func(s *datastore.Snapshot, desired bgp.Desired) {
		d.Bus.Decided.Publish(bus.Decision{Snapshot: s, Desired: desired})
	}
	f := newFollower(d, agents, c)
	d.Bus.Undecided.Subscribe(func(struct{}) { f.Trigger() })
	return f
}

func (p *bgpPart) Name() string             { return "bgp" }
func (p *bgpPart) Ready() server.Check      { return p.view.Ready() }
func (p *bgpPart) Needs() part.Needs        { return part.AllOf(bgp.Kinds()...) }
func (p *bgpPart) Notices() []server.Notice { return refusedRoutes(p.speaker.Rejected()) }

// Run implements part.Part.
func (p *bgpPart) Run(ctx context.Context) error { return p.Follower.Run(ctx) }

// Close leaves the sessions to the end of the process.
func (p *bgpPart) Close() { p.speaker.Close() }

// sessions are those of the speaker; none without BGP.
func (p *bgpPart) sessions() []speaker.SessionStatus {
	if p == nil {
		return nil
	}
	return p.speaker.Sessions()
}

// statuses is sessions for Events.
func (p *bgpPart) statuses() []speaker.SessionStatus {
	if p == nil {
		return nil
	}
	return p.speaker.Statuses()
}

// nodeStatus fills in CalicoNodeStatus objects: without BGP, that it does not run.
func (p *bgpPart) nodeStatus(d deps.Deps) part.Part {
	if p == nil {
		return bgpstatus.New(d, nil, nil, version)
	}
	return bgpstatus.New(d, p.speaker, p.Decided, version)
}

// statePart passes the datastore to the agents of a node without BGP.
type statePart struct{ *follow.Follower }

func newState(d deps.Deps, agents []follower) statePart {
	return statePart{newFollower(d, agents, follow.Config{Log: d.Log.Named("state")})}
}

func (statePart) Name() string                    { return "state" }
func (p statePart) Run(ctx context.Context) error { return p.Follower.Run(ctx) }
