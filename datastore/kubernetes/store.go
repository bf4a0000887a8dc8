package kubernetes

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sync/singleflight"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"

	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/conversion"
	"github.com/manxnet/manx/datastore/kubernetes/form"
	"github.com/manxnet/manx/datastore/model"
)

const (
	// requestTimeout bounds each request whose context has no deadline.
	requestTimeout = 10 * time.Second
	// pageSize keeps one response of a large list at a few megabytes.
	pageSize = 500
	// mostNotices bounds the number of reported objects with an unusable part.
	mostNotices = 20
	// readRetries bounds the restarts of a list whose revision was compacted.
	readRetries = 5
)

// Store is a datastore.Backend over the Kubernetes API.
type Store struct {
	config  Config
	host    string
	client  *client
	log     *zap.Logger
	ctx     context.Context // ends with Close
	cancel  context.CancelFunc
	watches sync.WaitGroup

	mu       sync.Mutex // guards the following fields
	api      form.Group
	found    bool // the server has that group, or a setting names it
	reported map[model.Key]string
	missing  map[string]bool   // requested custom resources that do not exist
	unread   map[string]string // notices about objects of kinds that Manx does not read, by resource
	// migration is the notice about a migration between the groups, empty for none.
	migration string
	reached   chan struct{} // closed when a watch could be opened after a loss
	// plain are the API groups whose objects are read as plain lists until the given time, because their server does
	// not support initial events in a watch.
	plain  map[string]time.Time
	proven bool // the server is known to support it

	probing singleflight.Group
	locked  chan struct{} // the datastore was seen to be locked
}

var _ datastore.Backend = (*Store)(nil)

// Open connects to the API and detects the group of custom resources. An error that Is ErrUnavailable may be temporary;
// ErrUnauthorized and errors about the settings are permanent.
func Open(ctx context.Context, config Config, log *zap.Logger) (*Store, error) {
	config.Log = cmp.Or(config.Log, log)
	r, err := config.REST()
	if err != nil {
		return nil, err
	}
	return open(ctx, config, r, log)
}

// OpenREST is Open with client-go's settings instead of the connection settings in config.
func OpenREST(ctx context.Context, config Config, r *rest.Config, log *zap.Logger) (*Store, error) {
	return open(ctx, config, r, log)
}

func open(ctx context.Context, config Config, r *rest.Config, log *zap.Logger) (*Store, error) {
	switch form.Group(config.Group) {
	case "", form.V1, form.V3:
	default:
		return nil, fmt.Errorf("API group of custom resources %q: want %s or %s", config.Group, form.V1, form.V3)
	}
	c, err := newClient(r)
	if err != nil {
		return nil, err
	}
	s := &Store{config: config, host: r.Host, client: c, log: log, reported: map[model.Key]string{},
		missing: map[string]bool{}, unread: map[string]string{}, plain: map[string]time.Time{},
		reached: make(chan struct{}), locked: make(chan struct{}, 1),
		api: form.Group(cmp.Or(config.Group, string(form.V3))), found: config.Group != ""}
	s.ctx, s.cancel = context.WithCancel(context.WithoutCancel(ctx))
	if err := s.discover(ctx); err != nil {
		s.cancel()
		return nil, err
	}
	if config.Follows {
		s.watches.Go(func() { _ = s.streams(s.ctx) }) // the first feed gets the error
	}
	if config.Moved != nil {
		s.watches.Go(func() { s.followMigration(s.ctx) })
	}
	log.Info("Kubernetes API reached", zap.String("server", r.Host), zap.String("group", string(s.group())))
	return s, nil
}

