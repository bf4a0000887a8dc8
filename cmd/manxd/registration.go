package main

import (
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/manxnet/manx/daemon/deps"
	"github.com/manxnet/manx/daemon/part"
	"github.com/manxnet/manx/datastore/connect"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/datastore/node"
	"github.com/manxnet/manx/proto/server"
)

// registration registers this host again when its Node was deleted, or created again by another program.
type registration struct {
	deps.Deps
	*membership
}

func newRegistration(d deps.Deps, m *membership) registration { return registration{d, m} }

func (r registration) Name() string { return "registration" }

// Needs implements part.Watcher: an address of this host may be another node's.
func (r registration) Needs() part.Needs { return part.AllOf(model.KindNode) }

// Notices implements server.Noticer: an AS number of the Node that the next start replaces.
func (r registration) Notices() []server.Notice {
	n := model.Get[model.Node](r.Tables.Snapshot(), model.ResourceKey(model.KindNode, r.Node.Name))
	if text := r.config.ReplacesAS(n); text != "" {
		return []server.Notice{{Topic: "node", Subject: r.Node.Name, Text: text}}
	}
	return nil
}

// Run implements part.Part.
func (r registration) Run(ctx context.Context) error {
	k := &node.Keeper{Config: r.config, Registered: r.registered, Store: r.Store, Host: node.System{},
		MayCreate: r.mayCreate, Log: r.Log.Named("node")}
	return k.Run(ctx, r.Tables)
}

var errKubeletRegisters = errors.New("the kubelet makes the Node: it does so when it is started again")

// mayCreate returns the reason why the Node must not be created, nil if it may.
func (r registration) mayCreate(ctx context.Context) error {
	if r.Node.Datastore == connect.Kubernetes {
		return errKubeletRegisters
	}
	if r.Kube == nil || r.config.K8sNodeRef == "" {
		return nil
	}
	client, err := typedcorev1.NewForConfig(r.Kube)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, kubernetesTimeout)
	defer cancel()
	_, err = client.Nodes().Get(ctx, r.config.K8sNodeRef, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return fmt.Errorf("no Node %s in Kubernetes: this host was taken out of the cluster",
			r.config.K8sNodeRef)
	case apierrors.IsForbidden(err):
		return nil // unknown
	}
	return err
}
