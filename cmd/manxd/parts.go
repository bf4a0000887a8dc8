package main

import (
	"strings"

	"github.com/manxnet/manx/daemon/awscheck"
	"github.com/manxnet/manx/daemon/besidecalico"
	"github.com/manxnet/manx/daemon/calicosettings"
	"github.com/manxnet/manx/daemon/claims"
	"github.com/manxnet/manx/daemon/connected"
	"github.com/manxnet/manx/daemon/deps"
	"github.com/manxnet/manx/daemon/follow"
	"github.com/manxnet/manx/daemon/hostservers"
	"github.com/manxnet/manx/daemon/kubereport"
	"github.com/manxnet/manx/daemon/lastrun"
	"github.com/manxnet/manx/daemon/machines"
	"github.com/manxnet/manx/daemon/nobgp"
	"github.com/manxnet/manx/daemon/part"
	"github.com/manxnet/manx/daemon/placements"
	"github.com/manxnet/manx/daemon/plugins"
	"github.com/manxnet/manx/daemon/publickeys"
	"github.com/manxnet/manx/datastore/laststate"
	"github.com/manxnet/manx/proto/server"
)

// host has the parts that need no datastore.
type host struct {
	parts []part.Part // in their order of start

	// those that parts of the node use
	dataplane *dataplanePart
	policy    *policyPart // nil: policy is disabled
	bgp       *bgpPart    // nil: this node has no BGP
	last      *lastrun.Part
}

// newHost makes the parts that need no datastore. Each part has a file or a package of its own, and gets its
// dependencies by its constructor. Nothing on the host is changed before the tables of the datastore are complete, or
// the last state of an earlier run takes their place.
func newHost(d *daemon, deps deps.Deps) (*host, error) {
	o := &d.options
	h := &host{last: newLastRun(deps, o),
		dataplane: newDataplane(deps, o.host, o.policy, hostservers.New(deps, o.datastore.etcdEndpoints),
			o.networking.policyOnly())}
	var err error
	if h.policy, err = newPolicy(deps, o.policy, o.flowLog.group()); err != nil {
		return nil, err
	}
	following, err := h.followParts(deps, o)
	if err != nil {
		return nil, err
	}
	firewalls, err := newFirewalls(deps, h.bgp.sessions, ways{deps.Kernel, h.dataplane.PlainMark}, o.calico.beside)
	if err != nil {
		return nil, err
	}
	h.parts = append([]part.Part{
		newSleepWatch(deps),
		newLogLevel(deps, o.log),
		h.dataplane,
		part.Optional(h.policy),
		newFlowLog(deps, o.flowLog, h.policy, d.reopen),
		part.Optional(newOveruse(deps, h.policy, o.overuse.maxConnections, o.policy.maxFragments)),
		part.Optional(firewalls),
		h.last,
	}, following...)
	return h, nil
}

// newLastRun keeps the last state for BGP alone: without BGP, what is in the kernel stays until the datastore answers.
func newLastRun(d deps.Deps, o *options) *lastrun.Part {
	c := lastrun.Config{BesideCalico: o.calico.beside, Patience: o.datastore.patience,
		Origin: func() (laststate.Origin, error) { return o.datastore.origin(d.Kube) }}
	if o.networking.bgp() {
		c.Path = o.datastore.lastStateFile()
	}
	return lastrun.New(d, c)
}

// followParts makes the part that passes the datastore to the agents, and those of BGP, if this node has it.
func (h *host) followParts(d deps.Deps, o *options) ([]part.Part, error) {
	if off := o.networking.bgpOff(); off != "" {
		d.Control.BGP.Show(server.BGPSource{Off: off})
		return []part.Part{newState(d, h.agents()), nobgp.New(d, off, o.networking.policyOnly()),
			newGobgp(d, o.gobgp, noGobgp(off))}, nil
	}
	passwords, err := passwordSource(d, o.passwords)
	if err != nil {
		return nil, err
	}
	subnets := connected.New(d)
	if h.bgp, err = newBGP(d, o.bgp, bgpHost{passwords: passwords, networks: subnets,
		ways: ways{d.Kernel, h.dataplane.PlainMark}, moves: h.dataplane.Moves, agents: h.agents()}); err != nil {
		return nil, err
	}
	service := gobgpOf(h.bgp.speaker, d.Log.Named("gobgp"))
	return []part.Part{h.bgp, subnets, passwords, newGobgp(d, o.gobgp, service)}, nil
}

