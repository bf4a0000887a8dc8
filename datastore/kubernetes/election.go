package kubernetes

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"os"
	"regexp"
	"strings"
	"time"

	"go.uber.org/zap"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/uuid"

	"github.com/manxnet/manx/datastore"
)

const (
	defaultLeaseTTL = 15 * time.Second
	// A lease is renewed three times in its life. The leader stops a fifth of it early: clocks may differ in speed.
	renewals, reserve = 3, 5
	// scatter spreads the candidates that see a leader go, so that most find the next one there.
	scatter = 100 * time.Millisecond
	// leasePrefix begins the names of the Leases: others have elections, too.
	leasePrefix = "manx-"
	// candidateEnd is between the candidate's name and what tells campaigns apart in the holder of a Lease.
	candidateEnd = "_"
)

var electionName = regexp.MustCompile(`^[a-z0-9][a-z0-9.-]*$`)

// namespaceFile is where a pod learns its namespace.
const namespaceFile = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"

// leaseNamespace is where the Leases are: in the namespace of this pod, or in kube-system.
func (c Config) leaseNamespace() string {
	if c.LeaseNamespace != "" {
		return c.LeaseNamespace
	}
	name, err := os.ReadFile(namespaceFile)
	if err != nil {
		return metav1.NamespaceSystem
	}
	return cmp.Or(strings.TrimSpace(string(name)), metav1.NamespaceSystem)
}

// Campaign implements datastore.Elector. Leadership ends with ctx, too.
//
// An election is a Lease, whose holder is the leader: its name, and what no other campaign has. Who waits follows that one
// object. A Lease that did not change for as long as it says has run out; that time counts from when the candidate saw
// the last change, so that no two hosts need clocks that agree, only ones that run at about the same speed. The leader
// counts from when it sent a renewal, less a reserve.
func (s *Store) Campaign(ctx context.Context, election, candidate string) (datastore.Leadership, error) {
	if !electionName.MatchString(election) || candidate == "" {
		return nil, fmt.Errorf("election %q with candidate %q: want a name of lower-case letters, digits, dots and "+
			"dashes, and a candidate", election, candidate)
	}
	s.watches.Add(1)
	defer s.watches.Done()
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(s.ctx, func() { cancel(errors.New("the store was closed")) })
	l := &leadership{store: s, lease: s.lease(election), holder: candidate + candidateEnd + string(uuid.NewUUID()),
		ttl: cmp.Or(s.config.LeaseTTL, defaultLeaseTTL), ctx: ctx, cancel: cancel, stop: stop,
		done: make(chan struct{})}
	err := l.win(ctx, election)
	if err != nil {
		stop()
		cancel(nil)
		return nil, fmt.Errorf("election %s: %w", election, err)
	}
	s.watches.Go(l.hold)
	return l, nil
}

// lease is where the Lease of an election is.
type lease struct{ namespace, name string }

func (s *Store) lease(election string) lease {
	return lease{namespace: s.config.leaseNamespace(), name: leasePrefix + election}
}

func (l lease) all() string {
	return "/apis/coordination.k8s.io/v1/namespaces/" + l.namespace + "/leases"
}
func (l lease) path() string { return l.all() + "/" + l.name }

// sighting is a Lease, and since when it is as it is.
type sighting struct {
	*coordinationv1.Lease // nil: there is none
	since                 time.Time
}

// free is whether nobody leads.
func (v sighting) free() bool { return v.Lease == nil || holder(v.Lease) == "" }

func holder(l *coordinationv1.Lease) string {
	if l == nil || l.Spec.HolderIdentity == nil {
		return ""
	}
	return *l.Spec.HolderIdentity
}

// runsOut is when a lease runs out that does not change any more.
func (v sighting) runsOut() time.Time {
	ttl := defaultLeaseTTL
	if d := v.Spec.LeaseDurationSeconds; d != nil && *d > 0 {
		ttl = time.Duration(*d) * time.Second
	}
	return v.since.Add(ttl)
}

// getLease reads the Lease of an election, nil if there is none.
func (s *Store) getLease(ctx context.Context, l lease) (*coordinationv1.Lease, error) {
	limited, cancel := bounded(ctx)
	defer cancel()
	raw, err := s.client.do(limited, request{verb: http.MethodGet, path: l.path(), accept: asJSON})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, s.explain(ctx, err)
	}
	v := new(coordinationv1.Lease)
	return v, json.Unmarshal(raw, v)
}

