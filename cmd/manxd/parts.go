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
	"github.com/manxnet/manx/daemon/part"
	"github.com/manxnet/manx/daemon/placements"
	"github.com/manxnet/manx/daemon/plugins"
	"github.com/manxnet/manx/datastore/laststate"
)

// host has the parts that need no datastore.
type host struct {
	parts []part.Part // in their order of start

	// those that parts of the node use
	dataplane *dataplanePart
	policy    *policyPart // nil: policy is disabled
	bgp       *bgpPart
	last      *lastrun.Part
}

// newHost makes the parts that need no datastore. Each part has a file or a package of its own, and gets its
// dependencies by its constructor. Nothing on the host is changed before the tables of the datastore are complete, or
// the last state of an earlier run takes their place.
func newHost(d *daemon, deps deps.Deps) (*host, error) {
	o := &d.options
	last := lastrun.Config{Path: o.datastore.lastStateFile(), BesideCalico: o.calico.beside,
		Patience: o.datastore.patience,
		Origin:   func() (laststate.Origin, error) { return o.datastore.origin(deps.Kube) }}
	h := &host{last: lastrun.New(deps, last),
		dataplane: newDataplane(deps, o.host, o.policy, hostservers.New(deps, o.datastore.etcdEndpoints))}
	var err error
	if h.policy, err = newPolicy(deps, o.policy, o.flowLog.group()); err != nil {
		return nil, err
	}
	passwords, err := passwordSource(deps, o.passwords)
	if err != nil {
		return nil, err
	}
	subnets := connected.New(deps)
	if h.bgp, err = newBGP(deps, o.bgp, bgpHost{passwords, subnets, h.dataplane.Moves, h.agents()}); err != nil {
		return nil, err
	}
	firewalls, err := newFirewalls(deps, h.bgp.speaker.Sessions, o.calico.beside)
	if err != nil {
		return nil, err
	}
	h.parts = []part.Part{
		newSleepWatch(deps),
		newLogLevel(deps, o.log),
		h.dataplane,
		part.Optional(h.policy),
		newFlowLog(deps, o.flowLog, h.policy, d.reopen),
		part.Optional(newOveruse(deps, h.policy, o.overuse.maxConnections, o.policy.maxFragments)),
		part.Optional(firewalls),
		h.bgp,
		subnets,
		passwords,
		newGobgp(deps, o.gobgp, h.bgp.speaker),
		h.last,
	}
	return h, nil
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
	drain := newDrain(deps)
	orchestrator, err := orchestratorParts(o, deps, h, drain)
	if err != nil {
		return nil, err
	}
	return append([]part.Part{
		newNodeFiles(deps, o.node.nameFile, o.host.mtuFile),
		drain,
		newTunnels(deps, m.tunnels),
		h.bgp.nodeStatus(deps),
		newAddresses(deps, m),
		newRegistration(deps, m),
		newTakeover(deps, m),
		calicosettings.New(deps, acceptFlag, names(o.accept.list)),
		part.Optional(claims.New(deps)),
		awscheck.New(deps),
		part.Optional(machines.New(deps, h.dataplane.Moves)),
		placements.New(deps, h.dataplane),
	}, orchestrator...), nil
}

// orchestratorParts returns the parts for the orchestrator: CNI plugins, and Kubernetes.
func orchestratorParts(o *options, deps deps.Deps, h *host, drain *drain) ([]part.Part, error) {
	controllers, err := newControllers(deps, o.controllers, o.kubernetes())
	if err != nil {
		return nil, err
	}
	config, err := newCNIConfig(deps, o.cni, o.datastore, o.policy.on)
	if err != nil {
		return nil, err
	}
	kubernetes, err := kubernetesParts(deps, o.calico, h.eventSources(controllers), drain)
	if err != nil {
		return nil, err
	}
	own := []part.Part{part.Optional(controllers), newPlugins(deps, o.host, h.policy), config}
	return append(own, kubernetes...), nil
}

// kubernetesParts returns the parts that report this node's state to Kubernetes; none without a Kubernetes API.
func kubernetesParts(d deps.Deps, o calicoOptions, events kubereport.Sources, drain *drain) ([]part.Part, error) {
	if d.Kube == nil {
		return nil, nil
	}
	condition, err := kubereport.NewCondition(d, drain.outOfService)
	if err != nil {
		return nil, err
	}
	return []part.Part{kubereport.NewEvents(d, events), condition, besidecalico.NewWatch(calicoFinder(d, o), d.Log)}, nil
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
