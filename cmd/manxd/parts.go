package main

import (
	"slices"

	"github.com/manxnet/manx/daemon/part"
)

// hostParts returns the parts that need no datastore, in their order of start. Each part has a file or a folder of its
// own, and gets its dependencies by its constructor. Nothing on the host is changed before the tables of the datastore
// are complete, or the last state of an earlier run takes their place.
func hostParts(h *host) ([]part.Part, error) {
	h.dataplane = newDataplane(h)
	var err error
	if h.filter, err = newPolicy(h); err != nil {
		return nil, err
	}
	passwords, err := passwordSource(h)
	if err != nil {
		return nil, err
	}
	connected := newConnected(h)
	if h.bgp, err = newBGP(h, passwords, connected, h.dataplane, h.filter); err != nil {
		return nil, err
	}
	firewalls, err := newFirewalls(h)
	if err != nil {
		return nil, err
	}
	return []part.Part{
		newSleepWatch(h),
		h.dataplane,
		part.Optional(h.filter),
		newFlowLog(h, h.filter),
		part.Optional(newOveruse(h, h.filter)),
		part.Optional(firewalls),
		h.bgp,
		connected,
		passwords,
		newGobgp(h, h.bgp),
		h.last,
	}, nil
}

// parts returns the parts of a node that has joined its cluster, in their order of start. The tables of the datastore
// start before them, and watch the kinds that they and the parts of the host need.
func parts(j *joined) ([]part.Part, error) {
	drain := newDrain(j)
	orchestrator, err := orchestratorParts(j, drain)
	if err != nil {
		return nil, err
	}
	return append([]part.Part{
		newNodeFiles(j),
		drain,
		newBirdSocket(j, j.bgp),
		newTunnels(j),
		newNodeStatus(j, j.bgp),
		newAddresses(j),
		newRegistration(j),
		newTakeover(j),
		part.Optional(newClaims(j)),
	}, orchestrator...), nil
}

// orchestratorParts returns the parts for the orchestrator: CNI plugins, and Kubernetes.
func orchestratorParts(j *joined, drain *drain) ([]part.Part, error) {
	controllers, err := newControllers(j)
	if err != nil {
		return nil, err
	}
	cni, err := cniParts(j, j.filter)
	if err != nil {
		return nil, err
	}
	kubernetes, err := kubernetesParts(j, drain, j.bgp, j.filter, controllers)
	if err != nil {
		return nil, err
	}
	return slices.Concat([]part.Part{part.Optional(controllers)}, cni, kubernetes), nil
}
