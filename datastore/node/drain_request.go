package node

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/model"
)

// RequestDrain requests the drain of a node by the annotations of its Node, despite concurrent writers. timeout is the
// time that traffic has to leave; it replaces that of an existing request. It returns the phase before.
func RequestDrain(ctx context.Context, store datastore.Store, name string, timeout time.Duration) (model.DrainPhase,
	error) {
	if timeout < 0 {
		return "", fmt.Errorf("drain timeout %s: want 0s or more", timeout)
	}
	return annotate(ctx, store, name, func(annotations map[string]string) {
		if _, requested := annotations[model.AnnotationDrain]; !requested {
			annotations[model.AnnotationDrain] = time.Now().UTC().Format(time.RFC3339)
		}
		annotations[model.AnnotationDrainTimeout] = timeout.String()
	})
}

// CancelDrain removes the request, so that the node returns to service. It returns the phase before.
func CancelDrain(ctx context.Context, store datastore.Store, name string) (model.DrainPhase, error) {
	return annotate(ctx, store, name, func(annotations map[string]string) {
		delete(annotations, model.AnnotationDrain)
		delete(annotations, model.AnnotationDrainTimeout)
	})
}

func annotate(ctx context.Context, store datastore.Store, name string,
	change func(map[string]string)) (before model.DrainPhase, err error) {
	err = update(ctx, store, name, func(n *model.Node) {
		before = n.DrainPhase()
		change(n.Annotations)
	})
	return before, err
}

// RequestPeerDrain requests the drain of BGP peers of a node, by an annotation of its Node, despite concurrent writers.
// It returns the phase before that all these peers had reached.
func RequestPeerDrain(ctx context.Context, store datastore.Store, name string, peers []netip.Addr) (
	before model.DrainPhase, err error) {
	err = update(ctx, store, name, func(n *model.Node) {
		before = model.Drained
		for _, a := range peers {
			if phase := n.PeerDrainPhase(a); phase != model.Drained && before != model.InService {
				before = phase
			}
		}
		requested, _ := n.DrainPeers()
		n.Annotations[model.AnnotationDrainPeers] = model.AddressList(slices.Concat(requested, peers))
	})
	return before, err
}

// CancelPeerDrain removes the request, so that these peers return to service. It returns InService if none of them was
// drained before, else Draining.
func CancelPeerDrain(ctx context.Context, store datastore.Store, name string, peers []netip.Addr) (
	before model.DrainPhase, err error) {
	err = update(ctx, store, name, func(n *model.Node) {
		requested, _ := n.DrainPeers()
		left := slices.DeleteFunc(slices.Clone(requested), func(a netip.Addr) bool { return slices.Contains(peers, a) })
		before = model.InService
		if len(left) < len(requested) {
			before = model.Draining
		}
		n.Annotations[model.AnnotationDrainPeers] = model.AddressList(left)
		if len(left) == 0 {
			delete(n.Annotations, model.AnnotationDrainPeers)
		}
	})
	return before, err
}

// NoteBGPOff writes AnnotationBGPOff to a Node, despite concurrent writers, and ends drains that were withdrawn: no
// other router has to learn of the return. off is the reason why there is no BGP. A Node that is so already is not
// written.
func NoteBGPOff(ctx context.Context, store datastore.Store, n *model.Node, off string) error {
	requested, _ := n.DrainPeers()
	if n.Annotations[model.AnnotationBGPOff] == off && n.DrainPhase() != model.Returning &&
		!slices.ContainsFunc(n.DrainedPeers(), func(a netip.Addr) bool { return !slices.Contains(requested, a) }) {
		return nil
	}
	return update(ctx, store, n.Name, func(n *model.Node) {
		n.Annotations[model.AnnotationBGPOff] = off
		if n.DrainPhase() == model.Returning {
			delete(n.Annotations, model.AnnotationDrained)
		}
		requested, _ := n.DrainPeers()
		left := slices.DeleteFunc(n.DrainedPeers(), func(a netip.Addr) bool { return !slices.Contains(requested, a) })
		if n.Annotations[model.AnnotationDrainedPeers] = model.AddressList(left); len(left) == 0 {
			delete(n.Annotations, model.AnnotationDrainedPeers)
		}
	})
}

// update changes a Node, whose annotations are not nil, despite concurrent writers.
func update(ctx context.Context, store datastore.Store, name string, change func(*model.Node)) error {
	for {
		o, err := store.Get(ctx, model.ResourceKey(model.KindNode, name))
		if err != nil {
			return err
		}
		n, ok := o.Value.(*model.Node)
		if !ok {
			return fmt.Errorf("node %s cannot be read: %w", name, o.Err)
		}
		if n.Annotations == nil {
			n.Annotations = map[string]string{}
		}
		change(n)
		if _, err = store.Update(ctx, o); !errors.Is(err, datastore.ErrConflict) {
			return err
		}
	}
}
