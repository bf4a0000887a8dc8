package main

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/manxnet/manx/bgp"
	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/datastore/node"
	manxv1 "github.com/manxnet/manx/proto/manx/v1"
)

// movePeers drains BGP peers of a node, or brings them back, through the daemon or the datastore.
func (c *cli) movePeers(ctx context.Context, args, peers []string, drain, wait bool) error {
	name, daemon := c.nodeOfDaemon(args)
	if daemon {
		return c.movePeersByDaemon(ctx, name, peers, drain, wait)
	}
	name = args[0]
	store, err := c.open(ctx)
	if err != nil {
		return err
	}
	defer store.Close()
	if drain {
		if err := needsBGP(ctx, store, name); err != nil {
			return err
		}
	}
	addresses, err := peersOf(ctx, store, name, peers, drain)
	if err != nil {
		return err
	}
	move := node.CancelPeerDrain
	if drain {
		move = node.RequestPeerDrain
	}
	before, err := move(ctx, store, name, addresses)
	if err != nil {
		return err
	}
	if done, err := c.peersMoved(peers, string(before), drain, wait); done {
		return err
	}
	return c.followPeers(ctx, store, name, addresses, drain)
}

// peersMoved prints the result of a request if nothing is left to wait for.
func (c *cli) peersMoved(peers []string, before string, drain, wait bool) (done bool, err error) {
	list := strings.Join(peers, ", ")
	switch {
	case drain && before == string(model.Drained):
		return true, c.printf("peer %s: drained already", list)
	case !drain && before == string(model.InService):
		return true, c.printf("peer %s: in service already", list)
	case drain && !wait:
		return true, c.printf("peer %s is to be drained", list)
	case !wait:
		return true, c.printf("peer %s is to come back", list)
	}
	return false, nil
}

// peersOf returns the addresses that names of a node's peers mean. It reads the objects that configure sessions.
func peersOf(ctx context.Context, store datastore.Store, name string, names []string, drain bool) ([]netip.Addr,
	error) {
	objects := model.Set{}
	for _, kind := range []model.Kind{model.KindNode, model.KindBGPConfiguration, model.KindBGPPeer} {
		list, _, err := store.List(ctx, kind, "")
		if err != nil {
			return nil, err
		}
		for _, o := range list {
			objects[o.Key] = o
		}
	}
	n := model.Get[model.Node](objects, model.ResourceKey(model.KindNode, name))
	if n == nil {
		return nil, fmt.Errorf("node %s: %w", name, datastore.ErrNotFound)
	}
	sessions := bgp.Compute(bgp.Input{Reader: objects, Node: name}).Sessions
	if drain {
		return bgp.PeersToDrain(sessions, names)
	}
	drained, _ := n.DrainPeers()
	return bgp.PeersToUndrain(sessions, drained, names)
}

// followPeers waits until the node's daemon has answered the request.
func (c *cli) followPeers(
	ctx context.Context, store datastore.Store, name string, peers []netip.Addr, drain bool,
) error {
	ctx, cancel := context.WithTimeout(ctx, answerMargin)
	defer cancel()
	for n := range nodeVersions(ctx, store, name) {
		drained := n.DrainedPeers()
		if !slices.ContainsFunc(peers, func(a netip.Addr) bool { return slices.Contains(drained, a) != drain }) {
			return c.printPeers(strings.Split(model.AddressList(peers), ","), drain)
		}
	}
	if ctx.Err() == context.DeadlineExceeded {
		return notYet(name)
	}
	return ctx.Err()
}

func (c *cli) printPeers(peers []string, drain bool) error {
	phase := "in service"
	if drain {
		phase = "drained: its routes are the last choice"
	}
	for _, a := range peers {
		if err := c.printf("peer %s: %s", a, phase); err != nil {
			return err
		}
	}
	return nil
}

func notYet(name string) error {
	return fmt.Errorf("node %s did not get there within %s: is manxd running on it? The request stays in the "+
		"datastore; manxd follows it when it runs", name, answerMargin)
}

// movePeersByDaemon requests it of the daemon; node, if any, must be the name of its node.
func (c *cli) movePeersByDaemon(ctx context.Context, node string, names []string, drain, wait bool) error {
	var before string
	var peers []string
	err := c.daemon(ctx, func(ctx context.Context, m manxv1.ManxClient) error {
		if !drain {
			r, err := m.Undrain(ctx, &manxv1.UndrainRequest{Node: node, Peers: names})
			before, peers = r.GetBefore(), r.GetPeers()
			return err
		}
		r, err := m.Drain(ctx, &manxv1.DrainRequest{Node: node, Peers: names})
		before, peers = r.GetBefore(), r.GetPeers()
		return err
	})
	if err != nil {
		return err
	}
	if done, err := c.peersMoved(names, before, drain, wait); done {
		return err
	}
	want := model.InService
	if drain {
		want = model.Drained
	}
	for end := time.Now().Add(answerMargin); ; time.Sleep(drainPoll) {
		moved := 0
		err := c.daemon(ctx, func(ctx context.Context, m manxv1.ManxClient) error {
			list, err := m.ListPeers(ctx, &manxv1.ListPeersRequest{})
			moved = len(peers)
			for _, p := range list.GetPeers() {
				if slices.Contains(peers, p.GetAddress()) && p.GetDrain() != string(want) {
					moved--
				}
			}
			return err
		})
		switch {
		case err != nil:
			return err
		case moved == len(peers):
			return c.printPeers(peers, drain)
		case time.Now().After(end):
			return notYet(cmp.Or(node, "of this daemon"))
		}
	}
}
