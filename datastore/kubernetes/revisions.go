package kubernetes

import "github.com/manxnet/manx/datastore/model"

// revisions are the revisions of objects of one kind, by namespace and name. A cluster has ten thousands of pods, so
// that a map by key would be a large part of what a node keeps of each.
type revisions struct {
	kind model.Kind
	of   map[string]map[string]int64
	n    int
}

func newRevisions(kind model.Kind) revisions {
	return revisions{kind: kind, of: map[string]map[string]int64{}}
}

func (r *revisions) len() int { return r.n }

func (r *revisions) get(k model.Key) (revision int64, ok bool) {
	revision, ok = r.of[k.Namespace][k.Name]
	return revision, ok
}

func (r *revisions) set(k model.Key, revision int64) {
	in := r.of[k.Namespace]
	if in == nil {
		in = map[string]int64{}
		r.of[k.Namespace] = in
	}
	was := len(in)
	in[k.Name] = revision
	r.n += len(in) - was
}

func (r *revisions) remove(k model.Key) {
	in := r.of[k.Namespace]
	was := len(in)
	delete(in, k.Name)
	if r.n -= was - len(in); len(in) == 0 {
		delete(r.of, k.Namespace)
	}
}

// forget makes all revisions unequal to those of stored objects.
func (r *revisions) forget() {
	for _, in := range r.of {
		for name := range in {
			in[name] = -1
		}
	}
}

// all visits the revisions in no order. A visited one may be removed meanwhile.
func (r *revisions) all(yield func(model.Key, int64) bool) {
	for namespace, in := range r.of {
		for name, revision := range in {
			if !yield(model.Key{Kind: r.kind, Namespace: namespace, Name: name}, revision) {
				return
			}
		}
	}
}
