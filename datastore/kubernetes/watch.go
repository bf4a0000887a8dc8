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
	// stable is how long a watch must have lived for the next failure to count as the first.
	stable = 10 * time.Second
	// queued is how many events may wait for the reader, so that it can take them in batches.
	queued = 1024
	// lifetime is how long the server is asked to keep a watch at least, and up to twice as long: a watch ends now and
	// then, so that servers share them, and not all at the same time.
	lifetime = 5 * time.Minute
	// absentInterval is how often a missing kind is looked for.
	absentInterval = 30 * time.Second
)

var errConnectionLost = errors.New("the connection was lost")

// Watch implements datastore.Store.
//
// Each kind is followed on its own, and has its own clock. At first everything comes in the watch itself where the
// server can do so, and page by page otherwise. A watch that ends begins again at the revision that it had reached.
// Only if the server has forgotten that is everything read again, and then only what differs is delivered, with
// EventDelete for what is gone; a change that was undone meanwhile is not reported.
//
// A kind whose CustomResourceDefinition is missing has no objects, and is in sync; its watch begins when the definition
// appears. Objects that are known stay until the server says itself that they are deleted.
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

	// known are the revisions of what was delivered and exists.
	known map[model.Key]int64
	// names are the last good keys of the custom resources of IPAM, by their names: a key follows from what such a one
	// says, and one that says nothing of use has its name as its key.
	names map[string]model.Key
	at    int64 // everything up to here was delivered; 0: everything is to be read
	// lost is whether the reader was told so, or of nothing yet.
	lost bool
	// none is whether the reader was told that there are none because the kind is missing.
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
		told := false                   // by the server when to come again
		switch r, _ := f.store.resource(f.kind); {
		case err == nil: // it ended as it should, and goes on where it was
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
			if isGone(err) { // it is there, and all that it had came to an end at once
				delay, wait = minDelay, rand.N(time.Second)
			}
			if seconds, ok := apierrors.SuggestsClientDelay(err); ok {
				after, _ := retryAfter(seconds)
				wait, told = max(wait, after+rand.N(time.Second)), true
			}
		}
		if !f.store.sleepUntilReached(ctx, wait, told) {
			return
		}
		delay = min(2*delay, maxDelay)
	}
}

// sleepUntilReached waits, and not much longer than until another kind could be followed again: then the server is
// back. If the server told when to come again, only that counts. It returns false if ctx ended.
func (s *Store) sleepUntilReached(ctx context.Context, d time.Duration, told bool) bool {
	if told {
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

// opened tells those who wait that the server answers.
func (s *Store) opened(r resource) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.missing, r.String())
	close(s.reached)
	s.reached = make(chan struct{})
}

// sleep waits, and returns false if ctx ended.
func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// fail tells the reader why the kind is lost.
func (f *feed) fail(ctx context.Context, r resource, err error) bool {
	if isGone(err) {
		f.at = 0
		err = &said{datastore.ErrUnavailable,
			"the history since the last change is forgotten, reading everything again"}
	}
	if noResource(err) && r.custom {
		err = f.store.absent(ctx, r)
	}
	f.lost, f.none = true, false
	return f.send(ctx, datastore.Event{Type: datastore.EventLost, Kinds: []model.Kind{f.kind}, Revision: f.at,
		Err: f.store.explain(ctx, err)})
}

// absent tells the reader that there are no objects, since the server does not have the kind.
func (f *feed) absent(ctx context.Context, r resource) {
	_ = f.store.absent(ctx, r)
	f.at = 0
	if !f.none {
		f.none, f.lost = true, false
		f.send(ctx, datastore.Event{Type: datastore.EventInSync, Kinds: []model.Kind{f.kind}})
	}
}

// once reads everything if need be, and follows what changes until the watch ends. nil: it ended as it should.
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
	// The answer begins at once; a server that accepts connections and says nothing is given up.
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

// cancelled is a stream that takes its context along when it is closed.
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
		return &protobufFrames{reader: bufio.NewReaderSize(stream, 32<<10)}
	}
	return jsonFrames{decoder: json.NewDecoder(stream)}
}

// read reads everything page by page.
func (f *feed) read(ctx context.Context, r resource) error {
	return f.readBy(ctx, r, func(each func(*model.Object) error) (int64, error) {
		return f.store.pages(ctx, r, listing{once: true}, each)
	})
}

// readBy delivers everything that a visit comes by, which returns the revision of that.
func (f *feed) readBy(
	ctx context.Context, r resource, visit func(each func(*model.Object) error) (int64, error),
) error {
	seen, err := f.newReading(ctx)
	if err != nil {
		return err
	}
	at, err := visit(func(o *model.Object) error {
		f.store.present(r) // who sees an object is no longer told that there can be none
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

// reading finds out how what is there differs from what was delivered.
type reading struct {
	*feed
	present map[model.Key]bool // nil where nothing was known before, so that nothing can be gone
}

// newReading begins to read everything, which the reader is told: what comes now is in no order.
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

// deliver hands on an object if it is new or another version than before. It returns false if ctx ended.
func (r *reading) deliver(ctx context.Context, o *model.Object) bool {
	if form.Deleted(o) {
		return true
	}
	if r.present != nil {
		r.present[o.Key] = true
		if last, ok := r.names[r.nameOf(o)]; ok { // of a bad one the last good version stays
			r.present[last] = true
		}
	}
	return r.known[o.Key] == o.Revision || r.changed(ctx, o)
}

// complete delivers what is gone, and that everything up to a revision has come. If that is before what was delivered
// the datastore was put back to an earlier state: then equal revisions mean nothing, and everything is delivered again.
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

// putBack returns the error of a server whose revisions are older than before: nothing that is known counts any more.
func (f *feed) putBack() error {
	for k := range f.known {
		f.known[k] = -1
	}
	f.at = 0
	return &apierrors.StatusError{ErrStatus: metav1.Status{Code: http.StatusGone, Reason: metav1.StatusReasonExpired,
		Message: "the datastore was put back to an earlier state"}}
}

// newest returns the highest revision that was delivered of what exists.
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

// follow delivers changes as they happen, until the watch ends.
func (f *feed) follow(ctx context.Context, r resource, events frames) error {
	for {
		e, err := events.next()
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

// event takes one event of a watch.
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

// changed delivers a version of an object. One of IPAM that was repaired loses the key that it had while it was bad.
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

// gone delivers that an object does not exist any more, whatever its key was.
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

// deleted delivers that a key is gone with a version of an object, if it is known.
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

// forget drops what was said of an object that is gone.
func (s *Store) forget(k model.Key) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.told, k)
}

// send hands an event to the reader, false if ctx ended first.
func (f *feed) send(ctx context.Context, e datastore.Event) bool {
	select {
	case f.out <- e:
		return true
	case <-ctx.Done():
		return false
	}
}

// isGone reports whether the server has forgotten the revision that it was asked to begin at.
func isGone(err error) bool {
	return apierrors.IsResourceExpired(err) || apierrors.IsGone(err)
}
