package election

import (
	"context"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"
)

// lateLease confirms the first claim only after its end.
type lateLease struct{ claims int }

func (l *lateLease) Free(context.Context) error { return nil }

func (l *lateLease) Claim(context.Context) (time.Time, error) {
	l.claims++
	if l.claims == 1 {
		return time.Now().Add(-time.Millisecond), nil
	}
	return time.Now().Add(time.Hour), nil
}

func (l *lateLease) Renew(context.Context) (time.Time, error) { return time.Now().Add(time.Hour), nil }

func (l *lateLease) Taken(ctx context.Context) error {
	<-ctx.Done()
	return ctx.Err()
}

func (l *lateLease) Release(context.Context) error { return nil }

// A candidate whose claim is confirmed after its end does not lead: another one may have the lease by then.
func TestLateClaimDoesNotLead(t *testing.T) {
	var tasks sync.WaitGroup
	lease := &lateLease{}
	c := Campaign{Election: "controllers", Candidate: "a", TTL: time.Hour, Closed: t.Context(), Tasks: &tasks,
		Log: zap.NewNop()}
	l, err := c.Run(t.Context(), lease)
	if err != nil {
		t.Fatal(err)
	}
	if lease.claims != 2 || l.Context().Err() != nil {
		t.Errorf("leads after %d claims: %v", lease.claims, context.Cause(l.Context()))
	}
	if err := l.Resign(t.Context()); err != nil {
		t.Error(err)
	}
	tasks.Wait()
}
