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
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	kubefields "k8s.io/apimachinery/pkg/fields"

	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/retry"
)

// watchBackoff is the pause before a watch that has ended begins again.
var watchBackoff = retry.Backoff{Min: 100 * time.Millisecond, Max: 15 * time.Second, Spread: true}

const (
	// queued is the number of events that may wait for the reader, so that it can take them in batches.
	queued = 1024
	// lifetime is the minimum requested duration of a watch, and half of the maximum: watches end now and then, so that
	// servers share them, and not all at the same time.
	lifetime = 5 * time.Minute
	// streamBuffer is the size of the buffer of each watch.
	streamBuffer = 64 << 10
	// absentInterval is the interval between checks for a missing kind.
	absentInterval = 30 * time.Second
)

var errConnectionLost = errors.New("the connection was lost")

// Watch implements datastore.Store.
//
// Each kind is followed separately, and has its own clock. The pods of the store's node, if it has one, are followed
// apart from the others: their changes are not gathered, and do not wait for a full read of the others.
//
// At first all objects come as initial events of the watch if the server supports that, and otherwise in a list from
// its cache. A watch that ends continues at its last revision. Only if the server has compacted that is everything read
// again, and only the differences are delivered, with EventDelete for deleted objects; a change that was undone
// meanwhile is not reported.
//
// A kind without its CustomResourceDefinition has no objects, and is in sync; its watch starts when the definition
// appears. Known objects stay until the server reports their deletion.
//
// EventLost is sent for each failed attempt, with the reason. The channel is closed when ctx or the Store ends.
func (s *Store) Watch(ctx context.Context, kinds ...model.Kind) <-chan datastore.Event {
	if slices.ContainsFunc(kinds, s.podBlocks) {
		return s.watchPodBlocks(ctx, kinds)
	}
	return s.follow(ctx, kinds)
}

// follow is Watch for kinds that are resources of the API.
func (s *Store) follow(ctx context.Context, kinds []model.Kind) <-chan datastore.Event {
	out := make(chan datastore.Event, queued)
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(s.ctx, cancel)
	var heard atomic.Int64
	var feeds []*feed
	err := errors.New("no kind is given")
	for i, kind := range kinds {
		if _, err = s.resource(kind); err != nil {
			break
		}
		if slices.Contains(kinds[:i], kind) {
			continue
		}
		for _, part := range s.parts(kind) {
			feeds = append(feeds, &feed{store: s, kind: kind, part: part, out: out, heard: &heard})
		}
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
		if s.config.Follows && slices.Contains(kinds, model.KindClusterNetworkPolicy) {
			running.Go(func() { s.followUnread(ctx) })
		}
		for _, f := range feeds {
			running.Go(func() { f.run(ctx) })
		}
		running.Go(func() { s.ask(ctx, &heard, kinds, out) })
		running.Wait()
	})
	return out
}

// parts returns the parts of a kind that have a watch each.
func (s *Store) parts(kind model.Kind) []datastore.Part {
	if kind == model.KindWorkloadEndpoint && s.config.Node != "" {
		return []datastore.Part{datastore.Own, datastore.Others}
	}
	return []datastore.Part{datastore.Whole}
}

// ask requests the version of the server while no watch has delivered anything for half of a heartbeat: a server sends
// no bookmark about a kind of which it has seen no change. Each answer is an EventAlive.
func (s *Store) ask(ctx context.Context, heard *atomic.Int64, kinds []model.Kind, out chan<- datastore.Event) {
	tick := time.NewTicker(datastore.Heartbeat / 4)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if time.Since(time.Unix(0, heard.Load())) < datastore.Heartbeat/2 {
			continue
		}
		limited, cancel := bounded(ctx)
		_, err := s.client.do(limited, request{verb: http.MethodGet, path: "/version", accept: "application/json"})
		cancel()
		if err != nil && !apierrors.IsForbidden(err) {
			continue // the watches report why, or the reader sees the silence
		}
		heard.Store(time.Now().UnixNano())
		select {
		case out <- datastore.Event{Type: datastore.EventAlive, Kinds: kinds}:
		case <-ctx.Done():
			return
		}
	}
}

// feed follows one kind, or a part of it.
type feed struct {
	store *Store
	kind  model.Kind
	part  datastore.Part
	out   chan<- datastore.Event
	heard *atomic.Int64 // when any feed of the watch delivered something last, in nanoseconds

	// known are the revisions of the delivered objects that exist.
	known revisions
	// latest leaves out versions of other nodes' pods without a difference; nil for everything else.
	latest *latest
	// names are the last valid keys of IPAM's custom resources, by name: a key follows from the content, and a resource
	// with unusable content has its name as its key.
	names map[string]model.Key
	at    int64 // everything up to here was delivered; 0: read everything
	// newest is the latest revision of a delivered change. asOfNow is set if the next full read must not come from a
	// cache, because a cache was found to be older, or the datastore was restored.
	newest  int64
	asOfNow bool
	// lost is set if the reader knows of the loss, or has received nothing yet.
	lost bool
	// held is an event that waits for the next one, which has arrived: the reader takes both in one step.
	held *datastore.Event
	hold bool
	// none is set if the reader knows that there are no objects because the kind is missing.
	none bool
	// followed is set if a watch has begun before.
	followed bool
}

