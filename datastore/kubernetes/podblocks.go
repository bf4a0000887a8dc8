package kubernetes

import (
	"context"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/model"
)

// podBlocks reports whether the objects of a kind are made of Nodes: where pods get their addresses from their node's
// pod CIDRs, these are its blocks.
func (s *Store) podBlocks(kind model.Kind) bool {
	return s.config.UsePodCIDR && kind == model.KindBlockAffinity
}

// affinitiesOf returns the block affinities of a Node with their keys: one for each valid CIDR of its pods.
func affinitiesOf(node *model.Object) map[model.Key]*model.Object {
	n, ok := node.Value.(*model.Node)
	if !ok {
		return nil
	}
	list := map[model.Key]*model.Object{}
	for _, text := range n.Status.PodCIDRs {
		p, err := netip.ParsePrefix(text)
		if err != nil {
			continue
		}
		key := model.AffinityKey(model.Affinity{Type: model.AffinityHost, Host: node.Key.Name, CIDR: p})
		o := model.NewObject(key, &model.BlockAffinity{State: model.StateConfirmed})
		o.Revision = node.Revision
		list[key] = o
	}
	return list
}

// listPodBlocks lists the affinities of all nodes, or of the one owner in namespace: "host/node-1".
func (s *Store) listPodBlocks(ctx context.Context, namespace string) (list []*model.Object, revision int64, err error) {
	nodes, revision, err := s.list(ctx, model.KindNode, "")
	if err != nil {
		return nil, 0, err
	}
	for _, n := range nodes {
		for key, o := range affinitiesOf(n) {
			if key.In(namespace) {
				list = append(list, o)
			}
		}
	}
	return list, revision, nil
}

// getPodBlock returns one affinity.
func (s *Store) getPodBlock(ctx context.Context, key model.Key) (*model.Object, error) {
	claim, ok := key.Affinity()
	if !ok {
		return nil, datastore.ErrNotFound
	}
	node, err := s.get(ctx, model.ResourceKey(model.KindNode, claim.Host))
	if err != nil {
		return nil, err
	}
	if o := affinitiesOf(node)[key]; o != nil {
		return o, nil
	}
	return nil, datastore.ErrNotFound
}

// watchPodBlocks follows kinds, of which BlockAffinity is one, and makes its events of those of Nodes.
func (s *Store) watchPodBlocks(ctx context.Context, kinds []model.Kind) <-chan datastore.Event {
	follow := slices.DeleteFunc(slices.Clone(kinds), s.podBlocks)
	withNodes := slices.Contains(follow, model.KindNode)
	if !withNodes {
		follow = append(follow, model.KindNode)
	}
	ctx, cancel := context.WithCancel(ctx)
	in, out := s.follow(ctx, follow), make(chan datastore.Event, queued)
	t := podBlockEvents{withNodes: withNodes, known: map[string]map[model.Key]*model.Object{}}
	s.watches.Go(func() {
		defer close(out)
		defer cancel()
		for e := range in {
			for _, translated := range t.translate(e) {
				select {
				case out <- translated:
				case <-ctx.Done():
					return
				case <-s.ctx.Done():
					return
				}
			}
		}
	})
	return out
}

// podBlockEvents makes events of BlockAffinities of those of Nodes.
type podBlockEvents struct {
	withNodes bool                                   // the events of Nodes are wanted, too
	known     map[string]map[model.Key]*model.Object // the affinities that were delivered, by node
}

// translate returns the events that follow from one: those of a Node and of its affinities are one step.
func (t *podBlockEvents) translate(e datastore.Event) []datastore.Event {
	if i := slices.Index(e.Kinds, model.KindNode); i >= 0 {
		e.Kinds = append(slices.Clone(e.Kinds), model.KindBlockAffinity)
		if !t.withNodes {
			e.Kinds = slices.Delete(e.Kinds, i, i+1)
		}
	}
	if e.Key.Kind != model.KindNode {
		return []datastore.Event{e}
	}
	var list []datastore.Event
	if t.withNodes {
		list = append(list, e)
	}
	list = append(list, t.differences(e)...)
	for i := range list {
		list[i].More = e.More || i < len(list)-1
	}
	return list
}

// differences returns the events of the affinities of a Node, in the order of their keys.
func (t *podBlockEvents) differences(e datastore.Event) (list []datastore.Event) {
	if e.Object != nil && e.Object.Err != nil {
		return nil // the blocks of its last valid version stay
	}
	was, is := t.known[e.Key.Name], map[model.Key]*model.Object(nil)
	if e.Type == datastore.EventUpdate {
		is = affinitiesOf(e.Object)
	}
	byName := func(a, b model.Key) int { return strings.Compare(a.Name, b.Name) }
	for _, key := range slices.SortedFunc(maps.Keys(was), byName) {
		if is[key] == nil {
			list = append(list, datastore.Event{Type: datastore.EventDelete, Key: key, Revision: e.Revision})
		}
	}
	for _, key := range slices.SortedFunc(maps.Keys(is), byName) {
		if was[key] == nil {
			list = append(list, datastore.Event{Type: datastore.EventUpdate, Key: key, Object: is[key],
				Revision: e.Revision})
		}
	}
	if t.known[e.Key.Name] = is; len(is) == 0 {
		delete(t.known, e.Key.Name)
	}
	return list
}
