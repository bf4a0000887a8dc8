package datastore

import (
	"crypto/sha256"
	"encoding/binary"
	"slices"
	"strings"

	"github.com/manxnet/manx/datastore/model"
)

// reducer reduces the WorkloadEndpoints of other nodes, and stores fields that many of them share, such as the labels
// and ports of a Deployment's pods, once.
type reducer struct {
	node          string                            // whose endpoints stay whole; all do if it is empty
	addressesOnly bool                              // see NewAddressTables
	other         func(*model.Object) *model.Object // see NewReducedTables; nil: none
	confirmed     confirmations
	texts         recent[string]
	common        recent[*model.CommonEndpoint]
	// The following fields are reused for each endpoint.
	scratch model.CommonEndpoint
	buffer  []byte
	names   []string
}

// reduce returns the form of a valid object for the tables.
func (r *reducer) reduce(o *model.Object) *model.Object {
	if r.other != nil {
		return r.other(o)
	}
	if w, ok := o.Value.(*model.WorkloadEndpoint); !ok || r.node == "" || w.Spec.Node == r.node {
		return r.confirmed.decide(o)
	}
	return o.Remote(&r.scratch, r.text, r.share)
}

func (r *reducer) text(s string) string {
	return r.texts.of(s, func() string { return strings.Clone(s) })
}

func (r *reducer) share(w *model.CommonEndpoint) *model.CommonEndpoint {
	if r.addressesOnly {
		w.Labels, w.Profiles, w.Ports, w.ServiceAccountName = nil, nil, nil, ""
	}
	id := sha256.Sum256(r.identity(w)) // which takes less memory
	return r.common.of(string(id[:]), func() *model.CommonEndpoint {
		kept := *w
		kept.Namespace = r.text(w.Namespace)
		kept.Labels = make(map[string]string, len(w.Labels))
		for k, v := range w.Labels {
			kept.Labels[r.text(k)] = r.text(v)
		}
		return &kept
	})
}

// identity returns a text that is equal for two endpoints with equal shared fields. It is valid until the next call.
func (r *reducer) identity(w *model.CommonEndpoint) []byte {
	b, names := r.buffer[:0], r.names[:0]
	add := func(texts ...string) {
		for _, s := range texts {
			b = append(binary.AppendUvarint(b, uint64(len(s))), s...) // so that different lists of texts differ
		}
	}
	add(w.Namespace, w.Orchestrator, w.Endpoint, w.ServiceAccountName)
	for name := range w.Labels {
		names = append(names, name)
	}
	slices.Sort(names)
	b = binary.AppendUvarint(b, uint64(len(names)))
	for _, name := range names {
		add(name, w.Labels[name])
	}
	b = binary.AppendUvarint(b, uint64(len(w.Profiles)))
	add(w.Profiles...)
	for _, p := range w.Ports {
		add(p.Name, p.Protocol.StrVal, p.HostIP)
		b = append(b, byte(p.Protocol.Type), p.Protocol.NumVal)
		b = binary.AppendUvarint(binary.AppendUvarint(b, uint64(p.Port)), uint64(p.HostPort))
	}
	r.buffer, r.names = b, names
	return b
}

// recent caches recently used values, so that equal ones are stored once. Its size is bounded: a dropped value is only
// stored twice.
type recent[T any] struct{ now, before map[string]T }

const remembrance = 8192

func (r *recent[T]) of(id string, make func() T) T {
	if v, ok := r.now[id]; ok {
		return v
	}
	v, ok := r.before[id]
	if !ok {
		v = make()
	}
	if r.now == nil || len(r.now) >= remembrance {
		r.now, r.before = map[string]T{}, r.now
	}
	r.now[strings.Clone(id)] = v
	return v
}