// putLease writes a Lease, anew if it has no revision. It fails with ErrConflict or ErrExists if somebody was faster.
func (s *Store) putLease(ctx context.Context, l lease, v *coordinationv1.Lease) (*coordinationv1.Lease, error) {
	v.TypeMeta = metav1.TypeMeta{Kind: "Lease", APIVersion: "coordination.k8s.io/v1"}
	v.Namespace, v.Name = l.namespace, l.name
	body, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	q := request{verb: http.MethodPut, path: l.path(), accept: asJSON, body: body, bodyType: asJSON}
	if v.ResourceVersion == "" {
		q.verb, q.path = http.MethodPost, l.all()
	}
	limited, cancel := bounded(ctx)
	defer cancel()
	raw, err := s.client.do(limited, q)
	if err != nil {
		return nil, s.explain(ctx, err)
	}
	stored := new(coordinationv1.Lease)
	return stored, json.Unmarshal(raw, stored)
}

// followLease calls each with the Lease as it is and then after each change, until ctx ends or each wants no more. It
// goes on over lost connections, and gives up when the API refuses.
func (s *Store) followLease(ctx context.Context, l lease, each func(*coordinationv1.Lease) bool) error {
	for delay := minDelay; ; delay = min(2*delay, maxDelay) {
		began := time.Now()
		err := s.followLeaseOnce(ctx, l, each)
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case errors.Is(err, errEnough):
			return nil
		case errors.Is(err, datastore.ErrUnauthorized):
			return err
		}
		if time.Since(began) > stable {
			delay = minDelay
		}
		if !sleep(ctx, delay/2+rand.N(delay)) {
			return context.Cause(ctx)
		}
	}
}

var errEnough = errors.New("enough was seen")

func (s *Store) followLeaseOnce(ctx context.Context, l lease, each func(*coordinationv1.Lease) bool) error {
	now, err := s.getLease(ctx, l)
	if err != nil {
		return err
	}
	query := url.Values{"watch": {"true"}, "fieldSelector": {"metadata.name=" + l.name}}
	if !each(now) {
		return errEnough
	}
	if now != nil {
		query.Set("resourceVersion", now.ResourceVersion)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := s.client.stream(ctx, request{verb: http.MethodGet, path: l.all(), accept: asJSON, query: query})
	if err != nil {
		return s.explain(ctx, err)
	}
	defer stream.Close() //nolint:errcheck // it was read
	events := jsonFrames{decoder: json.NewDecoder(stream)}
	for {
		e, err := events.next()
		if err != nil {
			return early(err)
		}
		var v *coordinationv1.Lease
		switch e.typ {
		case "ADDED", "MODIFIED":
			v = new(coordinationv1.Lease)
			if err := json.Unmarshal(e.object, v); err != nil {
				return err
			}
		case "DELETED":
		case "ERROR":
			return e.status(false)
		default:
			continue
		}
		if !each(v) {
			return errEnough
		}
	}
}

// leadership implements datastore.Leadership.
type leadership struct {
	store  *Store
	lease  lease
	holder string
	ttl    time.Duration

	held  *coordinationv1.Lease // as it was written last
	until time.Time             // nobody else can lead before

	ctx    context.Context
	cancel context.CancelCauseFunc
	stop   func() bool
	done   chan struct{} // closed when nothing renews the lease any more
}

// win returns when the candidate leads.
func (l *leadership) win(ctx context.Context, election string) error {
	said := ""
	for delay := minDelay; ; {
		seen, err := l.awaitFree(ctx)
		if err == nil && !sleep(ctx, rand.N(scatter)) {
			err = context.Cause(ctx)
		}
		if err == nil {
			if err = l.write(ctx, seen, l.holder); err == nil {
				return nil
			}
		}
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case errors.Is(err, datastore.ErrUnauthorized):
			return err
		case errors.Is(err, datastore.ErrConflict), errors.Is(err, datastore.ErrExists):
			delay = minDelay // somebody else was faster
			continue
		}
		if text := err.Error(); text != said {
			said = text
			l.store.log.Warn("nobody leads, and this candidate cannot either, trying again",
				zap.String("election", election), zap.Error(err))
		}
		if !sleep(ctx, delay/2+rand.N(delay)) {
			return context.Cause(ctx)
		}
		delay = min(2*delay, maxDelay)
	}
}

// awaitFree returns the Lease when nobody leads: because it has no holder, because it has run out, or because it is ours,
// as when the answer to what made it ours was lost. That it was renewed unseen, a write finds out.
func (l *leadership) awaitFree(ctx context.Context) (*coordinationv1.Lease, error) {
	limited, ranOut := context.WithCancel(ctx)
	defer ranOut()
	var seen sighting
	end := time.NewTimer(0)
	end.Stop()
	err := l.store.followLease(limited, l.lease, func(v *coordinationv1.Lease) bool {
		if seen.Lease == nil || v == nil || v.ResourceVersion != seen.ResourceVersion {
			seen = sighting{v, time.Now()}
			end.Stop()
			if !seen.free() {
				end = time.AfterFunc(time.Until(seen.runsOut()), ranOut)
			}
		}
		return !seen.free() && holder(v) != l.holder
	})
	end.Stop()
	switch {
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case err != nil && limited.Err() == nil:
		return nil, err
	}
	return seen.Lease, nil
}

