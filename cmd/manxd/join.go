package main

import (
	"cmp"
	"context"
	"os"
	"time"

	"go.uber.org/zap"
	"k8s.io/client-go/rest"

	"github.com/manxnet/manx/cmd/manxd/kubenode"
	"github.com/manxnet/manx/cmd/manxd/part"
	"github.com/manxnet/manx/dataplane/endpointstatus"
	"github.com/manxnet/manx/dataplane/kernel"
	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/connect"
	"github.com/manxnet/manx/datastore/node"
	"github.com/manxnet/manx/ipam"
	"github.com/manxnet/manx/proto/server"
)

// membership is the part that makes this host a node of its cluster. Its errors end the daemon.
type membership struct{ *daemon }

func (m *membership) Name() string { return "node" }

func (m *membership) Run(ctx context.Context) error { return part.Fatal(m.join(ctx)) }

// joined is a node that has joined the cluster: the dependencies of its parts.
type joined struct {
	*daemon
	store      datastore.Backend
	kube       *rest.Config // settings of the Kubernetes API; nil if there is none
	tables     *datastore.Tables
	events     *kubenode.Events // about this node; nil without a Kubernetes API
	kernel     *kernel.Conn
	config     node.Config
	registered node.Result
	tunnels    *node.Tunnels
	endpoints  endpointstatus.News // the files by which CNI plugins see workloads connected
}

// join registers the node and runs all parts that depend on the datastore.
func (d *daemon) join(ctx context.Context) error {
	kube, err := d.kubernetesAPI(d.log)
	if err != nil {
		return err
	}
	store, closeStore, err := openStore(ctx, d.ofThisNode(), d.showWaiting, d.log)
	if err != nil {
		return err
	}
	defer closeStore()
	release, err := beTheOnlyDaemon(d.log)
	if err != nil {
		return err
	}
	defer release()
	if err := d.waitForCalicoNode(ctx, kube); err != nil {
		return err
	}
	k, err := kernel.New()
	if err != nil {
		return err
	}
	defer k.Close() //nolint:errcheck // everything has been answered
	k.ProcSysNet = d.procSysNet
	j := &joined{daemon: d, store: store, kube: kube, kernel: k, tables: datastore.NewTables(d.log.Named("datastore"),
		d.name)}
	if j.events, err = newEvents(j); err != nil {
		return err
	}
	if err := j.register(ctx); err != nil {
		return err
	}
	parts, err := d.parts(j)
	if err != nil {
		return err
	}
	group := part.NewGroup(d.log, append([]part.Part{newTables(j, parts)}, parts...)...)
	group.Show(d.control)
	return group.Run(ctx)
}

// ofThisNode returns the settings with the name of this node, whose tables reduce the pods of other nodes.
func (d *daemon) ofThisNode() options {
	o := d.options
	o.kube.Node = d.name
	return o
}

// showWaiting reports why the datastore is not open yet.
func (d *daemon) showWaiting(err error) {
	d.control.Datastore.Show(server.DatastoreSource{Type: d.datastore, Waiting: "waiting for it: " + err.Error()})
}

// register registers the node, with its addresses.
func (j *joined) register(ctx context.Context) (err error) {
	j.config = j.nodeConfig()
	j.completeConfig(ctx)
	if j.detectsFromKubernetes() && j.kube != nil {
		j.config.Kubernetes, err = kubernetesAddress(j.kube, cmp.Or(j.k8sNodeRef, j.name))
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
	if o.kube.UsePodCIDR {
		return nil // Kubernetes' ranges decide
	}
	return []node.TunnelType{node.TunnelIPIP}
}

func (o options) nameSources() node.NameSources {
	return node.NameSources{Configured: o.nodeName, File: o.nodeNameFile, HostName: os.Hostname,
		Env: os.Getenv("HOSTNAME")}
}

func (o options) nodeConfig() node.Config {
	return node.Config{
		Name: o.nameSources(),
		IP:   o.ip, IP6: o.ip6, IPMethod: o.ipMethod, IP6Method: o.ip6Method, PollInterval: o.pollInterval,
		AS: o.as, K8sNodeRef: o.k8sNodeRef, ClusterType: o.clusterTypes(),
		KubernetesDatastore: o.datastore == connect.Kubernetes, UsePodCIDR: o.kube.UsePodCIDR,
		DisableConflictCheck: o.disableConflictCheck, WaitForDatastore: o.waitForDatastore,
		NoDefaultPools: o.noDefaultPools, Pool4: o.pool4.config(), Pool6: o.pool6.config(), NoIPv6: o.noIPv6(),
	}
}

// clusterTypes returns the cluster types for ClusterInformation.
func (o options) clusterTypes() string {
	if o.datastore == connect.Kubernetes {
		return o.clusterType + ",kdd"
	}
	return o.clusterType
}

// noIPv6 reports whether the default IPv6 pool is disabled, by calico/node's rule.
func (o options) noIPv6() bool {
	if os.Getenv("FELIX_IPV6SUPPORT") == "false" {
		return true
	}
	return !kernel.HasIPv6(o.procSysNet)
}

func (p poolOptions) config() node.PoolConfig {
	return node.PoolConfig{CIDR: p.cidr, BlockSize: p.blockSize, IPIP: p.ipip, VXLAN: p.vxlan,
		NATOutgoing:      p.natOutgoing,
		DisableBGPExport: p.disableBGPExport, NodeSelector: p.nodeSelector}
}
