package kubernetes

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"sync"
	"time"

	"go.uber.org/zap"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/kubernetes/form"
	"github.com/manxnet/manx/datastore/model"
)

const (
	minDelay = 100 * time.Millisecond
	maxDelay = 15 * time.Second
	// stable is the lifetime of a watch after which the next failure counts as the first.
	stable = 10 * time.Second
	// queued is the number of events that may wait for the reader, so that it can take them in batches.
	queued = 1024
	// lifetime is the minimum requested duration of a watch, and half of the maximum: watches end now and then, so that
	// servers share them, and not all at the same time.
	lifetime = 5 * time.Minute
	// absentInterval is the interval between checks for a missing kind.
	absentInterval = 30 * time.Second
)

var errConnectionLost = errors.New("the connection was lost")

// Watch implements datastore.Store.
//
// Each kind is followed separately, and has its own clock. At first all objects come as initial events of the watch if
// the server supports that, and page by page otherwise. A watch that ends continues at its last revision. Only if the
// server has compacted that is everything read again, and only the differences are delivered, with EventDelete for
// deleted objects; a change that was undone meanwhile is not reported.
//
// A kind without its CustomResourceDefinition has no objects, and is in sync; its watch starts when the definition
// appears. Known objects stay until the server reports their deletion.
//
// EventLost is sent for each failed attempt, with the reason. The channel is closed when ctx or the Store ends.
func (s *Store) Watch(ctx context.Context, kinds ...model.Kind) <-chan datastore.Event {
	out := make(chan datastore.Event, queued)
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(s.ctx, cancel)
	var feeds []*feed
	err := errors.New("no kind is given")
	for i, kind := range kinds {
		if _, err = s.resource(kind); err != nil {
			break
		}
		if slices.Contains(kinds[:i], kind) {
			continue
		}
		feeds = append(feeds, &feed{store: s, kind: kind, out: out})
	}
	s.watches.Go(func() {
		defer close(out)
		defer cancel()
		defer stop()
		if err != nil {
			out <- datastore.Event{Type: datastore.EventLost, Err: fmt.Errorf("watch: %w", err)}
			return
		}
		var running sync.WaitGroup
		for _, f := range feeds {
			running.Go(func() { f.run(ctx) })
		}
		running.Wait()
	})
	return out
}

// feed follows one kind.
type feed struct {
	store *Store
	kind  model.Kind
	out   chan<- datastore.Event

	// known are the revisions of the delivered objects that exist.
	known map[model.Key]int64
	// names are the last valid keys of IPAM's custom resources, by name: a key follows from the content, and a resource
	// with unusable content has its name as its key.
	names map[string]model.Key
	at    int64 // everything up to here was delivered; 0: read everything
	// lost is set if the reader knows of the loss, or has received nothing yet.
	lost bool
	// held is an event that waits for the next one, which has arrived: the reader takes both in one step.
	held *datastore.Event
	hold bool
	// none is set if the reader knows that there are no objects because the kind is missing.
	none bool
}

func (f *feed) run(ctx context.Context) {
	f.known, f.names, f.lost = map[model.Key]int64{}, map[string]model.Key{}, true
	delay := minDelay
	for {
		began := time.Now()
		err := f.once(ctx)
		if ctx.Err() != nil {
			return
		}
		if time.Since(began) > stable {
			delay = minDelay
		}
		wait := delay/2 + rand.N(delay) // jitter: a thousand nodes lose the same server at once
		exact := false                  // the server set Retry-After
		switch r, _ := f.store.resource(f.kind); {
		case err == nil: // a normal end: continue from there
			wait = min(wait, time.Second)
		case noResource(err) && r.custom && len(f.known) == 0:
			wait = absentInterval/2 + rand.N(absentInterval)
			f.absent(ctx, r)
		default:
			if lostConnection(err) { // another server may answer next
				f.store.mayBeginWithAll()
			}
			if !f.fail(ctx, r, err) {
				return
			}
			if isGone(err) { // it exists, and was deleted with all its objects at once
				delay, wait = minDelay, rand.N(time.Second)
			}
			if seconds, ok := apierrors.SuggestsClientDelay(err); ok {
				after, _ := retryAfter(seconds)
				wait, exact = max(wait, after+rand.N(time.Second)), true
			}
		}
		if !f.store.sleepUntilReached(ctx, wait, exact) {
			return
		}
		delay = min(2*delay, maxDelay)
	}
}

// sleepUntilReached waits, but not much longer than until another kind is followed again: then the server is back. With
// a Retry-After it waits exactly that long. It returns false if ctx ended.
func (s *Store) sleepUntilReached(ctx context.Context, d time.Duration, exact bool) bool {
	if exact {
		return sleep(ctx, d)
	}
	s.mu.Lock()
	reached := s.reached
	s.mu.Unlock()
	select {
	case <-ctx.Done():
		return false
	case <-reached:
		return sleep(ctx, rand.N(minDelay))
	case <-time.After(d):
		return true
	}
}

