package ipam

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/manxnet/manx/datastore/model"
)

// faulty is a store in which the at-th call has a fault.
type faulty struct {
	Store
	mu    sync.Mutex // handle and block may be written at the same time
	at    int
	calls int
	fault fault
	dead  bool
}

// fault is the fault of a call. Exactly one member is set.
type fault struct {
	name         string
	fail         bool              // the call fails and has no effect
	lose         bool              // the call has its effect, but the response is lost
	crash        bool              // the process dies before the call: all later ones fail too
	concurrently func(Store) error // another process acts before the call
	crashed      bool              // crash, but after the call
}

var errBroken = fmt.Errorf("connection lost: %w", model.ErrUnavailable)

func (f *faulty) call(do func() error) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls++
	switch now := f.calls == f.at; {
	case f.dead:
		return errBroken
	case now && f.fault.fail:
		return errBroken
	case now && f.fault.crash:
		f.dead = true
		return errBroken
	case now && f.fault.crashed:
		f.dead = true
		do()
		return errBroken
	case now && f.fault.lose:
		do()
		return errBroken
	case now && f.fault.concurrently != nil:
		if err := f.fault.concurrently(f.Store); err != nil {
			return fmt.Errorf("meddler: %v", err)
		}
	}
	return do()
}

func (f *faulty) Get(ctx context.Context, k model.Key) (o *model.Object, err error) {
	err = f.call(func() (err error) { o, err = f.Store.Get(ctx, k); return err })
	return o, err
}

func (f *faulty) List(ctx context.Context, k model.Kind, ns string) (o []*model.Object, rev int64, err error) {
	err = f.call(func() (err error) { o, rev, err = f.Store.List(ctx, k, ns); return err })
	return o, rev, err
}

func (f *faulty) Create(ctx context.Context, in *model.Object) (o *model.Object, err error) {
	err = f.call(func() (err error) { o, err = f.Store.Create(ctx, in); return err })
	return o, err
}

func (f *faulty) Update(ctx context.Context, in *model.Object) (o *model.Object, err error) {
	err = f.call(func() (err error) { o, err = f.Store.Update(ctx, in); return err })
	return o, err
}

func (f *faulty) Delete(ctx context.Context, k model.Key, rev int64) (o *model.Object, err error) {
	err = f.call(func() (err error) { o, err = f.Store.Delete(ctx, k, rev); return err })
	return o, err
}

// operation is an operation that is interrupted at each of its calls.
type operation struct {
	name   string
	before []func(*Allocator) error // operations long ago
	do     func(*Allocator) error
	// beside: handle and block are written at the same time. A handle may then count too few, until CountHandles.
	beside bool
}

func assign(host, handle string, n int) func(*Allocator) error {
	return func(a *Allocator) error {
		r, err := a.AutoAssign(context.Background(), Request{Host: host, Handle: handle, Num4: n, Use: workload,
			Attrs: map[string]string{"node": host}})
		if err != nil {
			return err
		}
		return r.Short()
	}
}

// assignBeside is assign by a process that writes handle and block at the same time, as manxd does.
func assignBeside(host, handle string, n int) func(*Allocator) error {
	return func(a *Allocator) error {
		var waits []func(context.Context) error
		r, err := a.AutoAssign(context.Background(), Request{Host: host, Handle: handle, Num4: n, Use: workload,
			Attrs: map[string]string{"node": host},
			Later: func(wait func(context.Context) error) { waits = append(waits, wait) }})
		for _, wait := range waits {
			err = errors.Join(err, wait(context.Background()))
		}
		if err != nil {
			return err
		}
		return r.Short()
	}
}

func assignAddr(host, handle, addr string) func(*Allocator) error {
	return func(a *Allocator) error {
		return a.AssignIP(context.Background(), AddressRequest{Address: netip.MustParseAddr(addr), Host: host,
			Handle: handle})
	}
}

func releaseHandle(handle string) func(*Allocator) error {
	return func(a *Allocator) error {
		_, err := a.ReleaseByHandle(context.Background(), handle)
		if errors.Is(err, model.ErrNotFound) {
			return nil
		}
		return err
	}
}

func releaseAddr(addrs ...string) func(*Allocator) error {
	return func(a *Allocator) error {
		var list []Release
		for _, addr := range addrs {
			list = append(list, Release{Address: netip.MustParseAddr(addr)})
		}
		r, err := a.ReleaseIPs(context.Background(), list...)
		if err == nil && len(r.NotAssigned) > 0 {
			return errNotAssigned
		}
		return err
	}
}

