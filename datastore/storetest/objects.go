package storetest

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"testing"
	"time"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"

	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/model"
)

// builtInProfile: every cluster has the profile, no datastore stores it, and a write of its name is refused.
func builtInProfile(t *testing.T, x System) {
	ctx := t.Context()
	s := x.Open(t)
	o := model.NewObject(model.ResourceKey(model.KindProfile, model.DefaultAllowProfile), &v3.Profile{})
	if _, err := s.Get(ctx, o.Key); !errors.Is(err, datastore.ErrNotFound) {
		t.Errorf("get: %v", err)
	}
	if _, err := s.Create(ctx, o); err == nil || !strings.Contains(err.Error(), "is built in") {
		t.Errorf("create: %v", err)
	}
	list, _, err := s.List(ctx, model.KindProfile, "")
	if err != nil {
		t.Error(err)
	}
	for _, p := range list {
		if p.Key == o.Key {
			t.Error("it is listed")
		}
	}
}

func crud(t *testing.T, x System) {
	ctx := t.Context()
	s := x.Open(t)
	o := peer("tor", "10.0.0.1")
	if _, err := s.Get(ctx, o.Key); !errors.Is(err, datastore.ErrNotFound) {
		t.Fatalf("get of nothing: %v", err)
	}
	if _, err := s.Delete(ctx, o.Key, 0); !errors.Is(err, datastore.ErrNotFound) {
		t.Fatalf("delete of nothing: %v", err)
	}
	created, err := s.Create(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	m := created.Metadata()
	if ct := m.GetCreationTimestamp(); m.GetUID() == "" || ct.IsZero() || created.Revision == 0 ||
		o.Metadata().GetUID() != "" {
		t.Fatalf("created %+v", m)
	}
	if _, err := s.Create(ctx, o); !errors.Is(err, datastore.ErrExists) {
		t.Fatalf("second create: %v", err)
	}
	next := created.Clone()
	next.Value.(*model.BGPPeer).Spec.PeerIP = "10.0.0.2"
	updated, err := s.Update(ctx, next)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Update(ctx, next); !errors.Is(err, datastore.ErrConflict) {
		t.Fatalf("update of a stale object: %v", err)
	}
	if _, err := s.Delete(ctx, o.Key, created.Revision); !errors.Is(err, datastore.ErrConflict) {
		t.Fatalf("delete of a stale object: %v", err)
	}
	read, err := s.Get(ctx, o.Key)
	if err != nil || peerIP(read) != "10.0.0.2" || read.Revision != updated.Revision ||
		read.Metadata().GetUID() != m.GetUID() {
		t.Fatalf("read %+v, %v", read, err)
	}
	deleted, err := s.Delete(ctx, o.Key, updated.Revision)
	if err != nil || peerIP(deleted) != "10.0.0.2" {
		t.Fatalf("deleted %+v, %v", deleted, err)
	}
	if _, err := s.Update(ctx, updated); !errors.Is(err, datastore.ErrNotFound) {
		t.Fatalf("update of what is gone: %v", err)
	}
	if _, err := s.Delete(ctx, o.Key, updated.Revision); !errors.Is(err, datastore.ErrNotFound) {
		t.Fatalf("delete of what is gone: %v", err)
	}
}

// The objects of IPAM have no metadata, and names that differ from those of resources.
func ipamKinds(t *testing.T, x System) {
	ctx := t.Context()
	s := x.Open(t)
	cidr := netip.MustParsePrefix("10.0.0.0/30")
	affinity := model.Affinity{Type: model.AffinityHost, Host: "node-1", CIDR: cidr}
	owner := affinity.String()
	for _, o := range []*model.Object{
		model.NewObject(model.BlockKey(cidr), &model.Block{CIDR: cidr, Affinity: &owner, Allocations: make([]*int, 4),
			Unallocated: []int{0, 1, 2, 3}}),
		model.NewObject(model.AffinityKey(affinity), &model.BlockAffinity{State: "confirmed"}),
		model.NewObject(model.HandleKey("Net.aB1"), &model.Handle{Block: map[string]int{cidr.String(): 1}}),
		model.NewObject(model.IPAMConfigKey, &model.IPAMConfig{AutoAllocateBlocks: true}),
	} {
		created, err := s.Create(ctx, o)
		if err != nil {
			t.Error(err)
			continue
		}
		updated, err := s.Update(ctx, changedValue(created))
		if err != nil || updated.Key != o.Key {
			t.Errorf("update of %s: %v", o.Key, err)
			continue
		}
		if _, err := s.Delete(ctx, o.Key, created.Revision); !errors.Is(err, datastore.ErrConflict) {
			t.Errorf("%s: delete of a stale object: %v", o.Key, err)
		}
		if all, _, err := s.List(ctx, o.Key.Kind, ""); err != nil || len(all) != 1 ||
			all[0].Key != o.Key || all[0].Err != nil || all[0].Revision != updated.Revision {
			t.Errorf("%s: listed %+v, %v", o.Key, all, err)
		}
		if _, err := s.Delete(ctx, o.Key, updated.Revision); err != nil {
			t.Error(err)
		}
	}
}

// changedValue returns an object of IPAM with another value: a write that changes nothing need not make a new revision.
func changedValue(o *model.Object) *model.Object {
	o = o.Clone()
	switch v := o.Value.(type) {
	case *model.Block:
		v.SequenceNumber++
	case *model.BlockAffinity:
		v.State = "pending"
	case *model.Handle:
		v.Block["10.0.0.4/30"] = 1
	case *model.IPAMConfig:
		v.StrictAffinity = !v.StrictAffinity
	}
	return o
}

// An object that breaks a rule is refused with the field, and changes nothing.
func refusals(t *testing.T, x System) {
	ctx := t.Context()
	s := x.Open(t)
	if _, err := s.Create(ctx, peer("tor", "cow")); err == nil || !strings.Contains(err.Error(), "peerIP") {
		t.Errorf("invalid object: %v", err)
	}
	if _, err := s.Create(ctx, peer("T o r", "10.0.0.1")); err == nil {
		t.Error("an invalid name is accepted")
	}
	good := Create(t, s, peer("tor", "10.0.0.1"))
	bad := good.Clone()
	bad.Value.(*model.BGPPeer).Spec.PeerIP = "cow"
	if _, err := s.Update(ctx, bad); err == nil || !strings.Contains(err.Error(), "peerIP") {
		t.Errorf("invalid update: %v", err)
	}
	fresh := peer("tor", "10.0.0.2")
	if _, err := s.Update(ctx, fresh); err == nil || !strings.Contains(err.Error(), "revision is missing") {
		t.Errorf("update without a revision: %v", err)
	}
	if read, err := s.Get(ctx, good.Key); err != nil || read.Revision != good.Revision || peerIP(read) != "10.0.0.1" {
		t.Errorf("afterwards: %+v, %v", read, err)
	}
	// An object that was not made from the stored one keeps its identity.
	fresh.Revision = good.Revision
	updated, err := s.Update(ctx, fresh)
	if err != nil || updated.Metadata().GetUID() != good.Metadata().GetUID() || peerIP(updated) != "10.0.0.2" {
		t.Errorf("update by a document: %+v, %v", updated, err)
	}
	var e *datastore.KeyError
	if _, err := s.Get(ctx, model.ResourceKey("Cow", "x")); err == nil || !errors.As(err, &e) {
		t.Errorf("unknown kind: %v", err)
	}
}

// Concurrent writers that read, change and write do not undo each other's changes.
func concurrentWriters(t *testing.T, x System) {
	const writers, rounds = 4, 15
	first := x.Open(t)
	o := Create(t, first, peer("tor", "10.0.0.1"))
	done := make(chan error, writers)
	add := func(s datastore.Store) error {
		for {
			stored, err := s.Get(t.Context(), o.Key)
			if err != nil {
				return err
			}
			next := stored.Clone()
			n, _ := strconv.Atoi(next.Metadata().GetAnnotations()["n"])
			next.Metadata().SetAnnotations(map[string]string{"n": strconv.Itoa(n + 1)})
			if _, err := s.Update(t.Context(), next); !errors.Is(err, datastore.ErrConflict) {
				return err
			}
		}
	}
	for range writers {
		s := x.Open(t)
		go func() {
			var err error
			for i := 0; i < rounds && err == nil; i++ {
				err = add(s)
			}
			done <- err
		}()
	}
	for range writers {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	last, err := first.Get(t.Context(), o.Key)
	if err != nil {
		t.Fatal(err)
	}
	if n := last.Metadata().GetAnnotations()["n"]; n != fmt.Sprint(writers*rounds) {
		t.Errorf("%s of %d additions are left", n, writers*rounds)
	}
}

// A client that has read only the first of two objects of one name cannot write the second.
func createAgain(t *testing.T, x System) {
	ctx := t.Context()
	s := x.Open(t)
	first := Create(t, s, peer("tor", "10.0.0.1"))
	remove(t, s, first.Key)
	second := Create(t, s, peer("tor", "10.0.0.1"))
	if second.Revision <= first.Revision || second.Metadata().GetUID() == first.Metadata().GetUID() {
		t.Errorf("the second has revision %d after %d, and UID %s",
			second.Revision, first.Revision, second.Metadata().GetUID())
	}
	if _, err := s.Update(ctx, first); !errors.Is(err, datastore.ErrConflict) {
		t.Errorf("update by who knows the first: %v", err)
	}
	if _, err := s.Delete(ctx, first.Key, first.Revision); !errors.Is(err, datastore.ErrConflict) {
		t.Errorf("delete by who knows the first: %v", err)
	}
}

func list(t *testing.T, x System) {
	ctx := t.Context()
	s := x.Open(t)
	if all, _, err := s.List(ctx, model.KindBGPPeer, ""); err != nil || len(all) > 0 {
		t.Errorf("list of nothing: %v, %v", all, err)
	}
	for _, name := range []string{"c", "a", "b"} {
		Create(t, s, peer(name, "10.0.0.1"))
	}
	last := Create(t, s, peer("a-b", "10.0.0.1"))
	names := func(kind model.Kind, namespace string) string {
		t.Helper()
		all, revision, err := s.List(ctx, kind, namespace)
		if err != nil {
			t.Fatal(err)
		}
		var text []string
		for _, o := range all {
			text = append(text, strings.TrimPrefix(o.Key.Namespace+"/"+o.Key.Name, "/"))
			if o.Err != nil || o.Revision > revision {
				t.Errorf("%s of revision %d in a list of revision %d: %v", o.Key, o.Revision, revision, o.Err)
			}
		}
		return strings.Join(text, " ")
	}
	if got := names(model.KindBGPPeer, ""); got != "a a-b b c" {
		t.Errorf("peers are %s", got)
	}
	if _, revision, _ := s.List(ctx, model.KindBGPPeer, ""); revision < last.Revision {
		t.Errorf("the list has revision %d, its last object %d", revision, last.Revision)
	}
	for _, host := range []string{"n2", "n1", "n10"} {
		a := model.Affinity{Type: model.AffinityHost, Host: host, CIDR: netip.MustParsePrefix("10.0.0.0/26")}
		Create(t, s, model.NewObject(model.AffinityKey(a), &model.BlockAffinity{State: "confirmed"}))
	}
	if got := names(model.KindBlockAffinity, "host/n1"); got != "host/n1/10.0.0.0/26" {
		t.Errorf("affinities of n1 are %s", got)
	}
	if got := names(model.KindBlockAffinity,
		""); got != "host/n1/10.0.0.0/26 host/n10/10.0.0.0/26 host/n2/10.0.0.0/26" {
		t.Errorf("affinities are %s", got)
	}
}

// On a broken line each operation returns its name in an error that Is ErrUnavailable. Later it works again.
func brokenLine(t *testing.T, x System) {
	s := x.Far(t)
	a := Create(t, s, peer("a", "10.0.0.1"))
	x.Cut()
	for op, f := range map[string]func(context.Context) error{
		"get":    func(ctx context.Context) error { _, err := s.Get(ctx, a.Key); return err },
		"list":   func(ctx context.Context) error { _, _, err := s.List(ctx, a.Key.Kind, ""); return err },
		"create": func(ctx context.Context) error { _, err := s.Create(ctx, peer("b", "10.0.0.1")); return err },
		"update": func(ctx context.Context) error { _, err := s.Update(ctx, a); return err },
		"delete": func(ctx context.Context) error { _, err := s.Delete(ctx, a.Key, 0); return err },
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		err := f(ctx)
		cancel()
		var e *datastore.KeyError
		if !errors.Is(err, datastore.ErrUnavailable) || !errors.As(err, &e) || e.Op != op {
			t.Errorf("%s: %v", op, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.Get(ctx, a.Key); !errors.Is(err, context.Canceled) || errors.Is(err, datastore.ErrUnavailable) {
		t.Errorf("given up by the caller: %v", err)
	}
	x.Mend()
	for end := time.Now().Add(Patience); ; {
		if _, err := s.Get(t.Context(), a.Key); err == nil {
			return
		} else if time.Now().After(end) {
			t.Fatalf("when the line is back: %v", err)
		}
	}
}
