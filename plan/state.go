package plan

import (
	"cmp"
	"errors"
	"fmt"

	"sigs.k8s.io/yaml"

	"github.com/manxnet/manx/bgp"
	"github.com/manxnet/manx/datastore/codec"
	"github.com/manxnet/manx/datastore/document"
	"github.com/manxnet/manx/datastore/kubernetes/form"
	"github.com/manxnet/manx/datastore/manifest"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/datastore/validation"
)

// State is a set of objects as a daemon would read it from its datastore.
type State struct {
	Objects model.Set
	// Remarks report skipped documents, and why; sorted. The order of files and of documents in them has no influence
	// on a State.
	Remarks []string

	passwords bgp.PasswordSource
}

// Nodes returns the names of the nodes, sorted.
func (s State) Nodes() []string {
	var names []string
	for k := range model.All[model.Node](s.Objects, model.KindNode) {
		names = append(names, k.Name)
	}
	return names
}

// Read returns a State from files. namespace is the namespace of the Secrets with passwords.
//
// It reads objects as the daemon reads its datastore: it ignores unknown kinds, and skips objects that are unsafe to
// use. The remarks report both.
func Read(sources []manifest.Source, namespace string) State {
	r := reader{namespace: namespace, found: map[model.Key][]found{}}
	for _, s := range sources {
		for d, err := range document.Objects(s.Text) {
			if err != nil {
				r.unreadable(s.Name, err)
				continue
			}
			r.take(place{s.Name, d})
		}
	}
	return r.state()
}

// place is a document and the file it is in.
type place struct {
	file string
	document.Object
}

func (p place) at(field string) string { return fmt.Sprintf("%s:%d", p.file, p.Line(field)) }

// found is a usable object with its place.
type found struct {
	place
	object  *model.Object     // nil for a Secret
	secret  map[string]string // by key
	meta    metadata
	content []byte
}

// metadata has the fields that identify the newest of several versions of an object.
type metadata struct {
	Name            string            `json:"name"`
	Namespace       string            `json:"namespace"`
	Labels          map[string]string `json:"labels"`
	Annotations     map[string]string `json:"annotations"`
	ResourceVersion string            `json:"resourceVersion"`
}

type reader struct {
	namespace string
	found     map[model.Key][]found
	remarks   []remark
}

type remark struct {
	file string
	line int
	text string
}

func (r *reader) remark(p place, field, format string, args ...any) {
	r.remarks = append(r.remarks, remark{p.file, p.Line(field), fmt.Sprintf(format, args...)})
}

func (r *reader) unreadable(file string, err error) {
	var at *document.Error
	line := 0
	if errors.As(err, &at) {
		line, err = at.Line, at.Err
	}
	r.remarks = append(r.remarks, remark{file, line, "skipped: " + err.Error()})
}

// take reads a document.
func (r *reader) take(p place) {
	var head struct {
		Metadata metadata `json:"metadata"`
	}
	if err := yaml.Unmarshal(p.JSON, &head); err != nil { // accepts numbers as text, like the decoder
		r.remark(p, "metadata", "%s is skipped: its metadata cannot be read: %v", p.Kind, err)
		return
	}
	f := found{place: p, meta: head.Metadata, content: content(p.JSON)}
	switch convert := forms[p.TypeMeta.APIVersion+"/"+p.Kind]; {
	case p.Kind == "":
		r.remark(p, "", "skipped: kind is missing")
	case convert != nil:
		convert(r, f)
	default:
		r.takeResource(f)
	}
}

