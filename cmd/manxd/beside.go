package main

import (
	"context"

	"k8s.io/client-go/rest"

	"github.com/manxnet/manx/controllers/caliconode"
	"github.com/manxnet/manx/daemon/besidecalico"
	"github.com/manxnet/manx/daemon/envflag"
)

// calicoOptions say how manxd behaves towards a calico-node of this host.
type calicoOptions struct {
	beside     bool
	namespaces string
}

// Flags implements group.
func (o *calicoOptions) Flags(s envflag.Set) {
	s.Bool(&o.beside, "beside-calico-node", false, "program this node while calico-node is active on "+
		"it; by default manxd waits until it has ended", "MANX_BESIDE_CALICO_NODE")
	s.String(&o.namespaces, "calico-namespaces", "", "further namespaces in which pods of calico-node "+
		"count, comma separated, beside kube-system, calico-system and that of manxd; tenants must not make pods there",
		"MANX_CALICO_NAMESPACES")
}

// Check implements group.
func (o *calicoOptions) Check() error { return nil }

// waitForCalicoNode returns when no calico-node is active on this host, or at once with --beside-calico-node. found is
// called when one is active.
func (d *daemon) waitForCalicoNode(ctx context.Context, kube *rest.Config, found func()) error {
	if d.options.calico.beside {
		return nil
	}
	return besidecalico.Wait(ctx, d.finder(kube), d.control, found, d.log)
}

func (d *daemon) finder(kube *rest.Config) caliconode.Finder {
	return caliconode.NewFinder(d.kubernetesNode(d.name), d.placesOfCalico(), kube)
}

// placesOfCalico returns the namespaces where a pod may be one of calico-node.
func (o options) placesOfCalico() []string {
	return caliconode.Namespaces(kubernetesNamespace(o.host.namespace), o.calico.namespaces)
}
