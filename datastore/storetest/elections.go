package storetest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/manxnet/manx/datastore"
)

// Election is the election of Campaign.
const Election = "controllers"

// Campaign starts a candidate; the channel delivers its leadership.
func Campaign(t *testing.T, s datastore.Elector, name string) <-chan datastore.Leadership {
	won := make(chan datastore.Leadership, 1)
	go func() {
		l, err := s.Campaign(t.Context(), Election, name)
		if err != nil {
			if t.Context().Err() == nil {
				t.Errorf("%s: %v", name, err)
			}
			return
		}
		won <- l
	}()
	return won
}

// Receive waits for an expected value.
func Receive[T any](t *testing.T, from <-chan T, what string) (v T) {
	t.Helper()
	select {
	case v = <-from:
	case <-time.After(Patience):
		t.Fatalf("waiting for %s: nothing", what)
	}
	return v
}

// Ended waits for the end of leadership, with a reason that contains want.
func Ended(t *testing.T, l datastore.Leadership, want string) {
	t.Helper()
	Receive(t, l.Context().Done(), "the end of leadership")
	if err := context.Cause(l.Context()); !errors.Is(err, datastore.ErrNotLeading) ||
		!strings.Contains(err.Error(), want) {
		t.Errorf("leadership ended with %v, want %q", err, want)
	}
}

// Resigned fails unless the leader could resign and its context has ended.
func Resigned(t *testing.T, l datastore.Leadership) {
	t.Helper()
	if err := l.Resign(t.Context()); err != nil {
		t.Error(err)
	}
	Ended(t, l, "")
}

// One of two candidates leads. When it resigns, the other one leads without waiting.
func resigning(t *testing.T, x System) {
	a, b := x.Open(t), x.Open(t)
	first := Receive(t, Campaign(t, a, "a"), "the first leader")
	second := Campaign(t, b, "b")
	select {
	case <-second:
		t.Fatal("two lead")
	case <-first.Context().Done():
		t.Fatal(context.Cause(first.Context()))
	case <-time.After(500 * time.Millisecond):
	}
	Resigned(t, first)
	last := Receive(t, second, "the next leader")
	Resigned(t, last)
	Resigned(t, last) // Resign may be repeated
	again := Receive(t, Campaign(t, a, "a"), "the first again")
	Resigned(t, again)
}

// There is never more than one leader, after any number of elections, resignations and cut lines.
func neverTwoLead(t *testing.T, x System) {
	var leaders, terms atomic.Int32
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	lead := func(s datastore.Elector, name string) error {
		for {
			l, err := s.Campaign(ctx, Election, name)
			if err != nil {
				return err
			}
			if n := leaders.Add(1); n != 1 {
				t.Errorf("%d lead", n)
			}
			terms.Add(1)
			select {
			case <-l.Context().Done():
			case <-time.After(150 * time.Millisecond):
			}
			leaders.Add(-1)
			if err := l.Resign(ctx); err != nil && !errors.Is(err, datastore.ErrUnavailable) && ctx.Err() == nil {
				t.Errorf("%s cannot resign: %v", name, err)
			}
		}
	}
	for i, s := range []datastore.Elector{x.Open(t), x.Open(t), x.OpenRemote(t)} {
		go func() { done <- lead(s, fmt.Sprint("n", i)) }()
	}
	reached := func(n int32) {
		t.Helper()
		for end := time.Now().Add(Patience); terms.Load() < n; time.Sleep(5 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("only %d terms", terms.Load())
			}
		}
	}
	for n := int32(1); n <= 2; n++ {
		reached(8*n - 4)
		x.Cut()
		reached(8*n - 2)
		x.Mend()
		reached(8 * n)
	}
	cancel()
	for range 3 {
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	}
}

// A leader whose line is cut has stopped before another one leads. When the line is back, it may lead again.
func leaderCutOff(t *testing.T, x System) {
	a, b := x.OpenRemote(t), x.Open(t)
	first := Receive(t, Campaign(t, a, "a"), "the first leader")
	renewed := time.After(2 * ShortLease)
	second := Campaign(t, b, "b")
	select {
	case <-renewed:
	case <-first.Context().Done():
		t.Fatalf("the lease was not renewed: %v", context.Cause(first.Context()))
	case <-second:
		t.Fatal("two lead")
	}
	x.Cut()
	next := Receive(t, second, "the next leader")
	if first.Context().Err() == nil {
		t.Error("the next one leads before the first has stopped")
	}
	Ended(t, first, "")
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if err := first.Resign(ctx); !errors.Is(err, datastore.ErrUnavailable) {
		t.Errorf("resigning without a line: %v", err)
	}
	back := Campaign(t, a, "a")
	x.Mend()
	Resigned(t, next)
	Resigned(t, Receive(t, back, "the first leader again"))
}

// An observer over a cut line gets the newest leader when the line is back.
func observeOverALostConnection(t *testing.T, x System) {
	a := x.Open(t)
	ctx, cancel := context.WithCancel(t.Context())
	names := x.OpenRemote(t).Observe(ctx, Election)
	if got := Receive(t, names, "the first name"); got != "" {
		t.Errorf("%q leads", got)
	}
	first := Receive(t, Campaign(t, a, "a"), "a leader")
	if got := Receive(t, names, "its name"); got != "a" {
		t.Errorf("%q leads, want a", got)
	}
	x.Cut()
	Resigned(t, first)
	Resigned(t, Receive(t, Campaign(t, a, "brief"), "a brief leader"))
	last := Receive(t, Campaign(t, a, "c"), "the last leader")
	x.Mend()
	if got := Receive(t, names, "the last name"); got != "c" {
		t.Errorf("%q leads, want c", got)
	}
	cancel()
	if _, ok := <-names; ok {
		t.Error("a name after the end")
	}
	Resigned(t, last)
}

func invalidElections(t *testing.T, x System) {
	s := x.Open(t)
	for name, who := range map[string]string{"": "a", "a/b": "a", "A": "a", "x": ""} {
		if l, err := s.Campaign(t.Context(), name, who); err == nil || l != nil {
			t.Errorf("election %q of %q: %v", name, who, err)
		}
	}
	// Leadership ends with the store and with the context of the campaign; the latter ends a campaign, too.
	ctx, cancel := context.WithCancel(t.Context())
	l, err := s.Campaign(ctx, "x", "a")
	if err != nil {
		t.Fatal(err)
	}
	waiting, give := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer give()
	if _, err := s.Campaign(waiting, "x", "b"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a campaign that was given up: %v", err)
	}
	cancel()
	if err := l.Resign(t.Context()); err != nil {
		t.Error(err)
	}
	if l, err = s.Campaign(t.Context(), "x", "a"); err != nil {
		t.Fatal(err)
	}
	names := s.Observe(context.Background(), "x")
	if got := Receive(t, names, "the leader's name"); got != "a" {
		t.Errorf("%q leads, want a", got)
	}
	s.Close()
	Receive(t, l.Context().Done(), "the end of leadership")
	if _, ok := <-names; ok {
		t.Error("a name after the end")
	}
}
