package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/manxnet/manx/controllers"
	"github.com/manxnet/manx/controllers/kubeapi"
	"github.com/manxnet/manx/datastore/connect"
	"github.com/manxnet/manx/datastore/kubernetes"
	"github.com/manxnet/manx/datastore/kubernetes/form"
	"github.com/manxnet/manx/datastore/node"
)

// checkCluster checks the options of leaveCluster.
func (o options) checkCluster() error {
	if o.datastore.kind != connect.Kubernetes {
		return fmt.Errorf("--%s is for the Kubernetes API as the datastore: objects elsewhere have no finalizers",
			clusterFlag)
	}
	return o.check()
}

// leaveCluster removes the finalizers of pools and tiers: nobody ends their deletion when Manx has gone.
func leaveCluster(ctx context.Context, o options) error {
	if err := o.checkCluster(); err != nil {
		return usage(err)
	}
	log, _, err := newLogger(o.log, newLogLines())
	if err != nil {
		return usage(err)
	}
	config, err := o.kubernetesAPI(log)
	if err != nil {
		return err
	}
	name, _, err := node.Name(o.node.nameSources())
	api, also := kubeapi.New(config)
	if err = errors.Join(err, also); err != nil {
		return err
	}
	store, err := kubernetes.OpenREST(ctx, o.datastore.kube, config, log)
	if err != nil {
		return err
	}
	defer store.Close() //nolint:errcheck // each write has been answered
	if store.Group() != form.V3 {
		fmt.Printf("the pools and tiers of this cluster are in %s, where they have no finalizers\n", store.Group())
		return nil
	}
	api.Namespace = kubernetesNamespace(o.host.namespace)
	m := controllers.New(controllers.Config{Node: name, Store: store, Kube: api, Log: log})
	removed, others, err := m.Leave(ctx)
	switch {
	case err != nil:
		return err
	case others != "":
		fmt.Printf("%s: the finalizers of pools and tiers are theirs and stay\n", others)
	default:
		fmt.Printf("removed %d finalizers of pools and tiers\n", removed)
	}
	return nil
}
