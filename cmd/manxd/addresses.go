package main

import (
	"context"
	"sync/atomic"

	"github.com/manxnet/manx/datastore/node"
	"github.com/manxnet/manx/proto/server"
)

// addresses looks the addresses of this node up again, as its settings say.
type addresses struct {
	*joined
	candidates atomic.Pointer[[]node.Candidate]
}

func newAddresses(j *joined) *addresses {
	a := &addresses{joined: j}
	a.candidates.Store(&j.registered.Candidates)
	j.control.Node.Show(server.NodeSource{
		Addresses: func() []server.AddressCandidate { return shown(*a.candidates.Load()) },
	})
	return a
}

func (a *addresses) Name() string { return "addresses" }

// Run returns at once if no address is detected.
func (a *addresses) Run(ctx context.Context) error {
	node.Monitor(ctx, a.config, a.registered, a.store, node.System{},
		func(r node.Result) { a.candidates.Store(&r.Candidates) }, a.log.Named("node"))
	return nil
}

// shown are the candidates as the control API has them.
func shown(candidates []node.Candidate) []server.AddressCandidate {
	list := make([]server.AddressCandidate, len(candidates))
	for i, c := range candidates {
		list[i] = server.AddressCandidate{Address: c.Address, Interface: c.Interface, Method: c.Method,
			Chosen: c.Chosen, Reason: c.Reason}
	}
	return list
}
