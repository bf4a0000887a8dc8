package main

import (
	"context"
	"net/netip"
	"path/filepath"

	"golang.org/x/sync/errgroup"

	"github.com/manxnet/manx/daemon/bus"
	"github.com/manxnet/manx/daemon/deps"
	"github.com/manxnet/manx/daemon/hostservers"
	"github.com/manxnet/manx/daemon/kubereport"
	"github.com/manxnet/manx/daemon/part"
	"github.com/manxnet/manx/dataplane"
	"github.com/manxnet/manx/dataplane/hoststate"
	"github.com/manxnet/manx/dataplane/offload"
	"github.com/manxnet/manx/dataplane/pathmtu"
	"github.com/manxnet/manx/dataplane/wireguard"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/proto/server"
)

// dataplanePart maintains routes, interfaces and their settings.
type dataplanePart struct {
	*dataplane.HostAgent
	servers *hostservers.Servers
	view    *server.DataplaneView
	keys    bus.Latest[wireguard.Keys] // of this node's devices
}

// newDataplane makes the part. With policyOnly another program makes the network of pods, and their MTU.
func newDataplane(d deps.Deps, o hostOptions, p policyOptions, s *hostservers.Servers, policyOnly bool) *dataplanePart {
	if policyOnly {
		o.mtuFile = ""
	}
	a := &dataplanePart{servers: s, view: d.Control.Dataplane}
	a.HostAgent = dataplane.New(dataplane.Config{
		Kernel: dataplane.KernelOf(d.Kernel), NodeName: d.Node.Name, Logger: d.Log.Named("dataplane"),
		MTUFile: o.mtuFile, PolicyOnly: policyOnly, EndpointStatusDir: o.endpointStatusDir, Felix: d.Node.Felix,
		WithPolicy: p.on, Connected: d.Bus.Connected.Publish, Repaired: kubereport.RepairedBy(d.Events),
		Moved: func() { d.Bus.Undecided.Publish(struct{}{}) },
		Links: d.Bus.Links.Publish, Reassembly: p.reassemblyRoom(), OwnersFile: ownersFile(d.Node),
		EncryptionRequired: p.encryptionRequired, Keys: a.keys.Publish, Probe: probeOf(d, o),
		Offload: offloadOf(d, o), RepairOffload: o.offloadCheck == offloadRepair})
	a.SetServers(s.Addresses(), s.Endpoints())
	d.Bus.PolicyReached.Subscribe(a.SetPolicy)
	a.view.Show(server.DataplaneSource{Agent: a.HostAgent})
	return a
}

// probeOf returns the way to measure the paths to other nodes, nil if the settings forbid it.
func probeOf(d deps.Deps, o hostOptions) func(from, to netip.Addr, mark uint32) (pathmtu.Prober, error) {
	if !o.measurePaths {
		return nil
	}
	return dataplane.EchoOf(d.Kernel)
}

// offloadOf returns the way to find out which checksums get to other nodes, nil if the settings forbid it.
func offloadOf(d deps.Deps, o hostOptions) offload.Prober {
	if o.offloadCheck == offloadOff {
		return nil
	}
	return dataplane.OffloadOf(d.Kernel)
}

// ownersFile is the path of the file of the owners of addresses. Those of another datastore have other identities.
func ownersFile(n deps.Node) string { return filepath.Join(n.RunDir, "address-owners-"+n.Datastore) }

func (p *dataplanePart) Name() string        { return "dataplane" }
func (p *dataplanePart) Ready() server.Check { return p.view.Ready() }

// Needs implements part.Watcher: of blocks the host's own are enough, but the owners of addresses may be anywhere.
func (p *dataplanePart) Needs() part.Needs {
	needs := part.AllOf(hoststate.Kinds()...)
	for i := range needs {
		if needs[i].Kind == model.KindBlockAffinity {
			needs[i].Scope = part.Own
		}
	}
	return needs
}

// Run implements part.Part.
func (p *dataplanePart) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return p.servers.Follow(ctx, p.SetServers) })
	group.Go(func() error { return p.HostAgent.Run(ctx) })
	return group.Wait()
}