// discover detects the group of custom resources. With both, a server in front of the older one usually presents its
// objects in the newer form.
func (s *Store) discover(ctx context.Context) error {
	limited, cancel := bounded(ctx)
	defer cancel()
	groups, err := s.client.groups(limited)
	if err != nil {
		if err = s.explain(ctx, err); !errors.As(err, new(*apiError)) {
			return err
		}
		s.log.Warn("the API groups cannot be listed", zap.Error(err)) // it answers, but incompletely
		return nil
	}
	v1, _, _ := strings.Cut(string(form.V1), "/")
	v3, _, _ := strings.Cut(string(form.V3), "/")
	api := form.V3
	if groups[v1] {
		api = form.V1
	}
	if groups[v1] && groups[v3] && s.config.Group == "" {
		if api, err = s.populated(limited); err != nil {
			return s.explain(ctx, err)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.found {
		return nil
	}
	if s.api != api {
		clear(s.missing)
	}
	s.api, s.found = api, groups[v1] || groups[v3]
	return nil
}

// populated returns the group of a cluster with both: the newer one if the objects have been migrated to it, else the
// first one that has the cluster's ClusterInformation. So definitions of the older group that come into a cluster with
// the newer one do not take its policies away.
func (s *Store) populated(ctx context.Context) (form.Group, error) {
	if m, err := s.readMigration(ctx); err != nil {
		return "", err
	} else if m.copied() {
		return form.V3, nil
	}
	for _, g := range []form.Group{form.V1, form.V3} {
		_, err := s.client.do(ctx, request{verb: http.MethodGet, accept: asJSON,
			path: "/apis/" + string(g) + "/clusterinformations/default"})
		if err == nil || apierrors.IsForbidden(err) {
			return g, nil
		}
		if !apierrors.IsNotFound(err) {
			return "", err
		}
	}
	return form.V1, nil
}

// Group returns the API group of the custom resources in use.
func (s *Store) Group() form.Group { return s.group() }

// group returns the API group of the custom resources in use.
func (s *Store) group() form.Group {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.api
}

// absent records that the server does not have a custom resource of Calico, and checks whether it has the other group
// by now. ClusterNetworkPolicy comes with no installation, and does not count as missing. The error has the name of the
// missing resource, and Is ErrUnavailable: it may be installed later.
func (s *Store) absent(ctx context.Context, r resource) error {
	s.mu.Lock()
	known, counts := s.found, r.root == "/apis/"+string(s.api) // not the group of before
	first := counts && !s.missing[r.String()]
	if counts {
		s.missing[r.String()] = true
	}
	s.mu.Unlock()
	if !known {
		_ = s.discover(ctx) // the next request reports a failure
	}
	err := &apiError{datastore.ErrUnavailable, fmt.Sprintf("the Kubernetes API has no %s of version %s: its "+
		"CustomResourceDefinition is missing", r, r.root[strings.LastIndex(r.root, "/")+1:])}
	if first {
		s.log.Warn("a kind cannot be used", zap.String("kind", string(r.kind)), zap.Error(err))
	}
	return err
}

// present records that the server has a resource.
func (s *Store) present(r resource) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.missing, r.String())
}

// Unread returns the kinds of which there are objects that Manx does not read.
func (s *Store) Unread() (kinds []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, plural := range unread {
		if s.unread[plural] != "" {
			kinds = append(kinds, unreadKinds[i])
		}
	}
	return kinds
}

// Notices implements datastore.Backend.
func (s *Store) Notices() (list []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.missing) > 0 {
		var names []string
		for name := range s.missing {
			names = append(names, name)
		}
		slices.Sort(names)
		list = append(list, "the Kubernetes API lacks CustomResourceDefinitions (objects of theirs that were "+
			"known before "+
			"stay, others there are none): "+strings.Join(names, ", "))
	}
	for _, plural := range unread {
		if text := s.unread[plural]; text != "" {
			list = append(list, text)
		}
	}
	if s.migration != "" {
		list = append(list, s.migration)
	}
	var parts []string
	for _, text := range s.reported {
		parts = append(parts, text)
	}
	slices.Sort(parts)
	if more := len(parts) - mostNotices; more > 0 {
		parts = append(parts[:mostNotices], fmt.Sprintf("parts of %d more objects cannot be used: see the log", more))
	}
	return append(list, parts...)
}

// Keeps implements datastore.Backend.
func (s *Store) Keeps(kind model.Kind) bool {
	if s.podBlocks(kind) {
		return true
	}
	_, err := s.resource(kind)
	return err == nil
}

// Source implements datastore.Backend.
func (s *Store) Source(kind model.Kind) string {
	if s.podBlocks(kind) {
		kind = model.KindNode
	}
	r, err := s.resource(kind)
	if err != nil {
		return ""
	}
	return fmt.Sprintf("%s at %s", r, s.host)
}

