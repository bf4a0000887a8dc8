package datastore

import (
	"crypto/sha256"
	"encoding/json"
	"strings"

	"github.com/manxnet/manx/datastore/model"
)

// reducer makes the WorkloadEndpoints of other nodes small, and keeps once what many of them have in common, such as the
// labels and ports of a Deployment's pods.
type reducer struct {
	node   string // whose endpoints stay whole; all do if it is empty
	texts  recent[string]
	common recent[*model.WorkloadEndpoint]
}

// reduce gives what the tables keep of a valid object.
func (r *reducer) reduce(o *model.Object) *model.Object {
	if w, ok := o.Value.(*model.WorkloadEndpoint); !ok || r.node == "" || w.Spec.Node == r.node {
		return o
	}
	return o.Remote(r.text, r.share)
}

func (r *reducer) text(s string) string {
	return r.texts.of(s, func() string { return strings.Clone(s) })
}

func (r *reducer) share(w *model.WorkloadEndpoint) *model.WorkloadEndpoint {
	text, err := json.Marshal(w)
	if err != nil {
		return w
	}
	id := sha256.Sum256(text) // which takes less memory
	return r.common.of(string(id[:]), func() *model.WorkloadEndpoint {
		w.Namespace = r.text(w.Namespace)
		labels := make(map[string]string, len(w.Labels))
		for k, v := range w.Labels {
			labels[r.text(k)] = r.text(v)
		}
		w.Labels = labels
		return w
	})
}

// recent remembers values that were used lately, so that equal ones are the same. It never grows beyond a bound, whatever
// comes and goes: what is forgotten is kept twice, nothing worse.
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
