package etcd

import (
	"context"
	"errors"
	"fmt"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/codec"
	"github.com/manxnet/manx/datastore/model"
)

// Create implements datastore.Store. It sets UID and creation time of a resource without them.
//
// As with every write, after ErrUnavailable or the end of ctx the write may have taken place.
func (s *Store) Create(ctx context.Context, o *model.Object) (*model.Object, error) {
	created := usable(o)
	if err := codec.PrepareCreate(created, time.Now()); err != nil {
		return nil, &datastore.KeyError{Op: "create", Key: o.Key, Err: err}
	}
	created, swapped, err := s.swap(ctx, created, absent)
	switch {
	case err != nil:
		return nil, s.keyError(ctx, "create", o.Key, err)
	case !swapped:
		return nil, &datastore.KeyError{Op: "create", Key: o.Key, Err: datastore.ErrExists}
	}
	return created, nil
}

// Update implements datastore.Store. A resource without UID and creation time keeps the stored ones.
func (s *Store) Update(ctx context.Context, o *model.Object) (*model.Object, error) {
	fail := func(err error) (*model.Object, error) {
		return nil, &datastore.KeyError{Op: "update", Key: o.Key, Err: err}
	}
	updated := usable(o)
	if o.Revision <= 0 {
		return fail(errors.New("revision is missing: want that of the object that is to be replaced"))
	}
	if incomplete(updated) {
		stored, err := s.Get(ctx, o.Key)
		if err != nil {
			return nil, err
		}
		if stored.Revision != o.Revision {
			return fail(fmt.Errorf("%w (revision is %d, not %d)", datastore.ErrConflict, stored.Revision, o.Revision))
		}
		updated.Replaces(stored)
	}
	if err := codec.PrepareUpdate(updated); err != nil {
		return fail(err)
	}
	updated, swapped, err := s.swap(ctx, updated, unchangedSince(o.Revision))
	switch {
	case err != nil:
		return nil, s.keyError(ctx, "update", o.Key, err)
	case swapped:
		return updated, nil
	case updated == nil:
		return fail(datastore.ErrNotFound)
	}
	return fail(fmt.Errorf("%w (revision is %d, not %d)", datastore.ErrConflict, updated.Revision, o.Revision))
}

// Apply stores the object whatever is stored. It is only for the IPAM configuration, which Calico writes that way;
// everything else uses Create and Update.
func (s *Store) Apply(ctx context.Context, o *model.Object) (*model.Object, error) {
	if o.Key.Kind != model.KindIPAMConfig {
		return nil, &datastore.KeyError{Op: "apply", Key: o.Key,
			Err: errors.New("only the IPAM configuration is written without a revision")}
	}
	applied := usable(o)
	if err := codec.PrepareUpdate(applied); err != nil {
		return nil, &datastore.KeyError{Op: "apply", Key: o.Key, Err: err}
	}
	applied, _, err := s.swap(ctx, applied, nil)
	if err != nil {
		return nil, s.keyError(ctx, "apply", o.Key, err)
	}
	return applied, nil
}

// Delete implements datastore.Store.
func (s *Store) Delete(ctx context.Context, key model.Key, revision int64) (*model.Object, error) {
	fail := func(err error) (*model.Object, error) {
		return nil, &datastore.KeyError{Op: "delete", Key: key, Err: err}
	}
	path, err := Path(key)
	if err != nil {
		return fail(err)
	}
	var guards []clientv3.Cmp
	if revision != 0 {
		guards = unchangedSince(revision)(path)
	}
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	resp, err := s.client.Txn(ctx).If(guards...).
		Then(clientv3.OpDelete(path, clientv3.WithPrevKV())).
		Else(clientv3.OpGet(path)).Commit()
	if err != nil {
		return nil, s.keyError(ctx, "delete", key, err)
	}
	if !resp.Succeeded {
		if kvs := resp.Responses[0].GetResponseRange().Kvs; len(kvs) > 0 {
			return fail(fmt.Errorf("%w (revision is %d, not %d)", datastore.ErrConflict, kvs[0].ModRevision, revision))
		}
		return fail(datastore.ErrNotFound)
	}
	deleted := resp.Responses[0].GetResponseDeleteRange().PrevKvs
	if len(deleted) == 0 {
		return fail(datastore.ErrNotFound)
	}
	return codec.Decode(key, deleted[0].Value, deleted[0].ModRevision), nil
}

// A guard is the condition on the entry at path for a write. nil is none.
type guard func(path string) []clientv3.Cmp

func absent(path string) []clientv3.Cmp {
	return []clientv3.Cmp{clientv3.Compare(clientv3.Version(path), "=", 0)}
}

func unchangedSince(revision int64) guard {
	return func(path string) []clientv3.Cmp {
		return []clientv3.Cmp{clientv3.Compare(clientv3.ModRevision(path), "=", revision)}
	}
}

// swap stores o if the guard holds and returns it as stored; otherwise it returns the stored object, nil if there is
// none.
func (s *Store) swap(ctx context.Context, o *model.Object, guarded guard) (_ *model.Object, swapped bool, _ error) {
	path, err := Path(o.Key)
	if err != nil {
		return nil, false, err
	}
	value, err := codec.Encode(o)
	if err != nil {
		return nil, false, err
	}
	var guards []clientv3.Cmp
	if guarded != nil {
		guards = guarded(path)
	}
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	resp, err := s.client.Txn(ctx).If(guards...).
		Then(clientv3.OpPut(path, string(value))).
		Else(clientv3.OpGet(path)).Commit()
	if err != nil {
		return nil, false, err
	}
	if resp.Succeeded {
		return codec.Decode(o.Key, value, resp.Header.Revision), true, nil
	}
	if kvs := resp.Responses[0].GetResponseRange().Kvs; len(kvs) > 0 {
		return codec.Decode(o.Key, kvs[0].Value, kvs[0].ModRevision), false, nil
	}
	return nil, false, nil
}

// usable copies o, so that the caller's stays unchanged. It clears Err: the replaced object may have been invalid.
func usable(o *model.Object) *model.Object {
	c := o.Clone()
	c.Err = nil
	return c
}

// incomplete reports whether o was not made from a stored object: then it lacks the fields that must survive.
func incomplete(o *model.Object) bool {
	m := o.Metadata()
	return len(o.Raw) == 0 || m != nil && m.GetUID() == ""
}
