package kubernetes

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/uuid"

	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/election"
)

const (
	// leasePrefix is the prefix of the Leases' names: other programs have elections, too.
	leasePrefix = "manx-"
	// candidateEnd separates the candidate's name from the campaign's identity in the holder of a Lease.
	candidateEnd = "_"
)

// namespaceFile is the file with a pod's namespace.
const namespaceFile = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"

// leaseNamespace returns the namespace of the Leases: that of this pod, or kube-system.
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

// Campaign implements datastore.Elector. The end of ctx also ends leadership.
//
// An election is a Lease. Its holder is the leader: its name, and an identity unique to the campaign. A waiting
// candidate watches that one object. A Lease that was unchanged for its duration has expired. The candidate counts that
// time from when it saw the last change, so clocks need not agree, but must run at about the same speed. The leader
// counts from when it sent a renewal, less a reserve.
func (s *Store) Campaign(ctx context.Context, name, candidate string) (datastore.Leadership, error) {
	c := s.campaign(name)
	c.Candidate = candidate
	return c.Run(ctx, &claim{store: s, lease: s.lease(name), holder: candidate + candidateEnd + string(uuid.NewUUID()),
		ttl: c.TTL})
}

func (s *Store) campaign(name string) election.Campaign {
	return election.Campaign{Election: name, TTL: cmp.Or(s.config.LeaseTTL, election.DefaultTTL), Closed: s.ctx,
		Tasks: &s.watches, Log: s.log}
}

// Observe implements datastore.Elector.
func (s *Store) Observe(ctx context.Context, name string) <-chan string {
	return s.campaign(name).Observe(ctx, func(ctx context.Context, each func(string) bool) error {
		return s.followLease(ctx, s.lease(name), func(v *coordinationv1.Lease) bool {
			name := holder(v)
			if i := strings.LastIndex(name, candidateEnd); i >= 0 {
				name = name[:i]
			}
			return each(name)
		})
	})
}

// lease is the place of an election's Lease.
type lease struct{ namespace, name string }

func (s *Store) lease(election string) lease {
	return lease{namespace: s.config.leaseNamespace(), name: leasePrefix + election}
}

func (l lease) all() string {
	return "/apis/coordination.k8s.io/v1/namespaces/" + l.namespace + "/leases"
}
func (l lease) path() string { return l.all() + "/" + l.name }

// sighting is a Lease, and the time since which it is unchanged.
type sighting struct {
	*coordinationv1.Lease // nil: there is none
	since                 time.Time
}

// free reports whether there is no leader.
func (v sighting) free() bool { return v.Lease == nil || holder(v.Lease) == "" }

// heldByOther reports whether another candidate than me leads at a time.
func (v sighting) heldByOther(me string, now time.Time) bool {
	return !v.free() && holder(v.Lease) != me && now.Before(v.runsOut())
}

func holder(l *coordinationv1.Lease) string {
	if l == nil || l.Spec.HolderIdentity == nil {
		return ""
	}
	return *l.Spec.HolderIdentity
}

// runsOut returns the expiry of a lease that does not change any more.
func (v sighting) runsOut() time.Time {
	ttl := election.DefaultTTL
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

// putLease writes a Lease, or creates it if it has no revision. It fails with ErrConflict or ErrExists if another
// candidate was faster.
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

// followLease calls each with the current Lease and then after each change, until ctx ends or each returns false. It
// continues after lost connections, and fails when the API refuses.
func (s *Store) followLease(ctx context.Context, l lease, each func(*coordinationv1.Lease) bool) error {
	return election.Persist(ctx, func(ctx context.Context) error { return s.followLeaseOnce(ctx, l, each) })
}

func (s *Store) followLeaseOnce(ctx context.Context, l lease, each func(*coordinationv1.Lease) bool) error {
	now, err := s.getLease(ctx, l)
	if err != nil {
		return err
	}
	query := url.Values{"watch": {"true"}, "fieldSelector": {"metadata.name=" + l.name}}
	if !each(now) {
		return nil
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
			return nil
		}
	}
}

// claim implements election.Lease.
type claim struct {
	store  *Store
	lease  lease
	holder string
	ttl    time.Duration

	seen *coordinationv1.Lease // as it was without a holder
	held *coordinationv1.Lease // as last written
}

// Free implements election.Lease. There is no leader if the Lease has no holder or has expired. The Lease may already
// be ours, if the response to our claim was lost. A write fails after an unseen renewal.
func (l *claim) Free(ctx context.Context) error {
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
		return context.Cause(ctx)
	case err != nil && limited.Err() == nil:
		return err
	}
	if seen.heldByOther(l.holder, time.Now()) {
		return election.ErrTaken // another candidate claimed the Lease in the moment in which it expired
	}
	l.seen = seen.Lease
	return nil
}

// Claim implements election.Lease.
func (l *claim) Claim(ctx context.Context) (until time.Time, err error) {
	until, err = l.write(ctx, l.seen, l.holder)
	if errors.Is(err, datastore.ErrConflict) || errors.Is(err, datastore.ErrExists) {
		return until, election.ErrTaken
	}
	return until, err
}

// write stores the new holder, if the Lease is unchanged since seen. It returns the time until which no other candidate
// can hold it.
func (l *claim) write(ctx context.Context, seen *coordinationv1.Lease, holder string) (until time.Time, err error) {
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
		return until, err
	}
	l.held = stored
	return election.End(sent, time.Duration(seconds)*time.Second), nil
}

// Renew implements election.Lease. If others have changed the Lease but we still hold it, the current version is
// renewed.
func (l *claim) Renew(ctx context.Context) (until time.Time, err error) {
	ctx, cancel := context.WithTimeout(ctx, election.Every(l.ttl))
	defer cancel()
	until, err = l.write(ctx, l.held, l.holder)
	if !errors.Is(err, datastore.ErrConflict) && !errors.Is(err, datastore.ErrNotFound) {
		return until, err
	}
	now, err := l.store.getLease(ctx, l.lease)
	if err != nil {
		return until, err
	}
	if holder(now) != l.holder {
		return until, fmt.Errorf("%w: its entry in the datastore is gone", datastore.ErrNotLeading)
	}
	return l.write(ctx, now, l.holder)
}

// Taken implements election.Lease.
func (l *claim) Taken(ctx context.Context) error {
	return l.store.followLease(ctx, l.lease, func(v *coordinationv1.Lease) bool { return holder(v) == l.holder })
}

// Release implements election.Lease.
func (l *claim) Release(ctx context.Context) error {
	for attempt := 1; ; attempt++ {
		now, err := l.store.getLease(ctx, l.lease)
		if err != nil {
			return err
		}
		if holder(now) != l.holder {
			return nil
		}
		if _, err = l.write(ctx, now, ""); !errors.Is(err, datastore.ErrConflict) || attempt == writeRetries {
			return err
		}
	}
}
