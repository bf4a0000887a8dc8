// Package storetest tests a backend: it has the requirements on every datastore.Store and Elector, as tests for each
// backend to run.
package storetest

import (
	"context"
	"testing"
	"time"

	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/model"
)

// System is a fresh and empty datastore, with a line to it that can be cut.
type System struct {
	// Open returns a client that does not share a connection with another one, and whose leases last longer than any
	// test. It is closed when the test ends.
	Open func(*testing.T) datastore.Backend
	// OpenRemote returns a client behind the line, whose leases last for ShortLease.
	OpenRemote func(*testing.T) datastore.Backend
	// Cut breaks the line and lets nothing through until Mend.
	Cut, Mend func()
	// Forget makes the datastore drop its history, so that a disconnected reader has to read everything again.
	Forget func(*testing.T)
	// Rewatched returns how often watches of clients behind the line have begun again; nil if that is not counted.
	Rewatched func() int
}

// LongLease is longer than any test: a candidate that leads before did not wait for the expiry of a lease.
const LongLease, ShortLease = time.Hour, 2 * time.Second

type part struct {
	name string
	test func(*testing.T, System)
}

// Run tests a backend. It calls start for each part.
func Run(t *testing.T, start func(*testing.T) System) {
	RunStore(t, start)
	runElector(t, start)
}

// RunStore tests the Store of a backend only.
func RunStore(t *testing.T, start func(*testing.T) System) {
	run(t, start, []part{
		{"create, read, update, delete", crud},
		{"the profile that is built in", builtInProfile},
		{"kinds of IPAM", ipamKinds},
		{"what is invalid is refused", refusals},
		{"a stale writer loses", concurrentWriters},
		{"an object that is made anew is another one", createAgain},
		{"list", list},
		{"operations on a broken line", brokenLine},
		{"watch delivers what is there, then changes", watchChanges},
		{"watch delivers in order", watchOrder},
		{"watch over a lost history", watchForgotten},
		{"watch over a line that flaps", watchFlaps},
		{"watch ends with its context and with the store", watchEnds},
		{"watch of an unknown kind", watchUnknown},
		{"tables contain what was written", tablesContain},
	})
}

// runElector tests the Elector of a backend only.
func runElector(t *testing.T, start func(*testing.T) System) {
	run(t, start, []part{
		{"one leads until he resigns", resigning},
		{"never two lead", neverTwoLead},
		{"a leader who is cut off", leaderCutOff},
		{"observe over a lost connection", observeOverALostConnection},
		{"elections that cannot be", invalidElections},
	})
}

func run(t *testing.T, start func(*testing.T) System, parts []part) {
	for _, part := range parts {
		t.Run(part.name, func(t *testing.T) { part.test(t, start(t)) })
	}
}

// peer returns a valid object that is independent of others.
func peer(name, ip string) *model.Object {
	return model.NewObject(model.ResourceKey(model.KindBGPPeer, name),
		&model.BGPPeer{Spec: model.BGPPeerSpec{PeerIP: ip, ASNumber: 64512}})
}

func peerIP(o *model.Object) string { return o.Value.(*model.BGPPeer).Spec.PeerIP }

// Create stores an object, or ends the test.
func Create(t *testing.T, s datastore.Store, o *model.Object) *model.Object {
	t.Helper()
	created, err := s.Create(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	return created
}

// Change sets another address in a BGPPeer and stores it, or ends the test. o is not changed.
func Change(t *testing.T, s datastore.Store, o *model.Object, ip string) *model.Object {
	t.Helper()
	c := o.Clone()
	c.Value.(*model.BGPPeer).Spec.PeerIP = ip
	changed, err := s.Update(context.Background(), c)
	if err != nil {
		t.Fatal(err)
	}
	return changed
}

func remove(t *testing.T, s datastore.Store, k model.Key) {
	t.Helper()
	if _, err := s.Delete(context.Background(), k, 0); err != nil {
		t.Fatal(err)
	}
}
