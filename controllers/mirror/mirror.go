// Package mirror writes the objects derived from Kubernetes' NetworkPolicies, Namespaces and ServiceAccounts to a
// Calico datastore in etcd.
package mirror

import (
	"context"
	"encoding/json"
	"errors"
	"strings"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/manxnet/manx/controllers/change"
	"github.com/manxnet/manx/controllers/loop"
	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/conversion"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/datastore/validation"
)

// Mirror derives objects of one kind from those of another, one from one. Its unit is the object of the store. It owns
// every object whose name has its prefix: it deletes those without a source.
type Mirror struct {
	name     string
	from, to model.Kind
	prefix   string
	source   datastore.Store
	// turn returns the value to store, nil for none.
	turn func(*model.Object) (any, error)
	// origin returns the key of the source of an object.
	origin func(model.Key) (model.Key, bool)
	// target returns the key of the object derived from a source.
	target func(model.Key) model.Key
}

// Policies converts Kubernetes' NetworkPolicies to NetworkPolicies called knp.default.NAME.
func Policies(source datastore.Store) *Mirror {
	const prefix = model.KubernetesPolicyPrefix
	return &Mirror{name: "policy", from: model.KindKubernetesNetworkPolicy, to: model.KindNetworkPolicy, prefix: prefix,
		source: source, turn: policy,
		origin: func(k model.Key) (model.Key, bool) {
			return model.Key{Kind: model.KindKubernetesNetworkPolicy, Namespace: k.Namespace,
				Name: k.Name[len(prefix):]}, true
		},
		target: func(k model.Key) model.Key {
			return model.Key{Kind: model.KindNetworkPolicy, Namespace: k.Namespace, Name: prefix + k.Name}
		}}
}

// Namespaces converts Namespaces to Profiles called kns.NAME.
func Namespaces(source datastore.Store) *Mirror {
	const prefix = "kns."
	return &Mirror{name: "namespace", from: model.KindNamespace, to: model.KindProfile, prefix: prefix, source: source,
		turn: profile,
		origin: func(k model.Key) (model.Key, bool) {
			return model.ResourceKey(model.KindNamespace, k.Name[len(prefix):]), true
		},
		target: func(k model.Key) model.Key {
			return model.ResourceKey(model.KindProfile, conversion.NamespaceProfile(k.Name))
		}}
}

// ServiceAccounts converts ServiceAccounts to Profiles called ksa.NAMESPACE.NAME.
func ServiceAccounts(source datastore.Store) *Mirror {
	const prefix = "ksa."
	return &Mirror{name: "serviceaccount", from: model.KindServiceAccount, to: model.KindProfile, prefix: prefix,
		source: source, turn: profile,
		origin: func(k model.Key) (model.Key, bool) {
			namespace, name, ok := strings.Cut(k.Name[len(prefix):], ".") // the name of a namespace has no dot
			return model.Key{Kind: model.KindServiceAccount, Namespace: namespace, Name: name}, ok
		},
		target: func(k model.Key) model.Key {
			return model.ResourceKey(model.KindProfile, conversion.ServiceAccountProfile(k.Namespace, k.Name))
		}}
}

func policy(o *model.Object) (any, error) {
	in, ok := o.Value.(*networkingv1.NetworkPolicy)
	if !ok {
		return nil, o.Err
	}
	p, _, err := conversion.NetworkPolicy(in)
	if err != nil || p == nil {
		return nil, err
	}
	p.ObjectMeta = metav1.ObjectMeta{}
	return p, nil
}

func profile(o *model.Object) (any, error) {
	var p *v3.Profile
	switch in := o.Value.(type) {
	case *model.Namespace:
		p = conversion.Namespace(in)
	case *model.ServiceAccount:
		p = conversion.ServiceAccount(in)
	default:
		return nil, o.Err
	}
	p.ObjectMeta = metav1.ObjectMeta{}
	return p, nil
}

// Name implements loop.Controller.
func (m *Mirror) Name() string { return m.name }

// Kinds implements loop.Controller.
func (m *Mirror) Kinds() (store, source []model.Kind) {
	return []model.Kind{m.to}, []model.Kind{m.from}
}

// Touched implements loop.Controller.
func (m *Mirror) Touched(ch datastore.Change, source bool) []model.Key {
	switch {
	case source:
		return []model.Key{m.target(ch.Key)}
	case m.owns(ch.Key):
		return []model.Key{ch.Key}
	}
	return nil
}

func (m *Mirror) owns(k model.Key) bool {
	return k.Kind == m.to && strings.HasPrefix(k.Name, m.prefix) && len(k.Name) > len(m.prefix)
}

// All implements loop.Controller.
func (m *Mirror) All(s loop.State) []model.Key {
	var keys []model.Key
	for o := range s.Source.All(m.from) {
		keys = append(keys, m.target(o.Key))
	}
	for o := range s.Store.All(m.to) {
		if m.owns(o.Key) {
			keys = append(keys, o.Key)
		}
	}
	return keys
}

// Decide implements loop.Controller. If a source cannot be read or converted, its derived object stays unchanged.
func (m *Mirror) Decide(s loop.State, key model.Key) []change.Change {
	origin, ok := m.origin(key)
	var from *model.Object
	if ok {
		from = s.Source.Get(origin)
	}
	have := s.Store.Get(key)
	if from == nil {
		if have == nil {
			return nil
		}
		return []change.Change{{Old: have, Reason: origin.String() + " does not exist", Unless: m.exists(origin, ok)}}
	}
	value, err := m.turn(from)
	if err != nil || value == nil {
		return nil
	}
	want := model.NewObject(key, value)
	if have == nil {
		return []change.Change{{New: want, Reason: "made of " + origin.String()}}
	}
	if next, differs := replaced(have, want); differs {
		return []change.Change{{Old: have, New: next, Reason: origin.String() + " has changed"}}
	}
	return nil
}

// exists reports whether the source has an object after all, valid or not.
func (m *Mirror) exists(origin model.Key, ok bool) func(context.Context) (bool, error) {
	return func(ctx context.Context) (bool, error) {
		if !ok {
			return false, nil
		}
		_, err := m.source.Get(ctx, origin)
		if errors.Is(err, datastore.ErrNotFound) {
			return false, nil
		}
		return true, err
	}
}

// replaced returns have with the spec of want.
func replaced(have, want *model.Object) (next *model.Object, differs bool) {
	next = have.Clone()
	switch w := want.Value.(type) {
	case *v3.Profile:
		next.Value.(*v3.Profile).Spec = w.Spec
	case *v3.NetworkPolicy:
		next.Value.(*v3.NetworkPolicy).Spec = w.Spec
	}
	info, _ := model.Lookup(have.Key.Kind)
	validation.Default(info.Kind, next.Value)
	return next, !SameValue(have.Value, next.Value)
}

// SameValue reports whether the stored forms of two values are equal.
func SameValue(a, b any) bool {
	x, errX := json.Marshal(a)
	y, errY := json.Marshal(b)
	return errX == nil && errY == nil && string(x) == string(y)
}
