package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/manxnet/manx/daemon/part"
	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/connect"
	"github.com/manxnet/manx/datastore/node"
	"github.com/manxnet/manx/ipam"
	"github.com/manxnet/manx/proto/server"
)

// nodePart makes this host a node of its cluster, and runs the parts that need the datastore.
type nodePart struct{ *host }

func (n *nodePart) Name() string { return "node" }

// Run implements part.Part. An error ends the daemon. While BGP can follow the last state, a datastore that cannot be
// used does not, and once BGP does, nothing that keeps the node from joining: it tries again.
func (n *nodePart) Run(ctx context.Context) error {
	err := n.join(ctx)
	var early *earlyError
	if errors.As(err, &early) && (early.away && n.last.covers(err) || n.last.inUse() != nil) {
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

// joined is a node that has joined the cluster: the dependencies of its parts.
type joined struct {
	*host
	store      datastore.Backend
	config     node.Config
	registered node.Result
	tunnels    *node.Tunnels
}

// join registers the node and runs all parts that depend on the datastore.
func (n *nodePart) join(ctx context.Context) error {
	store, closeStore, err := openStore(ctx, n.ofThisNode(), n.showWaiting, n.log)
	if err != nil {
		var wrong *usageError
		if errors.As(err, &wrong) || ctx.Err() != nil {
			return err
		}
		return &earlyError{err, true}
	}
	defer closeStore()
	n.last.opened()
	err = n.waitForCalicoNode(ctx, n.kube, func() { n.last.setHold(true) })
	n.last.setHold(false)
	if err != nil {
		return err
	}
	j := &joined{host: n.host, store: store}
	if err := j.register(ctx); err != nil {
		return &earlyError{err, errors.Is(err, datastore.ErrUnavailable) || errors.Is(err, datastore.ErrUnauthorized)}
	}
	parts, err := n.parts(j)
	if err != nil {
		return err
	}
	group := part.NewGroup(n.log, append([]part.Part{newTables(j, parts)}, parts...)...)
	group.Show(n.control)
	return group.Run(ctx)
}

// ofThisNode returns the settings with the name of this node, whose tables reduce the pods of other nodes.
func (d *daemon) ofThisNode() options {
	o := d.options
	o.datastore.kube.Node = d.name
	return o
}

// showWaiting reports why the datastore is not open yet, or does not answer.
func (h *host) showWaiting(err error) {
	h.control.Datastore.Show(server.DatastoreSource{Type: h.options.datastore.kind,
		Waiting: "waiting for it: " + err.Error(),
		Last:    h.last.inUse})
	h.last.waiting(err)
}

// register registers the node, with its addresses.
func (j *joined) register(ctx context.Context) (err error) {
	j.config = j.nodeConfig()
	j.completeConfig(ctx)
	if j.options.node.detectsFromKubernetes() && j.kube != nil {
		j.config.Kubernetes, err = kubernetesAddress(j.kube, cmp.Or(j.options.node.kubernetesName, j.name))
		if err != nil {
			return err
		}
	}
	j.config.Waiting = j.showWaiting
	j.registered, err = node.Register(ctx, j.config, j.store, node.System{}, j.log.Named("node"))
	if err != nil {
		return err
	}
	if err := j.store.UpgradeNode(ctx, j.name); err != nil {
		return err
	}
	j.tunnels = &node.Tunnels{Store: j.store, IPAM: ipam.New(j.store, j.log.Named("ipam"), time.Now), Node: j.name,
		Types: j.tunnelTypes(), Log: j.log.Named("tunnels")}
	if err := j.tunnels.Ensure(ctx); err != nil {
		// Its part tries again; a node without a tunnel address is still useful for pools without a tunnel.
		j.log.Error("no tunnel address yet", zap.Error(err))
	}
	return nil
}

// tunnelTypes returns the tunnels with addresses from IPAM.
func (o options) tunnelTypes() []node.TunnelType {
	if o.datastore.kube.UsePodCIDR {
		return nil // Kubernetes' ranges decide
	}
	return []node.TunnelType{node.TunnelIPIP}
}

// nodeConfig returns the settings of registration.
func (o options) nodeConfig() node.Config {
	c := o.node.config()
	c.KubernetesDatastore, c.UsePodCIDR = o.datastore.kind == connect.Kubernetes, o.datastore.kube.UsePodCIDR
	c.WaitForDatastore, c.NoIPv6 = o.datastore.wait, o.host.noIPv6()
	if c.KubernetesDatastore {
		c.ClusterType += ",kdd"
	}
	return c
}
