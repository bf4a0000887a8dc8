package kubernetes_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"sync/atomic"
	"testing"
	"time"

	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/kubernetes"
	"github.com/manxnet/manx/datastore/storetest"
	"github.com/manxnet/manx/integration/kubernetes/apiserver"
)

// skewed is a transport to the server that shifts the times in Leases like a host with a wrong clock. It can be cut.
type skewed struct {
	http.RoundTripper
	off  time.Duration
	down *atomic.Bool
}

var times = regexp.MustCompile(`"(renewTime|acquireTime)":"([^"]*)"`)

func (s skewed) RoundTrip(r *http.Request) (*http.Response, error) {
	if s.down.Load() {
		return nil, errors.New("the line is cut")
	}
	if r.Body != nil && r.Body != http.NoBody && (r.Method == http.MethodPut || r.Method == http.MethodPost) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return nil, err
		}
		body = times.ReplaceAllFunc(body, func(m []byte) []byte {
			part := times.FindSubmatch(m)
			at, err := time.Parse(time.RFC3339Nano, string(part[2]))
			if err != nil {
				return m
			}
			return fmt.Appendf(nil, `"%s":"%s"`, part[1], at.Add(s.off).Format("2006-01-02T15:04:05.000000Z07:00"))
		})
		r = r.Clone(r.Context())
		r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	}
	return s.RoundTripper.RoundTrip(r)
}

// Two candidates whose clocks are hours apart never lead at the same time. A leader that is cut off stops before the
// other one begins, and its late writes are refused.
func TestLeadersWithSkewedClocks(t *testing.T) {
	t.Parallel() // it waits for most of its time
	server := apiserver.Start(t)
	server.InstallCRDs(t, "crd.projectcalico.org/v1", "bgppeers")
	const ttl = 6 * time.Second
	var leading, most atomic.Int32
	type candidate struct {
		store *kubernetes.Store
		down  atomic.Bool
	}
	open := func(off time.Duration) *candidate {
		c := &candidate{}
		config := server.Config(apiserver.Admin)
		config.Wrap(func(next http.RoundTripper) http.RoundTripper { return skewed{next, off, &c.down} })
		var err error
		c.store, err = kubernetes.OpenREST(t.Context(), kubernetes.Config{LeaseTTL: ttl}, config, logger(t))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.store.Close() })
		return c
	}
	for _, off := range []time.Duration{5 * time.Hour, -5 * time.Hour} {
		t.Run(off.String(), func(t *testing.T) {
			a, b := open(off), open(0)
			first, err := a.store.Campaign(t.Context(), "skew", "a")
			if err != nil {
				t.Fatal(err)
			}
			o := storetest.Create(t, a.store, peer("mine", "10.0.0.1"))
			leading.Store(1)
			context.AfterFunc(first.Context(), func() { leading.Add(-1) })
			won := make(chan datastore.Leadership, 1)
			go func() {
				l, err := b.store.Campaign(t.Context(), "skew", "b")
				if err != nil {
					t.Error(err)
				}
				if n := leading.Add(1); n > most.Load() {
					most.Store(n)
				}
				won <- l
			}()
			select { // the leader renews its lease with any offset of its clock
			case <-won:
				t.Fatal("b leads beside a")
			case <-first.Context().Done():
				t.Fatal(context.Cause(first.Context()))
			case <-time.After(2 * ttl):
			}
			a.down.Store(true)
			second := <-won
			if most.Load() > 1 {
				t.Error("two believed at the same time that they lead")
			}
			if first.Context().Err() == nil {
				t.Error("a still believes that it leads")
			}
			// b changes an object that a has read; a comes back with a write that it began before.
			if _, err := b.store.Update(t.Context(), o); err != nil {
				t.Fatal(err)
			}
			if _, err := b.store.Delete(t.Context(), o.Key, 0); err != nil {
				t.Fatal(err)
			}
			a.down.Store(false)
			if _, err := a.store.Update(t.Context(), o); !errors.Is(err, datastore.ErrConflict) &&
				!errors.Is(err, datastore.ErrNotFound) {
				t.Errorf("a late write: %v", err)
			}
			if err := second.Resign(t.Context()); err != nil {
				t.Error(err)
			}
			most.Store(0)
		})
	}
}
