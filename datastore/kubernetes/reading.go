package kubernetes

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/kubernetes/form"
	"github.com/manxnet/manx/datastore/model"
)

// readPlain reads everything from a server without streaming lists. It reads the list in the server's cache: a list as
// of now comes from etcd, and costs the server several times as much, for each node of the cluster.
//
// A cache may be older than etcd. Two things hold nevertheless:
//   - A server that does not reach its etcd is not believed: the first list follows a small read of the same kind from
//     etcd. So the cache is behind by no more than a watch may be.
//   - What this process has delivered is never taken back by an older cache, such as that of another server of the same
//     cluster. A later list demands the newest delivered change. A server whose cache does not have it in three seconds
//     refuses, and then the list comes from etcd page by page. The demand is a change of this very kind, because with
//     an etcd of version 3.4 a cache learns of no other revision for minutes.
func (f *feed) readPlain(ctx context.Context, r resource) error {
	visit := func(each func(*model.Object) error) (int64, error) {
		return f.store.pages(ctx, r, listing{once: true}, each)
	}
	if !f.asOfNow {
		q := url.Values{"resourceVersion": {strconv.FormatInt(f.newest, 10)}}
		if f.newest == 0 {
			q.Set("limit", strconv.Itoa(pageSize)) // for a server without a cache; one with a cache sends everything
			if _, err := f.store.latestRevision(ctx, r); err != nil {
				return err
			}
		}
		visit = func(each func(*model.Object) error) (int64, error) { return f.store.whole(ctx, r, q, each) }
	}
	err := f.readBy(ctx, r, visit)
	if apierrors.HasStatusCause(err, metav1.CauseTypeResourceVersionTooLarge) {
		f.asOfNow = true
	} else if err == nil {
		f.asOfNow = false
	}
	return err
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
	f.latest.forget()
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
	if at < r.newest {
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
	f.at, f.newest, f.asOfNow = 0, 0, true
	return &apierrors.StatusError{ErrStatus: metav1.Status{Code: http.StatusGone, Reason: metav1.StatusReasonExpired,
		Message: "the datastore was put back to an earlier state"}}
}
