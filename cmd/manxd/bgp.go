package main

import (
	"context"
	"path/filepath"

	"github.com/manxnet/manx/bgp"
	"github.com/manxnet/manx/bgp/speaker"
	"github.com/manxnet/manx/daemon/follow"
	"github.com/manxnet/manx/daemon/part"
	"github.com/manxnet/manx/dataplane/kernel"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/proto/server"
)

// bgpPart runs BGP according to the datastore, and passes its state and the learned routes to the agents of the
// dataplane.
type bgpPart struct {
	*follow.Follower
	speaker *speaker.Speaker
	view    *server.BGPView
}

func newBGP(h *host, passwords passwordsPart, connected *connectedSubnets, dataplane *dataplanePart,
	policy *policyPart) (*bgpPart, error) {
	bmp, err := h.bmp(h.name)
	if err != nil {
		return nil, usage(err)
	}
	log := h.log.Named("bgp")
	var f *follow.Follower
	s := speaker.New(speaker.Config{Logger: log, GobgpSocket: filepath.Join(h.runDir, "gobgp.sock"), BMP: bmp,
		MaxPrefixes: h.maxPrefixes, WarnPrefixes: h.warnPrefixes, InterfaceOf: interfaceOf(h.kernel, log),
		Uplink: uplinkOf(h.kernel), Forwarding: forwarding(uptime, h.kernel.ListRoutes),
		Again: func() { f.Trigger() }}) // it does not run before f does
	dataplane.onLinks = append(dataplane.onLinks, func(events []kernel.Event) {
		for _, e := range events {
			if why := whyDown(e); why != "" {
				s.UplinkDown(e.Link.Name, why)
			}
		}
	})
	agents := []follow.Agent{dataplane.HostAgent}
	if policy != nil {
		agents = append(agents, policy.agent)
	}
	f = follow.New(follow.Config{
		Settings: bgp.Input{Node: h.name, RouterID: h.routerID, ClusterIPs: h.clusterIPs,
			InterfacePrefix: h.interfacePrefix, Refuse: h.refuse},
		Connected: connected.list, Passwords: passwords, Tables: h.tables, Speaker: s,
		Agents: agents, Kinds: part.Kinds(dataplane, part.Optional(policy)), Log: log,
		Last: h.last.offer, Keep: h.last.keep})
	connected.changed = f.Trigger
	h.control.BGP.Show(server.BGPSource{Speaker: s, Desired: f.Desired})
	return &bgpPart{f, s, h.control.BGP}, nil
}

func (p *bgpPart) Name() string             { return "bgp" }
func (p *bgpPart) Ready() server.Check      { return p.view.Ready() }
func (p *bgpPart) Kinds() []model.Kind      { return bgp.Kinds() }
func (p *bgpPart) Notices() []server.Notice { return refusedRoutes(p.speaker.Rejected()) }

// Run implements part.Part.
func (p *bgpPart) Run(ctx context.Context) error { return p.Follower.Run(ctx) }

// Close leaves the sessions to the end of the process.
func (p *bgpPart) Close() { p.speaker.Close() }
