package etcd_test

import (
	"context"
	"errors"
	"testing"

	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/etcd/etcdtest"
	"github.com/manxnet/manx/datastore/model"
)

func peer(name, ip string) *model.Object {
	return model.NewObject(model.ResourceKey(model.KindBGPPeer, name), &model.BGPPeer{Spec: model.BGPPeerSpec{PeerIP: ip, ASNumber: 64512}})
}

func peerIP(o *model.Object) string { return o.Value.(*model.BGPPeer).Spec.PeerIP }

func TestCRUD(t *testing.T) {
	ctx := context.Background()
	s := etcdtest.Start(t).Store(t)
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
	if ct := m.GetCreationTimestamp(); m.GetUID() == "" || ct.IsZero() || created.Revision == 0 || o.Metadata().GetUID() != "" {
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
	if err != nil || peerIP(read) != "10.0.0.2" || read.Revision != updated.Revision || read.Metadata().GetUID() != m.GetUID() {
		t.Fatalf("read %+v, %v", read, err)
	}
	deleted, err := s.Delete(ctx, o.Key, updated.Revision)
	if err != nil || peerIP(deleted) != "10.0.0.2" {
		t.Fatalf("deleted %+v, %v", deleted, err)
	}
	if _, err := s.Update(ctx, updated); !errors.Is(err, datastore.ErrNotFound) {
		t.Fatalf("update of what is gone: %v", err)
	}
}