// agents returns the parts that follow the datastore and the routes of BGP, and program them.
func (h *host) agents() []follower {
	list := []follower{h.dataplane}
	if h.policy != nil {
		list = append(list, h.policy)
	}
	return list
}

// follower is a part that is an agent of package follow.
type follower interface {
	follow.Agent
	part.Watcher
}

// newNode makes the parts of a node that has joined its cluster, in their order of start. The tables of the datastore
// start before them, and watch the kinds that they and the parts of the host need.
func newNode(o *options, deps deps.Deps, h *host, m *membership) ([]part.Part, error) {
	drain, note := newDrain(deps, o.networking), (*nobgp.Note)(nil)
	if off := o.networking.bgpOff(); off != "" {
		note = nobgp.NewNote(deps, off)
	}
	orchestrator, err := orchestratorParts(o, deps, h, drain)
	if err != nil {
		return nil, err
	}
	parts := []part.Part{
		newNodeFiles(deps, o.node.nameFile, o.mtuFile()),
		part.Optional(drain),
		part.Optional(note),
		h.bgp.nodeStatus(deps),
		newRegistration(deps, m),
		calicosettings.New(deps, acceptFlag, names(o.accept.list), o.networking.policyOnly()),
		awscheck.New(deps),
		publickeys.New(deps, &h.dataplane.keys),
	}
	if !o.networking.policyOnly() {
		parts = append(parts, networkParts(deps, h, m)...)
	}
	return append(parts, orchestrator...), nil
}

// networkParts returns the parts of a node that connects its pods: those for its addresses, and those that need IPAM.
func networkParts(d deps.Deps, h *host, m *membership) []part.Part {
	return []part.Part{
		newTunnels(d, m.tunnels),
		newAddresses(d, m),
		newTakeover(d, m),
		part.Optional(claims.New(d)),
		part.Optional(machines.New(d, h.dataplane.Moves)),
		placements.New(d, h.dataplane, m.config.UsePodCIDR),
	}
}

// orchestratorParts returns the parts for the orchestrator: CNI plugins, and Kubernetes.
func orchestratorParts(o *options, deps deps.Deps, h *host, drain *drain) ([]part.Part, error) {
	controllers, err := newControllers(deps, o.controllers, o.kubernetes())
	if err != nil {
		return nil, err
	}
	config, err := newCNIConfig(deps, o.cni, o.datastore, o.podFamilies(), o.policy.on)
	if err != nil {
		return nil, err
	}
	kubernetes, err := kubernetesParts(deps, o, h.eventSources(controllers), drain)
	if err != nil {
		return nil, err
	}
	own := []part.Part{part.Optional(controllers), newPlugins(deps, o.host, h.policy), config}
	return append(own, kubernetes...), nil
}

// kubernetesParts returns the parts that report this node's state to Kubernetes; none without a Kubernetes API.
func kubernetesParts(d deps.Deps, o *options, events kubereport.Sources, drain *drain) ([]part.Part, error) {
	if d.Kube == nil {
		return nil, nil
	}
	parts := []part.Part{kubereport.NewEvents(d, events), besidecalico.NewWatch(calicoFinder(d, o.calico), d.Log)}
	if o.networking.policyOnly() { // whether there is a network is for the other program to say
		return parts, nil
	}
	condition, err := kubereport.NewCondition(d, drain.outOfService)
	if err != nil {
		return nil, err
	}
	return append(parts, condition), nil
}

// eventSources returns the sources of Events about this host. controllers are nil if this node is no candidate.
func (h *host) eventSources(controllers *clusterControllers) kubereport.Sources {
	from := kubereport.Sources{Sessions: h.bgp.statuses}
	if h.policy != nil {
		from.Policy = h.policy.Status
	}
	if controllers != nil {
		from.Leads = func() bool { return controllers.State().Leading }
	}
	return from
}

// newPlugins serves the CNI plugins of this host.
func newPlugins(d deps.Deps, o hostOptions, policy *policyPart) *plugins.Part {
	prefix, _, _ := strings.Cut(o.interfacePrefix, ",")
	c := plugins.Config{Prefix: prefix, MTUFile: o.mtuFile, StatusDir: o.endpointStatusDir}
	if policy != nil {
		c.Rules = policy.rules
	}
	return plugins.New(d, c)
}
