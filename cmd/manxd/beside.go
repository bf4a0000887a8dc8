package main

import (
	"context"

	"k8s.io/client-go/rest"

	"github.com/manxnet/manx/controllers/caliconode"
	"github.com/manxnet/manx/daemon/besidecalico"
)

// waitForCalicoNode returns when no calico-node is active on this host, or at once with --beside-calico-node. found is
// called when one is active.
func (d *daemon) waitForCalicoNode(ctx context.Context, kube *rest.Config, found func()) error {
	if d.besideCalicoNode {
		return nil
	}
	return besidecalico.Wait(ctx, d.finder(kube), d.control, found, d.log)
}

func (d *daemon) finder(kube *rest.Config) caliconode.Finder {
	return caliconode.NewFinder(d.kubernetesNode(d.name), d.placesOfCalico(), kube)
}

// placesOfCalico returns the namespaces where a pod may be one of calico-node.
func (o options) placesOfCalico() []string {
	return caliconode.Namespaces(kubernetesNamespace(o.namespace), o.calicoNamespaces)
}