// errNotAssigned prevents the release of unassigned addresses by a test, unless another process has released them.
var errNotAssigned = errors.New("was not assigned")

func releaseAffinities(host string, mustBeEmpty bool) func(*Allocator) error {
	return func(a *Allocator) error {
		err := a.ReleaseHostAffinities(context.Background(), Host(host), mustBeEmpty)
		if errors.Is(err, ErrNotEmpty) {
			return nil
		}
		return err
	}
}

// The pool has two blocks of eight addresses: 10.0.0.0/29, where the walk of host b starts, and 10.0.0.8/29, where that
// of host a does.
var operations = []operation{
	{name: "claim a block and assign", do: assign("a", "h", 2)},
	{name: "assign from the own block", before: list(assign("a", "old", 1)), do: assign("a", "h", 2)},
	{name: "assign more than the own block has", before: list(assign("a", "old", 6)), do: assign("a", "h", 4)},
	{name: "more for a handle that has some", before: list(assign("a", "h", 1)), do: assign("a", "h", 1)},
	{name: "assign beside the handle", before: list(assign("a", "old", 1)), do: assignBeside("a", "h", 2),
		beside: true},
	{name: "claim a block and assign beside the handle", do: assignBeside("a", "h", 2), beside: true},
	{name: "more beside a handle that has some", before: list(assign("a", "h", 1)), do: assignBeside("a", "h", 1),
		beside: true},
	{name: "borrow", before: list(assign("b", "b1", 8), assign("b", "b2", 7)), do: assign("a", "h", 1)},
	{name: "borrow a part", before: list(assign("b", "b1", 9)), do: assign("a", "h", 3)},
	{name: "reclaim an unused block", before: list(assign("b", "b1", 9), releaseAddr("10.0.0.8")),
		do: assign("a", "h", 2)},
	{name: "assign a given address in a new block", do: assignAddr("a", "h", "10.0.0.9")},
	{name: "assign a given address of another host", before: list(assign("b", "b1", 1)),
		do: assignAddr("a", "h", "10.0.0.5")},
	{name: "release by handle", before: list(assign("a", "h", 3), assign("a", "old", 1)), do: releaseHandle("h")},
	{name: "release by handle out of two blocks", before: list(assign("a", "h", 10)), do: releaseHandle("h")},
	{name: "release by address", before: list(assign("a", "h", 3)), do: releaseAddr("10.0.0.8", "10.0.0.10")},
	{name: "release the last address of a block without owner",
		before: list(assign("a", "h", 1), releaseAffinities("a", false)), do: releaseAddr("10.0.0.8")},
	{name: "give up an empty block", before: list(assign("a", "h", 1), releaseHandle("h")),
		do: releaseAffinities("a", true)},
	{name: "give up a block in use", before: list(assign("a", "h", 1)), do: releaseAffinities("a", false)},
	{name: "give up nothing", before: list(assign("a", "h", 1)), do: releaseAffinities("a", true)},
}

func list(f ...func(*Allocator) error) []func(*Allocator) error { return f }

// prepared returns a store in which the preparation of an operation is two minutes old, so that unused blocks may be
// reclaimed.
func prepared(t *testing.T, op operation, then, now time.Time) (*memory, func() time.Time) {
	t.Helper()
	store := newMemory()
	create(t, store, poolObject("p", "10.0.0.0/28", 29), nodeObject("a"), nodeObject("b"))
	for _, do := range op.before {
		if err := do(New(store, nil, func() time.Time { return then })); err != nil {
			t.Fatalf("prepare: %v", err)
		}
	}
	return store, func() time.Time { return now }
}

// Any single call of any operation may fail, lose its response, or be the last before the process dies. The data stay
// consistent, another allocator can continue, and at the end everything can be released.
func TestEveryCallMayFail(t *testing.T) {
	faults := []fault{
		{name: "fails", fail: true}, {name: "has its answer lost", lose: true},
		{name: "is never made", crash: true}, {name: "is the last one", crashed: true},
	}
	forEachCall(t, faults, func(t *testing.T, op operation, f fault, store *memory, now func() time.Time, err error) {
		if op.beside { // the next process repairs it, as at the start of manxd
			_, err := New(store, nil, now).CountHandles(t.Context(), "a", func(string) bool { return false })
			if err != nil {
				t.Error(err)
			}
		}
		s := readState(t, store)
		interrupted := func(handle string) bool {
			return err != nil && handle == "h" || f.crash || f.crashed || f.lose || f.fail
		}
		s.checkHandles(t, interrupted)
		s.checkAffinities(t)
		continueWith(t, store, now)
	})
}

