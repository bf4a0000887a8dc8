package main

import (
	"context"
	"net/netip"
	"net/url"

	"github.com/manxnet/manx/dataplane"
	"github.com/manxnet/manx/dataplane/hoststate"
	"github.com/manxnet/manx/dataplane/kernel"
	"github.com/manxnet/manx/datastore/etcd"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/proto/server"
)

// dataplanePart maintains routes, interfaces and their settings.
type dataplanePart struct {
	*dataplane.HostAgent
	view    *server.DataplaneView
	onLinks []func([]kernel.Event) // called as OnLinks says
}

func newDataplane(h *host) *dataplanePart {
	p := &dataplanePart{view: h.control.Dataplane, HostAgent: dataplane.New(dataplane.Config{
		Kernel: dataplane.KernelOf(h.kernel), NodeName: h.name, Logger: h.log.Named("dataplane"), MTUFile: h.mtuFile,
		EndpointStatusDir: h.endpointStatusDir, InterfacePrefix: h.interfacePrefix, WithPolicy: h.policy,
		EndpointNews: &h.endpoints, Servers: h.servers(),
		Repaired: h.repaired})}
	p.OnLinks(func(events []kernel.Event) {
		for _, f := range p.onLinks {
			f(events)
		}
	})
	p.view.Show(server.DataplaneSource{Agent: p.HostAgent})
	return p
}

func (p *dataplanePart) Name() string        { return "dataplane" }
func (p *dataplanePart) Ready() server.Check { return p.view.Ready() }

func (p *dataplanePart) Kinds() []model.Kind { return hoststate.Kinds() }

// Run implements part.Part.
func (p *dataplanePart) Run(ctx context.Context) error { return p.HostAgent.Run(ctx) }

// servers returns the addresses of the servers that this daemon is configured with. Names of servers are not resolved.
func (h *host) servers() map[netip.Addr]string {
	list := map[netip.Addr]string{}
	add := func(at, what string) {
		u, err := url.Parse(at)
		if err != nil {
			return
		}
		if a, err := netip.ParseAddr(u.Hostname()); err == nil {
			list[a.Unmap().WithZone("")] = what
		}
	}
	for _, endpoint := range etcd.SplitEndpoints(h.etcdEndpoints) {
		add(endpoint, "the datastore")
	}
	if h.kube != nil {
		add(h.kube.Host, "the Kubernetes API")
	}
	return list
}
