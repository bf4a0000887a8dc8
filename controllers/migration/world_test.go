package migration

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/manxnet/manx/datastore/kubernetes/form"
)

// world is a Kubernetes API in memory, as far as a migration sees it.
type world struct {
	*testing.T
	mu       sync.Mutex // guards the following fields
	objects  map[string]*Object
	last     int64 // resourceVersion and UID
	denied   func(Right) bool
	refuses  func(*Object) string
	defaults func(*Object)
	after    func() // of each write, with the lock held
	now      time.Time
	others   string
	behind   string
	report   string
	metrics  Metrics
}

func newWorld(t *testing.T) *world {
	w := &world{T: t, objects: map[string]*Object{}, now: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}
	for _, g := range []form.Group{form.V1, form.V3} {
		group, _, _ := strings.Cut(string(g), "/")
		for _, plural := range append(plurals(g), information) {
			w.put(crdPath, fmt.Sprintf(`{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition",
				"metadata":{"name":"%s.%s"}}`, plural, group))
		}
	}
	return w
}

// put stores an object, whatever was there.
func (w *world) put(path, text string) *Object {
	w.Helper()
	o := new(Object)
	if err := o.UnmarshalJSON([]byte(text)); err != nil {
		w.Fatalf("%s: %v", text, err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	at := path + "/" + o.GetName()
	generation := int64(1)
	if old := w.objects[at]; old != nil {
		generation = old.GetGeneration() + 1
		o.SetUID(old.GetUID())
	}
	return w.store(at, o, generation).DeepCopy()
}

func (w *world) store(at string, o *Object, generation int64) *Object {
	w.last++
	o = o.DeepCopy()
	o.SetResourceVersion(strconv.FormatInt(w.last, 10))
	if o.GetUID() == "" {
		o.SetUID(types.UID(fmt.Sprintf("00000000-0000-4000-8000-%012d", w.last)))
	}
	o.SetGeneration(generation)
	w.objects[at] = o
	return o
}

func (w *world) get(path string) *Object {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.objects[path].DeepCopy()
}

func (w *world) remove(path string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.objects, path)
}

var anyResource = schema.GroupResource{Resource: "objects"}

// served reports whether the kind of a path has a definition.
func (w *world) served(path string) bool {
	parts := strings.Split(strings.TrimPrefix(path, "/apis/"), "/")
	if len(parts) > 4 && parts[2] == "namespaces" {
		parts = slices.Delete(parts, 2, 4)
	}
	if group := parts[0]; group == olderGroup || group == newerGroup {
		return w.objects[crdPath+"/"+parts[2]+"."+group] != nil
	}
	return true
}

// process is a process that uses the API. It ends after a number of writes; the answer of the last one is lost.
type process struct {
	*world
	left  int  // writes until the end; negative: no end
	early bool // the last write does not take effect
	dead  bool
}

var errKilled = errors.New("the process was killed")

// write does one write. done is what it does.
func (p *process) write(dry bool, done func() (*Object, error)) (*Object, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.dead {
		return nil, errKilled
	}
	if dry {
		return done()
	}
	if p.left--; p.left == 0 && p.early {
		p.dead = true
		return nil, errKilled
	}
	o, err := done()
	if err == nil && p.after != nil {
		p.after()
	}
	if p.left == 0 {
		p.dead = true
		return nil, errKilled
	}
	return o, err
}

func (p *process) Get(_ context.Context, path string) (*Object, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch o := p.objects[path]; {
	case p.dead:
		return nil, errKilled
	case o == nil || !p.served(path):
		return nil, apierrors.NewNotFound(anyResource, path)
	default:
		return o.DeepCopy(), nil
	}
}

func (p *process) List(_ context.Context, path string) (list []*Object, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.dead {
		return nil, errKilled
	}
	if !p.served(path) {
		return nil, apierrors.NewNotFound(anyResource, path)
	}
	root, plural := path[:strings.LastIndex(path, "/")], path[strings.LastIndex(path, "/"):]
	for _, at := range slices.Sorted(maps.Keys(p.objects)) {
		in := at[:strings.LastIndex(at, "/")]
		if in == path || strings.HasPrefix(in, root+"/namespaces/") && strings.HasSuffix(in, plural) {
			list = append(list, p.objects[at].DeepCopy())
		}
	}
	return list, nil
}

// judged returns an object as it would be stored.
func (p *process) judged(o *Object) (*Object, error) {
	o = o.DeepCopy()
	if p.refuses != nil {
		if why := p.refuses(o); why != "" {
			return nil, apierrors.NewInvalid(schema.GroupKind{Kind: o.GetKind()}, o.GetName(), field.ErrorList{
				field.Invalid(field.NewPath("spec"), "x", why)})
		}
	}
	if p.defaults != nil {
		p.defaults(o)
	}
	return o, nil
}

func (p *process) Create(_ context.Context, path string, o *Object, dry bool) (*Object, error) {
	return p.write(dry, func() (*Object, error) {
		at := path + "/" + o.GetName()
		if p.objects[at] != nil {
			return nil, apierrors.NewAlreadyExists(anyResource, o.GetName())
		}
		if !p.served(path) {
			return nil, apierrors.NewNotFound(anyResource, path)
		}
		stored, err := p.judged(o)
		if err != nil || dry {
			return stored, err
		}
		delete(stored.Object, "status")
		return p.store(at, stored, 1).DeepCopy(), nil
	})
}

func (p *process) Replace(_ context.Context, path string, o *Object, dry bool) (*Object, error) {
	return p.write(dry, func() (*Object, error) {
		at, isStatus := strings.CutSuffix(path, "/status")
		old := p.objects[at]
		switch {
		case old == nil:
			return nil, apierrors.NewNotFound(anyResource, at)
		case old.GetResourceVersion() != o.GetResourceVersion():
			return nil, apierrors.NewConflict(anyResource, at, errors.New("it has changed"))
		}
		next, err := p.judged(o)
		if err != nil {
			return nil, err
		}
		if isStatus {
			changed := old.DeepCopy()
			changed.Object["status"] = next.Object["status"]
			next = changed
		} else if status, ok := old.Object["status"]; ok {
			next.Object["status"] = status
		}
		if dry || reflect.DeepEqual(next, old) {
			return next, nil
		}
		if old.GetDeletionTimestamp() != nil && len(next.GetFinalizers()) == 0 {
			delete(p.objects, at)
			return next, nil
		}
		generation := old.GetGeneration()
		if !reflect.DeepEqual(next.Object["spec"], old.Object["spec"]) {
			generation++
		}
		return p.store(at, next, generation).DeepCopy(), nil
	})
}

func (p *process) Delete(_ context.Context, path string, o *Object) error {
	_, err := p.write(false, func() (*Object, error) {
		old := p.objects[path]
		switch {
		case old == nil:
			return nil, apierrors.NewNotFound(anyResource, path)
		case old.GetResourceVersion() != o.GetResourceVersion():
			return nil, apierrors.NewConflict(anyResource, path, errors.New("it has changed"))
		}
		delete(p.objects, path)
		if name, ok := strings.CutPrefix(path, crdPath+"/"); ok { // its objects go with a definition
			plural, group, _ := strings.Cut(name, ".")
			for at := range p.objects {
				if strings.HasPrefix(at, "/apis/"+group+"/") && strings.Contains(at, "/"+plural+"/") {
					delete(p.objects, at)
				}
			}
		}
		if path == servicePath+"/"+service && old.GetLabels()[byCRDs] == "" { // the API makes its own
			own := old.DeepCopy()
			own.SetUID("")
			own.SetLabels(map[string]string{byCRDs: "true"})
			p.store(path, own, 1)
		}
		return old, nil
	})
	return err
}

func (p *process) May(_ context.Context, r Right) (bool, error) {
	if p.dead {
		return false, errKilled
	}
	return p.denied == nil || !p.denied(r), nil
}

const (
	migrationsPath = "/apis/" + group + "/v1beta1/" + resource
	migrationPath  = migrationsPath + "/" + name
)

// ask creates the migration, as a user does.
func (w *world) ask() {
	w.put(migrationsPath, `{"apiVersion":"migration.projectcalico.org/v1beta1","kind":"DatastoreMigration",
		"metadata":{"name":"v1-to-v3"},"spec":{"type":"APIServerToCRDs"}}`)
}

// withdraw deletes the migration, as a user does.
func (w *world) withdraw() {
	w.mu.Lock()
	defer w.mu.Unlock()
	o := w.objects[migrationPath]
	if o == nil {
		return
	}
	if len(o.GetFinalizers()) == 0 {
		delete(w.objects, migrationPath)
		return
	}
	at := metav1.NewTime(w.now)
	o.SetDeletionTimestamp(&at)
	w.store(migrationPath, o, o.GetGeneration())
}

// live runs a process until it waits or ends.
func (w *world) live(p *process) {
	w.Helper()
	c := &Controller{API: p, Others: func(context.Context) (string, error) { return w.others, nil },
		Behind: func(context.Context) (string, error) { return w.behind, nil }, Log: zap.NewNop(),
		Report: func(text string) { w.report = text }, Now: func() time.Time { return w.now },
		Interval: time.Millisecond, Idle: time.Millisecond, Drain: time.Millisecond, Metrics: &w.metrics}
	for range 100 {
		m, err := read(w.Context(), p)
		if err != nil || m == nil {
			return
		}
		err = c.step(w.Context(), m)
		w.now = w.now.Add(time.Second)
		if c.after(w.Context(), m, err); err != nil && !apierrors.IsConflict(err) {
			return
		}
	}
	w.Fatal("the migration comes to no end")
}

// run runs a process that lives on.
func (w *world) run() { w.Helper(); w.live(&process{world: w, left: -1}) }

// state returns the status of the migration.
func (w *world) state() status {
	w.Helper()
	m := new(migration)
	o := w.get(migrationPath)
	if o == nil {
		w.Fatal("there is no migration")
	}
	if err := m.set(o); err != nil {
		w.Fatal(err)
	}
	return m.status
}

// want fails the test unless the migration has a phase and a text in its message.
func (w *world) want(phase, text string) {
	w.Helper()
	if s := w.state(); s.Phase != phase || !strings.Contains(s.Message, text) {
		w.Fatalf("phase %q, message %q; want %q, %q", s.Phase, s.Message, phase, text)
	}
}

// spec returns the spec of an object as JSON.
func (w *world) spec(path string) string {
	w.Helper()
	o := w.get(path)
	if o == nil {
		return "no " + path
	}
	text, err := json.Marshal(o.Object["spec"])
	if err != nil {
		w.Fatal(err)
	}
	return string(text)
}

// locked reports whether the ClusterInformation of a group is locked.
func (w *world) locked(g form.Group) bool {
	o := w.objects["/apis/"+string(g)+infoPath]
	return o != nil && !open(o)
}
