package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/manxnet/manx/datastore/model"
)

const (
	// initialSilence is the time without any initial event after which the server counts as one without
	// sendInitialEvents.
	initialSilence = 20 * time.Second
	// plainFor is the time of plain lists before streaming is tried again: the server may have been updated.
	plainFor = time.Hour
)

// errIgnored is the error of a watch without initial events, although the server accepted the parameter.
var errIgnored = errors.New("the server ignores sendInitialEvents")

// beginsWithAll reports whether a watch of the resource starts with initial events.
func (s *Store) beginsWithAll(r resource) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !time.Now().Before(s.plain[r.root])
}

// cannotStream reports whether an error shows that the server does not support initial events: it ignores the parameter
// (Kubernetes before 1.19), refuses it (before 1.27, or with the feature off), or its etcd is too old (3.4). Every
// other error may be temporary.
func cannotStream(err error) bool {
	if errors.Is(err, errIgnored) {
		return true
	}
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return false
	}
	return slices.ContainsFunc([]string{"sendInitialEvents", "resourceVersionMatch", "RequestWatchProgress"},
		func(name string) bool { return strings.Contains(status.Status().Message, name) })
}

// cannotBeginWithAll switches an API group to plain lists for a while. Groups may have separate servers.
func (s *Store) cannotBeginWithAll(r resource, why error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !time.Now().Before(s.plain[r.root]) {
		s.log.Info("the server has no streaming lists, reading lists from its cache", zap.String("group", r.root),
			zap.Error(why))
	}
	s.plain[r.root] = time.Now().Add(plainFor)
}

// mayBeginWithAll switches back to streaming.
func (s *Store) mayBeginWithAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.plain)
	s.proven = false
}

// lostConnection reports whether a watch ended without a response of the server.
func lostConnection(err error) bool {
	return !errors.As(err, new(apierrors.APIStatus)) && !errors.Is(err, errMangled)
}

// followFromStart runs a watch with initial events, which a bookmark ends.
func (f *feed) followFromStart(ctx context.Context, r resource) error {
	stream, err := f.open(ctx, r, fromStart())
	if err != nil {
		return err
	}
	defer stream.Close() //nolint:errcheck // it was read
	events := framesOf(r, stream)
	if err := f.initial(ctx, r, events, stream); err != nil {
		f.at = 0 // changes among the initial events do not replace missing initial events
		return err
	}
	return f.follow(ctx, r, events)
}

// fromStart returns the parameters of a watch with initial events, as of the moment of the request.
func fromStart() url.Values {
	return url.Values{"sendInitialEvents": {"true"},
		"resourceVersionMatch": {string(metav1.ResourceVersionMatchNotOlderThan)}}
}

// initial takes all initial events of a watch.
func (f *feed) initial(ctx context.Context, r resource, events frames, stream io.Closer) error {
	seen, err := f.newReading(ctx)
	if err != nil {
		return err
	}
	return initialFrames(events, stream, func(e frame) (end bool, err error) { return f.initialEvent(ctx, r, e, seen) })
}

// initialFrames passes the events of a watch to take until the end of the initial ones.
func initialFrames(events frames, stream io.Closer, take func(frame) (end bool, err error)) error {
	began, silent := time.Now(), atomic.Bool{}
	silence := time.AfterFunc(initialSilence, func() {
		silent.Store(true)
		stream.Close() //nolint:errcheck // which ends the wait for the next event
	})
	defer silence.Stop()
	for {
		e, err := events.next()
		switch {
		case err != nil && silent.Load():
			return fmt.Errorf("%w: nothing came for %v", errIgnored, initialSilence)
		case errors.Is(err, io.EOF) && time.Since(began) >= lifetime:
			return fmt.Errorf("%w: the watch ended without the bookmark of the initial events", errIgnored)
		case err != nil:
			return early(err)
		}
		silence.Stop() // the reader may take its time
		end, err := take(e)
		if end || err != nil {
			return err
		}
		silence.Reset(initialSilence)
	}
}

// early returns the error of a watch that ended before all initial events.
func early(err error) error {
	if errors.Is(err, io.EOF) {
		return errConnectionLost
	}
	return err
}

// initialEvent takes one event, and reports whether it ended the initial ones.
func (f *feed) initialEvent(ctx context.Context, r resource, e frame, seen *reading) (end bool, err error) {
	switch e.typ {
	case "ADDED":
		o, err := r.decode(e.object)
		if err != nil {
			f.store.log.Warn("an object cannot be read", zap.Stringer("resource", r), zap.Error(err))
		} else if o != nil && !seen.deliver(ctx, o) {
			return false, ctx.Err()
		}
		return false, nil
	case "BOOKMARK":
		at, err := endOfInitial(r, e)
		if err != nil {
			return false, err
		}
		return true, seen.complete(ctx, at)
	}
	return false, f.event(ctx, r, e)
}

// endOfInitial returns the revision of the bookmark that ends the initial events.
func endOfInitial(r resource, bookmark frame) (int64, error) {
	m, err := bookmark.bookmark(r.protobuf)
	if err != nil {
		return 0, err
	}
	if m.Metadata.Annotations[metav1.InitialEventsAnnotationKey] != "true" {
		// A server that knows the parameter sends no other bookmark before.
		return 0, fmt.Errorf("%w: another bookmark came first", errIgnored)
	}
	at, err := strconv.ParseInt(m.Metadata.ResourceVersion, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%w: revision of a bookmark: %w", errMangled, err)
	}
	return at, nil
}

// streams tests, until the connection is lost, whether the server supports initial events, with a watch of almost
// nothing. nil: it does. Concurrent callers share one test.
func (s *Store) streams(ctx context.Context) error {
	s.mu.Lock()
	proven := s.proven
	s.mu.Unlock()
	if proven {
		return nil
	}
	_, err, _ := s.probing.Do("", func() (any, error) { return nil, s.probe(ctx) })
	return err
}

func (s *Store) probe(ctx context.Context) error {
	r, err := s.resource(model.KindNamespace)
	if err != nil {
		return err
	}
	r.fields = "metadata.name=default"
	f := &feed{store: s, kind: model.KindNamespace}
	stream, err := f.open(ctx, r, fromStart())
	if err != nil {
		return err
	}
	defer stream.Close() //nolint:errcheck // it was read
	err = initialFrames(framesOf(r, stream), stream, func(e frame) (end bool, err error) {
		switch e.typ {
		case "BOOKMARK":
			_, err = endOfInitial(r, e)
			return err == nil, err
		case "ERROR":
			return false, e.status(r.protobuf)
		}
		return false, nil
	})
	s.mu.Lock()
	s.proven = err == nil
	s.mu.Unlock()
	return err
}
