package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/manxnet/manx/cni/install"
	"github.com/manxnet/manx/daemon/deps"
	"github.com/manxnet/manx/daemon/part"
	"github.com/manxnet/manx/dataplane/overlay"
	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/connect"
	"github.com/manxnet/manx/datastore/felixconfig"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/datastore/node"
	"github.com/manxnet/manx/ipam"
	"github.com/manxnet/manx/proto/server"
)

// nodePart makes this host a node of its cluster, and runs the parts that need the datastore.
type nodePart struct {
	*daemon
	deps deps.Deps
	host *host
}

func (n *nodePart) Name() string { return "node" }

// Run implements part.Part. An error ends the daemon. While BGP can follow the last state, a datastore that cannot be
// used does not, and once BGP does, nothing that keeps the node from joining: it tries again.
func (n *nodePart) Run(ctx context.Context) error {
	err := n.join(ctx)
	var early *earlyError
	if errors.As(err, &early) && (early.away && n.host.last.Covers(err) || n.host.last.InUse() != nil) {
		n.showWaiting(err)
		return err
	}
	return part.Fatal(err)
}

// Explain implements part.Explainer.
func (n *nodePart) Explain(err error) string {
	return fmt.Sprintf("waiting for the datastore: %v", err)
}

// earlyError is an error before this host is a node of the cluster: joining it can be repeated.
type earlyError struct {
	error
	away bool // the datastore cannot be used
}

func (e *earlyError) Unwrap() error { return e.error }

// membership is the registration of this node in its cluster.
type membership struct {
	config     node.Config
	registered node.Result
	tunnels    *node.Tunnels // nil: the node has none
}

// join registers the node and runs all parts that depend on the datastore.
func (n *nodePart) join(ctx context.Context) error {
	deps := n.deps
	store, closeStore, err := openStore(ctx, n.ofThisNode(), n.showWaiting, deps.Log)
	if err != nil {
		var wrong *usageError
		if errors.As(err, &wrong) || ctx.Err() != nil {
			return err
		}
		return &earlyError{err, true}
	}
	defer closeStore()
	n.host.last.Opened()
	err = waitForCalicoNode(ctx, deps, n.options.calico, func() { n.host.last.SetHold(true) })
	n.host.last.SetHold(false)
	if err != nil {
		return err
	}
	deps.Store = store
	m, err := n.register(ctx, deps)
	if err != nil {
		return &earlyError{err, errors.Is(err, datastore.ErrUnavailable) || errors.Is(err, datastore.ErrUnauthorized)}
	}
	parts, err := newNode(&n.options, deps, n.host, m)
	if err != nil {
		return err
	}
	if n.added != nil {
		parts = append(parts, n.added(deps)...)
	}
	tables := newTables(deps, n.host.last, slices.Concat(n.host.parts, parts))
	group := part.NewGroup(deps.Log, append([]part.Part{tables}, parts...)...)
	group.Show(deps.Control)
	return group.Run(ctx)
}

// ofThisNode returns the settings with the name of this node, whose tables reduce the pods of other nodes.
func (d *daemon) ofThisNode() options {
	o := d.options
	o.datastore.kube.Node = d.deps.Node.Name
	return o
}

// showWaiting reports why the datastore is not open yet, or does not answer.
func (n *nodePart) showWaiting(err error) {
	n.deps.Control.Datastore.Show(server.DatastoreSource{Type: n.deps.Node.Datastore,
		Waiting: "waiting for it: " + err.Error(), Last: n.host.last.InUse})
	n.host.last.Waiting(err)
}

// register registers the node, with its addresses.
func (n *nodePart) register(ctx context.Context, deps deps.Deps) (m *membership, err error) {
	m = &membership{config: n.options.nodeConfig()}
	completeConfig(ctx, deps, &m.config)
	if n.options.node.detectsFromKubernetes() && deps.Kube != nil {
		if m.config.Kubernetes, err = kubernetesAddress(deps.Kube, deps.Node.Kubernetes); err != nil {
			return nil, err
		}
	}
	m.config.Waiting = n.showWaiting
	m.registered, err = node.Register(ctx, m.config, deps.Store, node.System{}, deps.Log.Named("node"))
	if err != nil {
		return nil, err
	}
	if err := deps.Store.UpgradeNode(ctx, deps.Node.Name); err != nil {
		return nil, err
	}
	if n.options.networking.policyOnly() {
		return m, nil
	}
	m.tunnels = &node.Tunnels{Store: deps.Store, IPAM: ipam.New(deps.Store, deps.Log.Named("ipam"), time.Now),
		Node: deps.Node.Name, Types: n.options.tunnelTypes(), Linger: overlay.Linger,
		PodCIDR: m.config.UsePodCIDR, EncryptsHosts: encryptsHosts(deps.Node), Log: deps.Log.Named("tunnels")}
	if err := m.tunnels.Ensure(ctx); err != nil {
		// Its part tries again; a node without a tunnel address is still useful for pools without a tunnel.
		deps.Log.Error("no tunnel address yet", zap.Error(err))
	}
	return m, nil
}

// encryptsHosts returns whether a node's own packets are encrypted, by objects of the datastore.
func encryptsHosts(n deps.Node) func(model.Reader) bool {
	return func(r model.Reader) bool {
		on := felixconfig.Merge(r, n.Name, n.Felix).WireguardHostEncryptionEnabled
		return on != nil && *on
	}
}

// tunnelTypes returns the tunnels whose addresses this node maintains.
func (o options) tunnelTypes() []node.TunnelType {
	devices := overlay.DeviceNames()
	if o.datastore.kube.UsePodCIDR { // Nodes that are read from Kubernetes have the other ones
		devices = slices.DeleteFunc(devices, func(name string) bool { return !overlay.HasVTEPs(name) })
	}
	return node.TunnelTypes(devices...)
}

// podFamilies returns the families in which pods get an address by the built-in configuration of the plugin.
func (o options) podFamilies() (f install.Families) {
	c := o.nodeConfig()
	f.V4, f.V6 = c.PodFamilies()
	return f
}

// nodeConfig returns the settings of registration.
func (o options) nodeConfig() node.Config {
	c := o.node.config()
	c.KubernetesDatastore, c.UsePodCIDR = o.datastore.kind == connect.Kubernetes, o.datastore.kube.UsePodCIDR
	c.WaitForDatastore, c.NoIPv6, c.PolicyOnly = o.datastore.wait, o.noIPv6(), o.networking.policyOnly()
	if c.KubernetesDatastore {
		c.ClusterType += ",kdd"
	}
	return c
}
