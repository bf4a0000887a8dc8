package node

import (
	"context"
	"errors"
	"fmt"
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
	change func(map[string]string)) (model.DrainPhase, error) {
	for {
		o, err := store.Get(ctx, model.ResourceKey(model.KindNode, name))
		if err != nil {
			return "", err
		}
		n, ok := o.Value.(*model.Node)
		if !ok {
			return "", fmt.Errorf("node %s cannot be read: %w", name, o.Err)
		}
		before := n.DrainPhase()
		if n.Annotations == nil {
			n.Annotations = map[string]string{}
		}
		change(n.Annotations)
		if _, err = store.Update(ctx, o); !errors.Is(err, datastore.ErrConflict) {
			return before, err
		}
	}
}