// continueWith performs the next operations of hosts and workloads with a new allocator.
func continueWith(t *testing.T, store *memory, now func() time.Time) {
	t.Helper()
	a := New(store, nil, now)
	before := readState(t, store).owner
	for _, next := range []func(*Allocator) error{
		releaseHandle("h"), assign("a", "next-a", 1), assign("b", "next-b", 1), assign("a", "h", 1), releaseHandle("h"),
	} {
		if err := next(a); err != nil && len(before) < 15 {
			t.Errorf("go on: %v", err)
		}
	}
	s := readState(t, store)
	for addr, handle := range before {
		if handle != "h" && s.owner[addr] != handle {
			t.Errorf("%s was assigned to %s and is now %q", addr, handle, s.owner[addr])
		}
	}
	s.checkAffinities(t)
	// The last release of "h" repaired the remains of the interruption.
	s.checkHandles(t, func(handle string) bool { return handle != "h" })
	if len(s.has["h"]) > 0 || s.handles["h"] != nil {
		t.Errorf("handle h still has %v and counts %v", s.has["h"], s.handles["h"])
	}
	releaseEverything(t, store, now)
}

// Another writer may make any change before any call of any operation: the operation has its specified result or fails
// with a reason.
func TestEveryCallMayBeRaced(t *testing.T) {
	meddlers := []struct {
		name string
		do   func(*Allocator) error
	}{
		{"the same host assigns", assign("a", "m", 1)},
		{"another host assigns", assign("b", "m", 1)},
		{"a given address is assigned", func(a *Allocator) error {
			err := assignAddr("b", "m", "10.0.0.8")(a)
			if errors.Is(err, ErrAssigned) {
				return nil
			}
			return err
		}},
		{"blocks of a are given up", releaseAffinities("a", false)},
		{"blocks of b are given up", releaseAffinities("b", false)},
		{"empty blocks are given up", func(a *Allocator) error {
			return errors.Join(releaseAffinities("a", true)(a), releaseAffinities("b", true)(a))
		}},
		{"another handle is released", releaseHandle("old")},
		{"a handle of the other host is released", releaseHandle("b1")},
		{"the same handle is released", releaseHandle("h")},
		{"the same handle assigns", assign("a", "h", 1)},
	}
	now := time.Now()
	var faults []fault
	for _, m := range meddlers {
		faults = append(faults, fault{name: m.name, concurrently: func(s Store) error {
			if err := m.do(New(s, nil, func() time.Time { return now })); err != nil &&
				!errors.Is(err, errBlockLimit) && !isShort(err) {
				return err
			}
			return nil
		}})
	}
	forEachCall(t, faults, func(t *testing.T, op operation, f fault, store *memory, now func() time.Time, err error) {
		s := readState(t, store)
		if err != nil && !isShort(err) && !errors.Is(err, ErrAssigned) && !errors.Is(err, errNotAssigned) {
			t.Errorf("operation: %v", err)
		}
		// A handle that was released between the two writes counts too many addresses, until its next release.
		s.checkHandles(t, func(handle string) bool { return op.beside && handle == "h" })
		s.checkAffinities(t)
		releaseEverything(t, store, now)
	})
}

// isShort: the pool is too small for the operation and the concurrent one.
func isShort(err error) bool {
	return err != nil && errors.As(err, new(*shortError))
}

// forEachCall runs each operation with each fault at each of its calls.
func forEachCall(
	t *testing.T, faults []fault, check func(*testing.T, operation, fault, *memory, func() time.Time, error),
) {
	now := time.Now()
	for _, op := range operations {
		t.Run(op.name, func(t *testing.T) {
			original, clock := prepared(t, op, now.Add(-2*time.Minute), now)
			count := &faulty{Store: original.clone()}
			if err := op.do(New(count, nil, clock)); err != nil {
				t.Fatalf("undisturbed: %v", err)
			}
			for _, f := range faults {
				for at := 1; at <= count.calls; at++ {
					t.Run(fmt.Sprintf("call %d %s", at, f.name), func(t *testing.T) {
						store := original.clone()
						err := op.do(New(&faulty{Store: store, at: at, fault: f}, nil, clock))
						check(t, op, f, store, clock, err)
					})
				}
			}
		})
	}
}