// logNotices logs the unused parts of an object, once until it changes.
func (s *Store) logNotices(o *model.Object, notices []conversion.Notice) {
	if o == nil {
		return
	}
	var text []string
	for _, n := range notices {
		text = append(text, n.String())
	}
	now := strings.Join(text, "; ")
	s.mu.Lock()
	was := s.reported[o.Key]
	if now == "" {
		delete(s.reported, o.Key)
	} else {
		s.reported[o.Key] = now
	}
	s.mu.Unlock()
	if now != "" && now != was {
		s.log.Warn("a part of an object cannot be used", zap.String("reason", now))
	}
}

// Close ends all watches.
func (s *Store) Close() error {
	s.cancel()
	s.watches.Wait()
	s.client.close()
	return nil
}

// bounded gives ctx a deadline if it has none.
func bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, requestTimeout)
}

// Get implements datastore.Store. If an IPAM object's deletion has begun, it completes the deletion.
func (s *Store) Get(ctx context.Context, key model.Key) (*model.Object, error) {
	o, err := s.get(ctx, key)
	if err == nil && form.Deleted(o) {
		if err = s.remove(ctx, o); err == nil || errors.Is(err, datastore.ErrConflict) {
			err = datastore.ErrNotFound
		}
	}
	if err != nil {
		return nil, s.keyError(ctx, "get", key, err)
	}
	return o, nil
}

// get reads an object, even one marked as deleted.
func (s *Store) get(ctx context.Context, key model.Key) (*model.Object, error) {
	if key.Kind == model.KindProfile {
		return s.profile(ctx, key)
	}
	if s.podBlocks(key.Kind) {
		return s.getPodBlock(ctx, key)
	}
	r, at, err := s.locate(key)
	if err != nil {
		return nil, err
	}
	limited, cancel := bounded(ctx)
	defer cancel()
	raw, err := s.client.do(limited, request{verb: http.MethodGet, path: at, accept: r.accept()})
	if noResource(err) && r.custom {
		return nil, &apiError{datastore.ErrNotFound, "does not exist: " + s.absent(ctx, r).Error()}
	}
	if err != nil {
		return nil, err
	}
	return s.answer(r, key, raw)
}

// answer returns the object of a key in a response.
func (s *Store) answer(r resource, key model.Key, raw []byte) (*model.Object, error) {
	o, err := r.of(raw)
	switch {
	case err != nil:
		return nil, fmt.Errorf("%w: %w", datastore.ErrUnavailable, err)
	case o == nil, o.Err == nil && o.Key != key:
		return nil, datastore.ErrNotFound // a pod on another node, for instance
	}
	return o, nil
}

// locate returns the path of an object.
func (s *Store) locate(key model.Key) (resource, string, error) {
	r, err := s.resource(key.Kind)
	if err != nil {
		return r, "", err
	}
	name := key.Name
	switch {
	case key.Kind == model.KindWorkloadEndpoint:
		ids, parseErr := model.ParseWorkloadEndpointName(name)
		if parseErr != nil || ids.Orchestrator != "k8s" {
			return r, "", &apiError{datastore.ErrNotFound, "does not exist: endpoints of workloads are those of pods"}
		}
		name = ids.Pod
	case r.custom && !isForeign(key.Kind):
		name, err = form.Name(key)
	}
	if err == nil && (name == "" || r.namespaced && key.Namespace == "") {
		err = &apiError{nil, "name or namespace is missing"}
	}
	return r, r.path(url.PathEscape(key.Namespace), url.PathEscape(name)), err
}

// send makes a request about a resource.
func (s *Store) send(ctx context.Context, r resource, q request) ([]byte, error) {
	limited, cancel := bounded(ctx)
	defer cancel()
	raw, err := s.client.do(limited, q)
	if noResource(err) && r.custom {
		return nil, s.absent(ctx, r)
	}
	return raw, err
}

// profile returns the profile of a namespace or a service account.
func (s *Store) profile(ctx context.Context, key model.Key) (*model.Object, error) {
	of := model.Key{Kind: model.KindNamespace}
	name, ok := strings.CutPrefix(key.Name, conversion.NamespaceProfile(""))
	of.Name = name
	if !ok {
		name, ok = strings.CutPrefix(key.Name, "ksa.")
		of.Kind = model.KindServiceAccount
		of.Namespace, of.Name, _ = strings.Cut(name, ".") // a namespace has no dot
	}
	if !ok || of.Name == "" {
		return nil, datastore.ErrNotFound
	}
	o, err := s.get(ctx, of)
	if err != nil {
		return nil, err
	}
	return form.Profile(o), nil
}