// begin initializes the state of a feed that has delivered nothing.
func (f *feed) begin() {
	f.known, f.names, f.lost = newRevisions(f.kind), map[string]model.Key{}, true
	if f.part == datastore.Others {
		f.latest = newLatest()
	}
}

func (f *feed) run(ctx context.Context) {
	f.begin()
	for ends := 0; ; {
		began := time.Now()
		err := f.once(ctx)
		if ctx.Err() != nil {
			return
		}
		ends = watchBackoff.Count(ends, time.Since(began))
		wait := watchBackoff.After(ends)
		exact := false // the server set Retry-After
		switch r, _ := f.resource(); {
		case err == nil: // a normal end: continue from there
			wait = min(wait, time.Second)
		case r.custom && (noResource(err) || r.optional && apierrors.IsForbidden(err)) && f.known.len() == 0:
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
				ends, wait = 0, rand.N(time.Second)
			}
			if seconds, ok := apierrors.SuggestsClientDelay(err); ok {
				after, _ := retryAfter(seconds)
				wait, exact = max(wait, after+rand.N(time.Second)), true
			}
		}
		if !f.store.sleepUntilReached(ctx, wait, exact) {
			return
		}
	}
}

// sleepUntilReached waits, but not much longer than until another kind is followed again: then the server is back. With
// a Retry-After it waits exactly that long. It returns false if ctx ended.
func (s *Store) sleepUntilReached(ctx context.Context, d time.Duration, exact bool) bool {
	if exact {
		return retry.Sleep(ctx, d)
	}
	s.mu.Lock()
	reached := s.reached
	s.mu.Unlock()
	select {
	case <-ctx.Done():
		return false
	case <-reached:
		return retry.Sleep(ctx, rand.N(watchBackoff.Min))
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

// absent reports to the reader that there are no objects, since the server does not have the kind, or does not let it
// be read: without the right to it nobody can tell the two apart.
func (f *feed) absent(ctx context.Context, r resource) {
	_ = f.store.absent(ctx, r)
	f.at = 0
	if f.none {
		f.alive(ctx) // that the kind is missing is an answer
		return
	}
	f.none, f.lost = true, false
	f.send(ctx, datastore.Event{Type: datastore.EventInSync, Kinds: []model.Kind{f.kind}})
}

// resource returns the resource of the feed's part. Few pods are own ones. The server has an index of pods by node.
func (f *feed) resource() (resource, error) {
	r, err := f.store.resource(f.kind)
	node := kubefields.EscapeValue(f.store.config.Node)
	switch f.part {
	case datastore.Own:
		r.fields, r.many = "spec.nodeName="+node+","+r.fields, false
	case datastore.Others:
		r.fields = "spec.nodeName!=" + node + "," + r.fields
	}
	return r, err
}

// once reads everything if necessary, and follows changes until the watch ends. nil: a normal end.
func (f *feed) once(ctx context.Context) error {
	r, err := f.resource()
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
		if err := f.readPlain(ctx, r); err != nil {
			return err
		}
	}
	if f.lost {
		if err := f.checkRestored(ctx, r); err != nil {
			return err
		}
	}
	stream, err := f.open(ctx, r, url.Values{"resourceVersion": {strconv.FormatInt(f.at, 10)}})
	if err != nil {
		return err
	}
	defer stream.Close() //nolint:errcheck // it was read
	// A watch that goes on where it ended is an answer, perhaps the only one about a kind that does not change.
	opened := f.alive
	if f.lost {
		opened = f.inSync
	}
	if !opened(ctx) {
		return ctx.Err()
	}
	return f.follow(ctx, r, framesOf(r, stream))
}

// checkRestored checks, before a watch continues after a loss, that the server has reached the last revision. A server
// whose datastore was restored to an earlier state accepts a watch from a revision of the future, and is silent.
func (f *feed) checkRestored(ctx context.Context, r resource) error {
	at, err := f.store.latestRevision(ctx, r)
	if err == nil && at < f.at {
		return f.putBack()
	}
	return err
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
	begin := f.store.client.stream
	if f.part == datastore.Own {
		begin = f.store.client.get // what others' changes gather must not delay it
	}
	stream, err := begin(ctx, request{verb: http.MethodGet, path: r.path("", ""), accept: accept, query: query})
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
		return &protobufFrames{reader: bufio.NewReaderSize(stream, streamBuffer)}
	}
	return jsonFrames{decoder: json.NewDecoder(stream)}
}

// isGone reports whether the server has compacted the revision at which the watch should start.
func isGone(err error) bool {
	return apierrors.IsResourceExpired(err) || apierrors.IsGone(err)
}
