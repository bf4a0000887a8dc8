package kubernetes

import (
	"context"
	"fmt"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/kubernetes/form"
	"github.com/manxnet/manx/datastore/model"
)

// read reads everything page by page.
func (f *feed) read(ctx context.Context, r resource) error {
	return f.readBy(ctx, r, func(each func(*model.Object) error) (int64, error) {
		return f.store.pages(ctx, r, listing{once: true}, each)
	})
}

// readBy delivers all objects of a visit, which returns their revision.
func (f *feed) readBy(
	ctx context.Context, r resource, visit func(each func(*model.Object) error) (int64, error),
) error {
	seen, err := f.newReading(ctx)
	if err != nil {
		return err
	}
	at, err := visit(func(o *model.Object) error {
		f.store.present(r) // an object proves that the kind exists
		if !seen.deliver(ctx, o) {
			return ctx.Err()
		}
		return nil
	})
	if err != nil {
		return err
	}
	f.store.present(r)
	return seen.complete(ctx, at)
}

// reading computes the differences between the stored and the delivered objects.
type reading struct {
	*feed
	present map[model.Key]bool // nil if nothing was known before, so that nothing can be deleted
}

// newReading starts a full read, and notifies the reader: the following events are in no order.
func (f *feed) newReading(ctx context.Context) (*reading, error) {
	r := &reading{feed: f}
	if n := f.known.len(); n > 0 {
		r.present = make(map[model.Key]bool, n)
	}
	if !f.lost {
		f.lost, f.none = true, false
		if !f.send(ctx, datastore.Event{Type: datastore.EventLost, Kinds: []model.Kind{f.kind},
			Err: fmt.Errorf("%w: its definition has appeared, reading everything", datastore.ErrUnavailable)}) {
			return nil, ctx.Err()
		}
	}
	return r, nil
}

// deliver delivers an object if it is new or has changed. It returns false if ctx ended.
func (r *reading) deliver(ctx context.Context, o *model.Object) bool {
	if form.Deleted(o) {
		return true
	}
	if r.present != nil {
		r.present[o.Key] = true
		if last, ok := r.names[r.nameOf(o)]; ok { // for an invalid one the last valid version stays
			r.present[last] = true
		}
	}
	last, _ := r.known.get(o.Key)
	return last == o.Revision || r.changed(ctx, o)
}

// complete delivers deletions, and EventInSync at a revision. If that is before the delivered ones, the datastore was
// restored to an earlier state: then equal revisions prove nothing, and everything is delivered again.
func (r *reading) complete(ctx context.Context, at int64) error {
	if at < r.newest() {
		return r.putBack()
	}
	if r.present != nil {
		for k := range r.known.all {
			if !r.present[k] && !r.drop(ctx, k, at) {
				return ctx.Err()
			}
		}
	}
	r.at = at
	if !r.inSync(ctx) {
		return ctx.Err()
	}
	return nil
}

// putBack returns the error of a server whose revisions are older than before: all known revisions are invalid.
func (f *feed) putBack() error {
	f.known.forget()
	f.at = 0
	return &apierrors.StatusError{ErrStatus: metav1.Status{Code: http.StatusGone, Reason: metav1.StatusReasonExpired,
		Message: "the datastore was put back to an earlier state"}}
}

// newest returns the highest delivered revision of the existing objects.
func (f *feed) newest() (n int64) {
	for _, revision := range f.known.all {
		n = max(n, revision)
	}
	return n
}
