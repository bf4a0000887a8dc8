package main

import (
	"context"

	"github.com/manxnet/manx/controllers/caliconode"
	"github.com/manxnet/manx/daemon/besidecalico"
	"github.com/manxnet/manx/daemon/deps"
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
func waitForCalicoNode(ctx context.Context, d deps.Deps, o calicoOptions, found func()) error {
	if o.beside {
		return nil
	}
	return besidecalico.Wait(ctx, calicoFinder(d, o), d.Control, found, d.Log)
}

// calicoFinder finds the calico-node that is active on this host.
func calicoFinder(d deps.Deps, o calicoOptions) caliconode.Finder {
	return caliconode.NewFinder(d.Node.Kubernetes, caliconode.Namespaces(d.Node.Namespace, o.namespaces), d.Kube)
}