// opened notifies the waiting feeds that the server answers.
func (s *Store) opened(r resource) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.missing, r.String())
	close(s.reached)
	s.reached = make(chan struct{})
}

// sleep waits for d. It returns false if ctx ended.
func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// fail reports the loss of the kind to the reader.
func (f *feed) fail(ctx context.Context, r resource, err error) bool {
	if isGone(err) {
		f.at = 0
		err = &apiError{datastore.ErrUnavailable,
			"the history since the last change is forgotten, reading everything again"}
	}
	if noResource(err) && r.custom {
		err = f.store.absent(ctx, r)
	}
	f.lost, f.none = true, false
	return f.send(ctx, datastore.Event{Type: datastore.EventLost, Kinds: []model.Kind{f.kind}, Revision: f.at,
		Err: f.store.explain(ctx, err)})
}

// absent reports to the reader that there are no objects, since the server does not have the kind.
func (f *feed) absent(ctx context.Context, r resource) {
	_ = f.store.absent(ctx, r)
	f.at = 0
	if !f.none {
		f.none, f.lost = true, false
		f.send(ctx, datastore.Event{Type: datastore.EventInSync, Kinds: []model.Kind{f.kind}})
	}
}

// once reads everything if necessary, and follows changes until the watch ends. nil: a normal end.
func (f *feed) once(ctx context.Context) error {
	r, err := f.store.resource(f.kind)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if f.at == 0 && f.store.beginsWithAll(r) {
		begin := f.followFromStart
		if r.many {
			begin = f.readWhole
		}
		err := begin(ctx, r)
		switch {
		case cannotStream(err):
			f.store.cannotBeginWithAll(r, err)
		case err != nil || !r.many:
			return err
		}
	}
	if f.at == 0 {
		if err := f.read(ctx, r); err != nil {
			return err
		}
	}
	stream, err := f.open(ctx, r, url.Values{"resourceVersion": {strconv.FormatInt(f.at, 10)}})
	if err != nil {
		return err
	}
	defer stream.Close() //nolint:errcheck // it was read
	if f.lost && !f.inSync(ctx) {
		return ctx.Err()
	}
	return f.follow(ctx, r, framesOf(r, stream))
}

// open begins a watch.
func (f *feed) open(ctx context.Context, r resource, query url.Values) (io.ReadCloser, error) {
	query.Set("watch", "true")
	query.Set("allowWatchBookmarks", "true")
	query.Set("timeoutSeconds", strconv.Itoa(int((lifetime + rand.N(lifetime)).Seconds())))
	if r.fields != "" {
		query.Set("fieldSelector", r.fields)
	}
	accept := r.accept()
	if r.protobuf {
		accept += ";stream=watch"
	}
	// The response starts at once; a server that accepts connections but sends nothing is given up.
	ctx, cancel := context.WithCancelCause(ctx)
	limit := time.AfterFunc(requestTimeout, func() {
		cancel(fmt.Errorf("%w: %s does not answer in time", datastore.ErrUnavailable, f.store.host))
	})
	stream, err := f.store.client.stream(ctx, request{verb: http.MethodGet, path: r.path("", ""), accept: accept,
		query: query})
	if !limit.Stop() || err != nil {
		cancel(nil)
		if cause := context.Cause(ctx); errors.Is(cause, datastore.ErrUnavailable) {
			return nil, cause
		}
		return nil, err
	}
	if f.lost {
		f.store.opened(r)
	}
	return &cancelled{stream, func() { cancel(nil) }}, nil
}

// cancelled is a stream that cancels its context when it is closed.
type cancelled struct {
	io.ReadCloser
	cancel func()
}

func (c *cancelled) Close() error {
	c.cancel()
	return c.ReadCloser.Close()
}

func framesOf(r resource, stream io.Reader) frames {
	if r.protobuf {
		return &protobufFrames{reader: bufio.NewReaderSize(stream, gatherUpTo)}
	}
	return jsonFrames{decoder: json.NewDecoder(stream)}
}

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
	if len(f.known) > 0 {
		r.present = make(map[model.Key]bool, len(f.known))
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
	return r.known[o.Key] == o.Revision || r.changed(ctx, o)
}

