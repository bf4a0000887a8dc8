package main

import (
	"context"
	"path/filepath"

	"golang.org/x/sync/errgroup"

	"github.com/manxnet/manx/dataplane"
	"github.com/manxnet/manx/dataplane/hoststate"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/proto/server"
)

// dataplanePart maintains routes, interfaces and their settings.
type dataplanePart struct {
	*dataplane.HostAgent
	servers *servers
	view    *server.DataplaneView
}

func newDataplane(h *host) *dataplanePart {
	p := &dataplanePart{view: h.control.Dataplane, HostAgent: dataplane.New(dataplane.Config{
		Kernel: dataplane.KernelOf(h.kernel), NodeName: h.name, Logger: h.log.Named("dataplane"),
		MTUFile:           h.options.host.mtuFile,
		EndpointStatusDir: h.options.host.endpointStatusDir, InterfacePrefix: h.options.host.interfacePrefix,
		WithPolicy:   h.options.policy.on,
		EndpointNews: &h.endpoints, Repaired: h.repaired, Reassembly: h.options.policy.reassemblyRoom(),
		OwnersFile: h.ownersFile()})}
	p.servers = newServers(h)
	p.SetServers(p.servers.addresses())
	p.OnLinks(h.bus.Links.Publish)
	h.bus.PolicyReached.Subscribe(p.SetPolicy)
	p.view.Show(server.DataplaneSource{Agent: p.HostAgent})
	return p
}

// ownersFile is the path of the file of the owners of addresses. Those of another datastore have other identities.
func (o options) ownersFile() string {
	return filepath.Join(o.host.runDir, "address-owners-"+o.datastore.kind)
}

func (p *dataplanePart) Name() string        { return "dataplane" }
func (p *dataplanePart) Ready() server.Check { return p.view.Ready() }

func (p *dataplanePart) Kinds() []model.Kind { return hoststate.Kinds() }

// Run implements part.Part.
func (p *dataplanePart) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return p.servers.follow(ctx, p.SetServers) })
	group.Go(func() error { return p.HostAgent.Run(ctx) })
	return group.Wait()
}