// takeResource reads an object of a kind that the daemon uses, in the stored form.
func (r *reader) takeResource(f found) {
	info, ok := model.LookupDocument(f.APIVersion, f.Kind)
	switch {
	case !ok:
		r.remark(f.place, "kind", "%s %s is skipped: Manx does not read this kind", f.Kind, f.meta.Name)
		return
	case !info.Resource:
		return // IPAM's records: BGP follows from the affinities alone
	case f.APIVersion == customResource && info.APIVersion == model.APIVersion:
		r.takeCustom(f, info.Kind)
		return
	case f.APIVersion != "" && f.APIVersion != info.APIVersion:
		r.remark(f.place, "apiVersion", "%s %s is skipped: apiVersion = %q: must be %s", f.Kind, f.meta.Name,
			f.APIVersion, info.APIVersion)
		return
	}
	key := model.Key{Kind: info.Kind, Name: f.meta.Name}
	if info.Namespaced {
		key.Namespace = cmp.Or(f.meta.Namespace, "default")
	}
	raw := f.JSON
	strict, err := f.Decode()
	if err == nil {
		if key.Name == "" {
			key.Name = nameOf(strict)
		}
		raw, err = codec.Encode(strict) // converts numbers and booleans to text
	}
	if key.Name == "" {
		r.remark(f.place, "metadata", "%s is skipped: metadata.name is missing", f.Kind)
		return
	}
	r.enter(f, key, raw, err)
}

// takeCustom reads an object in Kubernetes' stored form: an annotation has its name, labels and more metadata.
func (r *reader) takeCustom(f found, kind model.Kind) {
	raw, err := withRevision(f.JSON)
	var o *model.Object
	if err == nil {
		o, err = form.Decode(form.V1, kind, raw)
	}
	if err != nil {
		r.remark(f.place, "metadata", "%s %s is skipped: %v", f.Kind, f.meta.Name, err)
		return
	}
	f.APIVersion = ""
	strict, mistakes := f.Decode()       // reports unknown fields, and fields of a wrong type
	if o.Value == nil && strict != nil { // the API refuses it, but a file may have it: text for a number, for instance
		kept, _ := codec.Encode(strict)
		r.enter(f, o.Key, kept, mistakes)
		return
	}
	kept, err := codec.Encode(o)
	r.enter(f, o.Key, kept, errors.Join(mistakes, err))
}

// nameOf sets the name of an endpoint to the one that follows from its fields.
func nameOf(o *model.Object) string {
	w, ok := o.Value.(*model.WorkloadEndpoint)
	if !ok {
		return ""
	}
	name, _ := model.WorkloadEndpointName(w.Spec.IDs())
	return name
}

// enter decodes an object as the daemon does. mistakes are the errors of a strict decoder.
func (r *reader) enter(f found, key model.Key, raw []byte, mistakes error) {
	info, _ := model.Lookup(key.Kind)
	o := codec.Decode(key, raw, 0)
	if o.Value != nil {
		validation.Default(info.Kind, o.Value) // as when the object was stored
		if raw, err := codec.Encode(o); err == nil {
			o = codec.Decode(key, raw, 0)
		}
	}
	if o.Err != nil {
		r.refuse(f, key, o, mistakes)
		return
	}
	f.object = o
	r.found[key] = append(r.found[key], f)
	for _, e := range flatten(mistakes) {
		r.remarks = append(r.remarks, remark{f.file, e.Line,
			fmt.Sprintf("%s: %v (passed over; apply would refuse the object)", key, e.Err)})
	}
	for _, e := range validation.Validate(key, o.Value) {
		r.remark(f.place, e.Field, "%s: %v (apply would refuse the object)", key, e)
	}
}

// refuse adds a remark with the reason why an object is skipped.
func (r *reader) refuse(f found, key model.Key, o *model.Object, mistakes error) {
	var invalid *model.InvalidError
	if errors.As(o.Err, &invalid) {
		for _, e := range invalid.Fields {
			r.remark(f.place, e.Field, "%s is skipped: %v", key, e)
		}
		return
	}
	if all := flatten(mistakes); len(all) > 0 {
		for _, e := range all {
			r.remarks = append(r.remarks, remark{f.file, e.Line, fmt.Sprintf("%s is skipped: %v", key, e.Err)})
		}
		return
	}
	r.remark(f.place, "", "%s is skipped: %v", key, o.Err)
}

func flatten(err error) []*document.Error {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		var all []*document.Error
		for _, e := range joined.Unwrap() {
			all = append(all, flatten(e)...)
		}
		return all
	}
	var at *document.Error
	if errors.As(err, &at) {
		return []*document.Error{at}
	}
	return nil
}
