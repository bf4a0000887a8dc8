package main

import (
	"slices"

	"github.com/manxnet/manx/cmd/manxd/part"
)

// parts returns the parts of a node that has joined its cluster, in their order of start. Each has a file or a folder
// of its own, and gets its dependencies by its constructor. The tables of the datastore start before them, and watch
// the kinds that they need.
func parts(j *joined) ([]part.Part, error) {
	dataplane := newDataplane(j)
	policy, err := newPolicy(j, dataplane)
	if err != nil {
		return nil, err
	}
	passwords, err := passwordSource(j)
	if err != nil {
		return nil, err
	}
	connected := newConnected(j, dataplane)
	bgp, err := newBGP(j, passwords, connected, dataplane, policy)
	if err != nil {
		return nil, err
	}
	drain := newDrain(j)
	orchestrator, err := orchestratorParts(j, drain, bgp, policy)
	if err != nil {
		return nil, err
	}
	return append([]part.Part{
		newNodeFiles(j),
		newSleepWatch(j),
		dataplane,
		part.Optional(policy),
		newFlowLog(j, policy),
		drain,
		bgp,
		connected,
		passwords,
		newGobgp(j, bgp),
		newBirdSocket(j, bgp),
		newTunnels(j),
		newNodeStatus(j, bgp),
		newAddresses(j),
		newRegistration(j),
		newTakeover(j),
	}, orchestrator...), nil
}

// orchestratorParts returns the parts for the orchestrator: CNI plugins, and Kubernetes.
func orchestratorParts(j *joined, drain *drain, bgp *bgpPart, policy *policyPart) ([]part.Part, error) {
	controllers, err := newControllers(j)
	if err != nil {
		return nil, err
	}
	cni, err := cniParts(j, policy)
	if err != nil {
		return nil, err
	}
	kubernetes, err := kubernetesParts(j, drain, bgp, policy, controllers)
	if err != nil {
		return nil, err
	}
	return slices.Concat([]part.Part{part.Optional(controllers)}, cni, kubernetes), nil
}
