package main

import (
	"context"
	"slices"
	"strings"

	"k8s.io/client-go/rest"

	"github.com/manxnet/manx/cmd/manxd/beside"
	"github.com/manxnet/manx/controllers/kubeapi"
)

// waitForCalicoNode returns when no calico-node is active on this host, or at once with --beside-calico-node. found is
// called when one is active.
func (d *daemon) waitForCalicoNode(ctx context.Context, kube *rest.Config, found func()) error {
	if d.besideCalicoNode {
		return nil
	}
	return d.finder(kube).Wait(ctx, d.control, found, d.log)
}

func (d *daemon) finder(kube *rest.Config) beside.Finder {
	return beside.NewFinder(d.kubernetesNode(d.name), d.placesOfCalico(), kube)
}

// placesOfCalico returns the namespaces where a pod may be one of calico-node: those of Calico's installations, that of
// this daemon, and the configured ones. Tenants make no pods there.
func (o options) placesOfCalico() []string {
	list := append(kubeapi.Places(), kubernetesNamespace(o.namespace))
	for name := range strings.SplitSeq(o.calicoNamespaces, ",") {
		if name = strings.TrimSpace(name); name != "" {
			list = append(list, name)
		}
	}
	slices.Sort(list)
	return slices.Compact(list)
}