// complete delivers deletions, and EventInSync at a revision. If that is before the delivered ones, the datastore was
// restored to an earlier state: then equal revisions prove nothing, and everything is delivered again.
func (r *reading) complete(ctx context.Context, at int64) error {
	if at < r.newest() {
		return r.putBack()
	}
	if r.present != nil {
		for k := range r.known {
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
	for k := range f.known {
		f.known[k] = -1
	}
	f.at = 0
	return &apierrors.StatusError{ErrStatus: metav1.Status{Code: http.StatusGone, Reason: metav1.StatusReasonExpired,
		Message: "the datastore was put back to an earlier state"}}
}

// newest returns the highest delivered revision of the existing objects.
func (f *feed) newest() (n int64) {
	for _, revision := range f.known {
		n = max(n, revision)
	}
	return n
}

func (f *feed) inSync(ctx context.Context) bool {
	f.lost, f.none = false, false
	return f.send(ctx, datastore.Event{Type: datastore.EventInSync, Kinds: []model.Kind{f.kind}, Revision: f.at})
}

// follow delivers changes as they happen, until the watch ends. Those that have arrived together become one step of the
// reader.
func (f *feed) follow(ctx context.Context, r resource, events frames) error {
	defer func() { f.hold = false; f.release(ctx) }()
	for {
		if !events.ready() {
			f.release(ctx)
		}
		e, err := events.next()
		f.hold = err == nil && events.ready()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil {
			err = f.event(ctx, r, e)
		}
		if err != nil {
			return err
		}
	}
}

// event processes one event of a watch.
func (f *feed) event(ctx context.Context, r resource, e frame) error {
	switch e.typ {
	case "ERROR":
		return e.status(r.protobuf)
	case "BOOKMARK":
		m, err := e.bookmark(r.protobuf)
		if err != nil {
			return err
		}
		at, err := strconv.ParseInt(m.Metadata.ResourceVersion, 10, 64)
		switch {
		case err != nil:
		case at < f.at:
			return f.putBack()
		default:
			f.at = at
		}
		return nil
	}
	o, err := r.decode(e.object)
	if err != nil {
		f.store.log.Warn("an object cannot be read", zap.Stringer("resource", r), zap.Error(err))
		return nil
	}
	if o == nil {
		return nil
	}
	deliver := f.changed
	if e.typ == "DELETED" || form.Deleted(o) {
		deliver = f.gone
	}
	if !deliver(ctx, o) {
		return ctx.Err()
	}
	f.at = max(f.at, o.Revision)
	return nil
}

// changed delivers a version of an object. A repaired IPAM object loses the key that it had while it was invalid.
func (f *feed) changed(ctx context.Context, o *model.Object) bool {
	if form.TwoSteps(f.kind) && o.Err == nil {
		name := f.nameOf(o)
		if bad := model.ResourceKey(f.kind, name); bad != o.Key && !f.deleted(ctx, bad, o) {
			return false
		}
		f.names[name] = o.Key
	}
	f.known[o.Key] = o.Revision
	return f.send(ctx, datastore.Event{Type: datastore.EventUpdate, Key: o.Key, Object: o, Revision: o.Revision})
}

// nameOf returns the name of the custom resource of an object of IPAM.
func (f *feed) nameOf(o *model.Object) string {
	if name, err := form.Name(o.Key); err == nil {
		return name
	}
	return o.Key.Name
}

// gone delivers the deletion of an object, whatever its key was.
func (f *feed) gone(ctx context.Context, o *model.Object) bool {
	if form.TwoSteps(f.kind) {
		name := f.nameOf(o)
		last, ok := f.names[name]
		delete(f.names, name)
		if ok && !f.deleted(ctx, last, o) || !f.deleted(ctx, model.ResourceKey(f.kind, name), o) {
			return false
		}
	}
	return f.deleted(ctx, o.Key, o)
}

// deleted delivers the deletion of a key with a version of the object, if known.
func (f *feed) deleted(ctx context.Context, k model.Key, with *model.Object) bool {
	if _, known := f.known[k]; !known || k == with.Key && f.known[k] > with.Revision {
		return true
	}
	return f.drop(ctx, k, with.Revision)
}

func (f *feed) drop(ctx context.Context, k model.Key, revision int64) bool {
	delete(f.known, k)
	f.store.forget(k)
	return f.send(ctx, datastore.Event{Type: datastore.EventDelete, Key: k, Revision: revision})
}

// forget drops the notices of a deleted object.
func (s *Store) forget(k model.Key) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.reported, k)
}

// send delivers an event to the reader, after the held one. It returns false if ctx ended first.
func (f *feed) send(ctx context.Context, e datastore.Event) bool {
	if held := f.held; held != nil {
		f.held, held.More = nil, true
		if !f.emit(ctx, *held) {
			return false
		}
	}
	if f.hold {
		f.held = &e
		return true
	}
	return f.emit(ctx, e)
}

// release delivers the held event, which nothing follows.
func (f *feed) release(ctx context.Context) {
	if held := f.held; held != nil {
		f.held = nil
		f.emit(ctx, *held)
	}
}

func (f *feed) emit(ctx context.Context, e datastore.Event) bool {
	select {
	case f.out <- e:
		return true
	case <-ctx.Done():
		return false
	}
}

// isGone reports whether the server has compacted the revision at which the watch should start.
func isGone(err error) bool {
	return apierrors.IsResourceExpired(err) || apierrors.IsGone(err)
}
