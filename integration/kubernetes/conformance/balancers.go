package main

import (
	"errors"
	"fmt"

	"github.com/manxnet/manx/integration/kubernetes/cluster"
	"github.com/manxnet/manx/integration/kubernetes/lab"
	hosts "github.com/manxnet/manx/integration/lab"
	netns "github.com/manxnet/manx/integration/namespace"
)

// balanced holds the addresses of Services of type LoadBalancer.
const balanced = "10.200.0.0/24"

// balancers has Manx's controllers give Services addresses, which all nodes announce to the router. The tests are a
// client of these addresses outside the networks of the nodes, as they require.
func balancers(c *lab.Cluster, manx cluster.Installation) error {
	if err := manx.Store(c, `
apiVersion: projectcalico.org/v3
kind: IPPool
metadata: {name: balanced}
spec: {cidr: `+balanced+`, blockSize: 28, allowedUses: [LoadBalancer], nodeSelector: all(), assignmentMode: Automatic}
---
apiVersion: projectcalico.org/v3
kind: BGPConfiguration
metadata: {name: default}
spec: {asNumber: 64512, nodeToNodeMeshEnabled: true, serviceLoadBalancerIPs: [{cidr: `+balanced+`}]}
`); err != nil {
		return err
	}
	router := c.ToRs[0].Namespace
	client := hosts.External.Addr().Next().Next().String()
	return errors.Join(
		runInNamespace(c.Control.Namespace, "ip", "addr", "add", client+"/32", "dev", "lo"),
		runInNamespace(c.Control.Namespace, "ip", "route", "add", balanced, "via", c.Control.Gateway(), "src", client),
		runInNamespace(router, "ip", "route", "add", client+"/32", "via", c.Control.IP4.String()))
}

func runInNamespace(namespace, name string, args ...string) error {
	out, err := netns.Command(namespace, name, args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s %v: %w: %s", name, args, err, out)
	}
	return nil
}