// write stores who holds the lease from now on, if it is as it was seen.
func (l *leadership) write(ctx context.Context, seen *coordinationv1.Lease, holder string) error {
	next := new(coordinationv1.Lease)
	if seen != nil {
		next = seen.DeepCopy()
	}
	sent := time.Now()
	now, seconds := metav1.NewMicroTime(sent), int32((l.ttl+time.Second-1)/time.Second)
	if next.Spec.HolderIdentity == nil || *next.Spec.HolderIdentity != holder {
		changes := int32(1)
		if next.Spec.LeaseTransitions != nil {
			changes += *next.Spec.LeaseTransitions
		}
		next.Spec.AcquireTime, next.Spec.LeaseTransitions = &now, &changes
	}
	next.Spec.HolderIdentity, next.Spec.RenewTime, next.Spec.LeaseDurationSeconds = &holder, &now, &seconds
	stored, err := l.store.putLease(ctx, l.lease, next)
	if err != nil {
		return err
	}
	ttl := time.Duration(seconds) * time.Second
	l.held, l.until = stored, sent.Add(ttl-ttl/reserve)
	return nil
}

// Context implements datastore.Leadership.
func (l *leadership) Context() context.Context { return l.ctx }

// hold renews the lease until leadership ends.
func (l *leadership) hold() {
	defer close(l.done)
	defer l.stop()
	end := time.AfterFunc(time.Until(l.until), func() {
		l.cancel(fmt.Errorf("%w: the datastore did not renew the lease in time", datastore.ErrNotLeading))
	})
	defer end.Stop()
	l.store.watches.Go(l.guard)
	for sleep(l.ctx, l.ttl/renewals) {
		for {
			err := l.renew()
			if err == nil {
				end.Reset(time.Until(l.until))
				break
			}
			if errors.Is(err, datastore.ErrNotLeading) {
				l.cancel(err)
			}
			if !sleep(l.ctx, l.ttl/renewals/10) {
				return
			}
		}
	}
}

// renew puts off the end of leadership. What it finds changed by others but still ours it takes over.
func (l *leadership) renew() error {
	ctx, cancel := context.WithTimeout(l.ctx, l.ttl/renewals)
	defer cancel()
	err := l.write(ctx, l.held, l.holder)
	if !errors.Is(err, datastore.ErrConflict) && !errors.Is(err, datastore.ErrNotFound) {
		return err
	}
	now, err := l.store.getLease(ctx, l.lease)
	if err != nil {
		return err
	}
	if holder(now) != l.holder {
		return fmt.Errorf("%w: its entry in the datastore is gone", datastore.ErrNotLeading)
	}
	return l.write(ctx, now, l.holder)
}

// guard ends leadership if the Lease is taken away by hand, or the datastore was replaced.
func (l *leadership) guard() {
	err := l.store.followLease(l.ctx, l.lease, func(v *coordinationv1.Lease) bool { return holder(v) == l.holder })
	if err == nil {
		l.cancel(fmt.Errorf("%w: its entry in the datastore is gone", datastore.ErrNotLeading))
	}
}

// Resign implements datastore.Leadership.
func (l *leadership) Resign(ctx context.Context) error {
	l.cancel(datastore.ErrNotLeading)
	<-l.done
	for attempt := 1; ; attempt++ {
		now, err := l.store.getLease(ctx, l.lease)
		if err != nil {
			return err
		}
		if holder(now) != l.holder {
			return nil
		}
		if err = l.write(ctx, now, ""); !errors.Is(err, datastore.ErrConflict) || attempt == writeRetries {
			return err
		}
	}
}

// Observe implements datastore.Elector.
func (s *Store) Observe(ctx context.Context, election string) <-chan string {
	out := make(chan string)
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(s.ctx, cancel)
	s.watches.Go(func() {
		defer close(out)
		defer cancel()
		defer stop()
		last, told := "", false
		for ctx.Err() == nil {
			err := s.followLease(ctx, s.lease(election), func(v *coordinationv1.Lease) bool {
				name := holder(v)
				if i := strings.LastIndex(name, candidateEnd); i >= 0 {
					name = name[:i]
				}
				if told && name == last {
					return true
				}
				last, told = name, true
				select {
				case out <- name:
				case <-ctx.Done():
				}
				return ctx.Err() == nil
			})
			if ctx.Err() != nil {
				return
			}
			s.log.Warn("the leader cannot be observed", zap.String("election", election), zap.Error(err))
			if !sleep(ctx, maxDelay) {
				return
			}
		}
	})
	return out
}
