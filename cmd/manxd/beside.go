package main

import (
	"context"

	"k8s.io/client-go/rest"

	"github.com/manxnet/manx/cmd/manxd/beside"
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
	return beside.NewFinder(d.kubernetesNode(d.name), kube)
}
