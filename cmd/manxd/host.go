package main

import (
	"context"

	"github.com/manxnet/manx/daemon/kubereport"
	"github.com/manxnet/manx/daemon/part"
	"github.com/manxnet/manx/dataplane/kernel"
	"github.com/manxnet/manx/proto/server"
)

// hostPart is the part that runs this host: first the parts that need no datastore, then the node of the cluster. Its
// errors end the daemon.
type hostPart struct{ *daemon }

func (h *hostPart) Name() string { return "host" }

func (h *hostPart) Run(ctx context.Context) error { return part.Fatal(h.runHost(ctx)) }

// runHost runs the parts that need no datastore, and the node. They wait for the node's tables of the datastore, or act
// on the last state of an earlier run.
func (d *daemon) runHost(ctx context.Context) (err error) {
	deps := d.deps
	if deps.Kube, err = d.options.kubernetesAPI(deps.Log); err != nil {
		return err
	}
	release, err := beTheOnlyDaemon(deps.Log)
	if err != nil {
		return err
	}
	defer release()
	if deps.Kernel, err = kernel.New(d.options.host.procSysNet); err != nil {
		return err
	}
	defer deps.Kernel.Close() //nolint:errcheck // everything has been answered
	if deps.Events, err = kubereport.NewRecorder(deps); err != nil {
		return err
	}
	d.ends.report(deps.Events)
	host, err := newHost(d, deps)
	if err != nil {
		return err
	}
	deps.Control.Datastore.Show(server.DatastoreSource{Type: deps.Node.Datastore, Last: host.last.InUse})
	group := part.NewGroup(deps.Log, append(host.parts, &nodePart{daemon: d, deps: deps, host: host})...)
	group.Show(deps.Control)
	return group.Run(ctx)
}
