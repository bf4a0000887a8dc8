package main

import (
	"context"

	"k8s.io/client-go/rest"

	"github.com/manxnet/manx/daemon/kubenode"
	"github.com/manxnet/manx/daemon/part"
	"github.com/manxnet/manx/dataplane/endpointstatus"
	"github.com/manxnet/manx/dataplane/kernel"
	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/proto/server"
)

// hostPart is the part that runs this host: first the parts that need no datastore, then the node of the cluster. Its
// errors end the daemon.
type hostPart struct{ *daemon }

func (h *hostPart) Name() string { return "host" }

func (h *hostPart) Run(ctx context.Context) error { return part.Fatal(h.runHost(ctx)) }

// host has the dependencies of the parts that need no datastore, and those that other parts use.
type host struct {
	*daemon
	kube      *rest.Config // settings of the Kubernetes API; nil if there is none
	tables    *datastore.Tables
	events    *kubenode.Events // about this node; nil without a Kubernetes API
	kernel    *kernel.Conn
	endpoints endpointstatus.News // the connected workloads, for the CNI
	last      *lastState

	dataplane *dataplanePart
	filter    *policyPart // nil: policy is disabled
	bgp       *bgpPart
}

// runHost runs the parts that need no datastore, and the node. They wait for the node's tables of the datastore, or act
// on the last state of an earlier run.
func (d *daemon) runHost(ctx context.Context) error {
	kube, err := d.kubernetesAPI(d.log)
	if err != nil {
		return err
	}
	release, err := beTheOnlyDaemon(d.log)
	if err != nil {
		return err
	}
	defer release()
	k, err := kernel.New()
	if err != nil {
		return err
	}
	defer k.Close() //nolint:errcheck // everything has been answered
	k.ProcSysNet = d.options.host.procSysNet
	h := &host{daemon: d, kube: kube, kernel: k, tables: datastore.NewTables(d.log.Named("datastore"), d.name)}
	if h.events, err = newEvents(h); err != nil {
		return err
	}
	h.ends.report(h.events)
	h.last = newLastState(h)
	d.control.Datastore.Show(server.DatastoreSource{Type: d.options.datastore.kind, Last: h.last.inUse})
	parts, err := hostParts(h)
	if err != nil {
		return err
	}
	group := part.NewGroup(d.log, append(parts, &nodePart{h})...)
	group.Show(d.control)
	return group.Run(ctx)
}
