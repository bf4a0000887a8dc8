package main

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"sync/atomic"

	"github.com/manxnet/manx/daemon/deps"
	"github.com/manxnet/manx/daemon/kubenode"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/datastore/node"
	"github.com/manxnet/manx/proto/server"
)

// addresses detects the addresses of this node repeatedly, as configured.
type addresses struct {
	deps.Deps
	*membership
	result atomic.Pointer[node.Result]
	last   string // addresses as text
}

func newAddresses(d deps.Deps, m *membership) *addresses {
	a := &addresses{Deps: d, membership: m, last: addressesText(m.registered.Node)}
	a.result.Store(&m.registered)
	d.Control.Node.Show(server.NodeSource{
		Addresses: func() []server.AddressCandidate { return shown(a.result.Load().Candidates) },
	})
	return a
}

func (a *addresses) Name() string { return "addresses" }

// Run returns at once if no address is detected.
func (a *addresses) Run(ctx context.Context) error {
	node.Monitor{Config: a.config, Registered: a.registered, Store: a.Store, Host: node.System{}, Changed: a.changed,
		Log: a.Log.Named("node")}.Run(ctx)
	return nil
}

// Notices implements server.Noticer: what registration and detection warned of last, such as a failed detection.
func (a *addresses) Notices() (list []server.Notice) {
	for _, text := range a.result.Load().Warnings {
		list = append(list, server.Notice{Topic: "node", Subject: a.Node.Name, Text: text})
	}
	return list
}

// changed applies a new result.
func (a *addresses) changed(r node.Result) {
	a.result.Store(&r)
	was := a.last
	if a.last = addressesText(r.Node); a.last != was {
		a.Events.Warn(kubenode.AddressChanged, fmt.Sprintf("the addresses of this node are now %s; they were %s",
			a.last, was))
	}
}

// addressesText lists the addresses of a Node.
func addressesText(n *model.Node) string {
	var list []string
	for _, f := range []model.Family{model.IPv4, model.IPv6} {
		if n != nil && n.Spec.BGP.Address(f).IsValid() {
			list = append(list, n.Spec.BGP.Address(f).String())
		}
	}
	return cmp.Or(strings.Join(list, " and "), "none")
}

// shown returns the candidates in the form of the control API.
func shown(candidates []node.Candidate) []server.AddressCandidate {
	list := make([]server.AddressCandidate, len(candidates))
	for i, c := range candidates {
		list[i] = server.AddressCandidate{Address: c.Address, Interface: c.Interface, Method: c.Method,
			Chosen: c.Chosen, Reason: c.Reason}
	}
	return list
}