// List implements datastore.Store. It reads any number of objects in pages, at one revision. A kind without its
// CustomResourceDefinition has no objects.
func (s *Store) List(ctx context.Context, kind model.Kind, namespace string) ([]*model.Object, int64, error) {
	var list []*model.Object
	var revision int64
	var err error
	switch {
	case kind == model.KindProfile:
		list, revision, err = s.profiles(ctx)
	case s.podBlocks(kind):
		list, revision, err = s.listPodBlocks(ctx, namespace)
	default:
		list, revision, err = s.list(ctx, kind, namespace)
	}
	if err != nil {
		return nil, 0, s.keyError(ctx, "list", model.Key{Kind: kind, Namespace: namespace, Name: "*"}, err)
	}
	slices.SortFunc(list, func(a, b *model.Object) int {
		return cmp.Or(cmp.Compare(a.Key.Namespace, b.Key.Namespace), cmp.Compare(a.Key.Name, b.Key.Name))
	})
	return list, revision, nil
}

func (s *Store) profiles(ctx context.Context) ([]*model.Object, int64, error) {
	namespaces, a, err := s.list(ctx, model.KindNamespace, "")
	if err != nil {
		return nil, 0, err
	}
	accounts, b, err := s.list(ctx, model.KindServiceAccount, "")
	if err != nil {
		return nil, 0, err
	}
	list := make([]*model.Object, 0, len(namespaces)+len(accounts))
	for _, o := range append(namespaces, accounts...) {
		list = append(list, form.Profile(o))
	}
	return list, max(a, b), nil
}

func (s *Store) list(ctx context.Context, kind model.Kind, namespace string) ([]*model.Object, int64, error) {
	r, err := s.resource(kind)
	if err != nil {
		return nil, 0, err
	}
	query := url.Values{}
	within := namespace
	if kind == model.KindBlockAffinity && namespace != "" {
		query.Set("labelSelector", form.AffinitySelector(namespace))
		within = ""
	}
	for attempt := 1; ; attempt++ {
		var list []*model.Object
		revision, err := s.pages(ctx, r, listing{namespace: within, query: query}, func(o *model.Object) error {
			if !form.Deleted(o) {
				list = append(list, o)
			}
			return nil
		})
		switch {
		case isGone(err) && attempt < readRetries:
			continue
		case noResource(err) && r.custom:
			_ = s.absent(ctx, r)
			return nil, 0, nil
		case err != nil:
			return nil, 0, err
		}
		s.present(r)
		return list, revision, nil
	}
}

// listing selects objects of a resource.
type listing struct {
	namespace string // empty for all
	query     url.Values
	// once returns a Retry-After response as an error instead of waiting.
	once bool
}

// latestRevision returns the revision of the datastore now: a list without a revision is not from an old cache. It does
// not select own pods: to find one of a few objects, the server may have to read all of the kind from its etcd.
func (s *Store) latestRevision(ctx context.Context, r resource) (int64, error) {
	q := url.Values{"limit": {"1"}}
	if r.fields != "" && r.many {
		q.Set("fieldSelector", r.fields)
	}
	limited, cancel := bounded(ctx)
	defer cancel()
	raw, err := s.client.do(limited, request{verb: http.MethodGet, path: r.path("", ""), accept: r.accept(), query: q,
		once: true})
	if err != nil {
		return 0, err
	}
	list, err := r.items(raw, func(*model.Object) error { return nil })
	if err != nil {
		return 0, err
	}
	return revisionOfList(list)
}

// pages reads a listing page by page, at the returned revision.
func (s *Store) pages(ctx context.Context, r resource, l listing, each func(*model.Object) error) (int64, error) {
	q := url.Values{"limit": {strconv.Itoa(pageSize)}}
	for name, values := range l.query {
		q[name] = values
	}
	if r.fields != "" {
		q.Set("fieldSelector", r.fields)
	}
	for {
		limited, cancel := bounded(ctx)
		raw, err := s.client.do(limited, request{verb: http.MethodGet, path: r.path(url.PathEscape(l.namespace), ""),
			accept: r.accept(), query: q, once: l.once})
		cancel()
		if err != nil {
			return 0, err
		}
		page, err := r.items(raw, each)
		if err != nil {
			return 0, err
		}
		if page.next == "" {
			return revisionOfList(page)
		}
		q.Set("continue", page.next)
	}
}
