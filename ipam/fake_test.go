package ipam

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/manxnet/manx/datastore/codec"
	"github.com/manxnet/manx/datastore/etcd"
	"github.com/manxnet/manx/datastore/model"
)

// memory is a store that keeps bytes as etcd does: one revision for all keys, compare-and-swap, and a history of
// writes.
type memory struct {
	mu       sync.Mutex
	revision int64
	entries  map[string]entry // by etcd path
	history  []write
	forget   bool // keep no history
}

type entry struct {
	key      model.Key
	raw      []byte
	revision int64
}

type write struct {
	op, path, raw string
}

func newMemory() *memory { return &memory{entries: map[string]entry{}} }

func (m *memory) Get(_ context.Context, key model.Key) (*model.Object, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	_, e, err := m.find(key)
	if err != nil {
		return nil, err
	}
	return codec.Decode(key, e.raw, e.revision), nil
}

func (m *memory) find(key model.Key) (string, entry, error) {
	path, err := etcd.Path(key)
	if err != nil {
		return "", entry{}, err
	}
	e, ok := m.entries[path]
	if !ok {
		return path, entry{}, fmt.Errorf("%s %w", key, model.ErrNotFound)
	}
	return path, e, nil
}

func (m *memory) List(_ context.Context, kind model.Kind, namespace string) ([]*model.Object, int64, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	prefixes, err := etcd.Prefixes(kind, namespace)
	if err != nil {
		return nil, 0, err
	}
	var paths []string
	for path := range m.entries {
		if slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(path, p) }) {
			paths = append(paths, path)
		}
	}
	slices.Sort(paths)
	var objects []*model.Object
	for _, path := range paths {
		e := m.entries[path]
		objects = append(objects, codec.Decode(e.key, e.raw, e.revision))
	}
	return objects, m.revision, nil
}

func (m *memory) Create(_ context.Context, o *model.Object) (*model.Object, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	path, _, err := m.find(o.Key)
	if err == nil {
		return nil, fmt.Errorf("%s %w", o.Key, model.ErrExists)
	}
	return m.put("create", path, o)
}

func (m *memory) Update(_ context.Context, o *model.Object) (*model.Object, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	path, e, err := m.find(o.Key)
	if err != nil {
		return nil, err
	}
	if e.revision != o.Revision {
		return nil, fmt.Errorf("%s: %w", o.Key, model.ErrConflict)
	}
	return m.put("update", path, o)
}

func (m *memory) put(op, path string, o *model.Object) (*model.Object, error) {
	raw, err := codec.Encode(o)
	if err != nil {
		return nil, err
	}
	m.revision++
	m.entries[path] = entry{o.Key, raw, m.revision}
	m.note(write{op, path, string(raw)})
	return codec.Decode(o.Key, raw, m.revision), nil
}

func (m *memory) Delete(_ context.Context, key model.Key, revision int64) (*model.Object, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	path, e, err := m.find(key)
	if err != nil {
		return nil, err
	}
	if revision != 0 && e.revision != revision {
		return nil, fmt.Errorf("%s: %w", key, model.ErrConflict)
	}
	m.revision++
	delete(m.entries, path)
	m.note(write{"delete", path, ""})
	return codec.Decode(key, e.raw, e.revision), nil
}

func (m *memory) note(w write) {
	if !m.forget {
		m.history = append(m.history, w)
	}
}

// clone copies the content, so that a test can continue from one state in many ways.
func (m *memory) clone() *memory {
	c := newMemory()
	c.revision = m.revision
	for k, v := range m.entries {
		c.entries[k] = v
	}
	return c
}
