package kubernetes

import (
	"bufio"
	"bytes"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"

	"github.com/manxnet/manx/datastore/conversion"
	"github.com/manxnet/manx/datastore/kubernetes/form"
	"github.com/manxnet/manx/datastore/model"
)

// resource is the place of a kind in the API, with its conversion to Manx's objects.
type resource struct {
	kind       model.Kind
	root       string // "/apis/GROUP/VERSION" or "/api/v1"
	plural     string
	namespaced bool
	status     bool // the status is written separately
	protobuf   bool
	many       bool   // numerous in a large cluster, so that efficient reads matter
	custom     bool   // absent without a CustomResourceDefinition
	optional   bool   // a daemon without the right to read it goes on as if there were none
	fields     string // selects those with objects, empty for all
	// decode converts one; nil if it is irrelevant. The error is for one without a key.
	decode func(raw []byte) (*model.Object, error)
}

// String returns the API's name: "ippools.crd.projectcalico.org".
func (r resource) String() string {
	parts := strings.Split(strings.TrimPrefix(r.root, "/"), "/")
	if len(parts) < 3 {
		return r.plural
	}
	return r.plural + "." + parts[1]
}

// path returns the path of one object, of all in a namespace, or of all.
func (r resource) path(namespace, name string) string {
	p := r.root
	if r.namespaced && namespace != "" {
		p += "/namespaces/" + namespace
	}
	p += "/" + r.plural
	if name != "" {
		p += "/" + name
	}
	return p
}

// accept returns the requested content type.
func (r resource) accept() string {
	if r.protobuf {
		return asProtobuf
	}
	return asJSON
}

// of returns the object in a response.
func (r resource) of(raw []byte) (*model.Object, error) {
	if r.protobuf {
		var err error
		if raw, err = unwrap(raw); err != nil {
			return nil, err
		}
	}
	return r.decode(raw)
}

// items visits the objects of a page.
func (r resource) items(raw []byte, each func(*model.Object) error) (listMeta, error) {
	if r.protobuf {
		return protobufItems(raw, r.decoded(each))
	}
	return jsonList(bytes.NewReader(raw), r.decoded(each))
}

// arriving visits the objects of a list that is read from a stream.
func (r resource) arriving(in *bufio.Reader, each func(*model.Object) error) (listMeta, error) {
	if r.protobuf {
		return protobufList(in, r.decoded(each))
	}
	return jsonList(in, r.decoded(each))
}

// decoded visits the object of each item.
func (r resource) decoded(each func(*model.Object) error) func(item []byte) error {
	return func(item []byte) error {
		o, err := r.decode(item)
		if err != nil || o == nil {
			return err
		}
		return each(o)
	}
}

const (
	coreRoot   = "/api/v1"
	policyRoot = "/apis/policy.networking.k8s.io/v1alpha2"
	// running selects pods that have or may get an endpoint: those with a node that have not ended. The server sends
	// only these.
	running = "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed"
)

// resource returns the resource of a kind. The error is for kinds that the datastore does not have.
func (s *Store) resource(kind model.Kind) (resource, error) {
	r := resource{kind: kind, root: coreRoot, protobuf: true}
	switch kind {
	case model.KindNode:
		r.plural, r.many, r.decode = "nodes", true, typed(keptNode, s.node)
	case model.KindWorkloadEndpoint:
		r.plural, r.namespaced, r.many = "pods", true, true
		r.fields, r.decode = running, typed(keptPod, s.endpoint)
	case model.KindNamespace:
		r.plural, r.many, r.decode = "namespaces", true, typed(keptLabels, form.Namespace)
	case model.KindServiceAccount:
		r.plural, r.namespaced, r.many = "serviceaccounts", true, true
		r.decode = typed(keptLabels, form.ServiceAccount)
	case model.KindService:
		r.plural, r.namespaced, r.many, r.decode = "services", true, true, typed(keptSpec, form.Service)
	case model.KindEndpointSlice:
		r.root, r.plural, r.namespaced, r.many = "/apis/discovery.k8s.io/v1", "endpointslices", true, true
		r.decode = typed(keptSlice, form.EndpointSlice)
	case model.KindKubernetesNetworkPolicy:
		r.root, r.plural, r.namespaced, r.many = "/apis/networking.k8s.io/v1", "networkpolicies", true, true
		r.decode = typed(keptSpec, s.networkPolicy)
	case model.KindClusterNetworkPolicy:
		r.root, r.plural, r.protobuf, r.custom = policyRoot, "clusternetworkpolicies", false, true
		r.decode = s.clusterPolicy
	case model.KindMigration:
		r.root, r.plural = "/apis/kubevirt.io/v1", "virtualmachineinstancemigrations"
		r.namespaced, r.protobuf = true, false
		r.custom, r.optional, r.decode = true, true, form.Migration
	default:
		return s.customResource(kind)
	}
	return r, nil
}

// customResource returns the custom resource of a kind.
func (s *Store) customResource(kind model.Kind) (resource, error) {
	if s.config.UsePodCIDR && isIPAM(kind) {
		return resource{}, &apiError{nil, "is not supported where pods get their addresses from their node's pod " +
			"CIDR (USE_POD_CIDR)"}
	}
	g := s.group()
	c, ok := form.CustomResource(g, kind)
	if !ok {
		if info, known := model.Lookup(kind); known && info.Kubernetes {
			return resource{}, &apiError{nil, "is not kept: use kubectl"}
		}
		if _, known := model.Lookup(kind); known {
			return resource{}, &apiError{nil, fmt.Sprintf("%ss are made of others: follow Namespaces and "+
				"ServiceAccounts", kind)}
		}
		return resource{}, &apiError{nil, fmt.Sprintf("unknown kind %q", kind)}
	}
	return resource{kind: kind, root: "/apis/" + c.Group + "/" + c.Version, plural: c.Plural, namespaced: c.Namespaced,
		status: c.Status, custom: true, decode: func(raw []byte) (*model.Object, error) {
			o, err := form.Decode(g, kind, raw)
			if err == nil && kind == model.KindClusterInformation {
				s.noteLock(o)
			}
			return o, err
		}}, nil
}

// Reference refers to the custom resource of an object, for Events about it; false if it has none.
func (s *Store) Reference(o *model.Object) (corev1.ObjectReference, bool) {
	c, ok := form.CustomResource(s.group(), o.Key.Kind)
	name, err := form.Name(o.Key)
	if !ok || err != nil {
		return corev1.ObjectReference{}, false
	}
	r := corev1.ObjectReference{APIVersion: c.Group + "/" + c.Version, Kind: c.Kind, Namespace: o.Key.Namespace,
		Name: name}
	if m := o.Metadata(); m != nil {
		r.UID = form.UID(s.group(), m.GetUID())
	}
	return r, true
}

// isForeign reports whether a kind is a custom resource of another project, which has its own name and is only read.
func isForeign(kind model.Kind) bool {
	return kind == model.KindClusterNetworkPolicy || kind == model.KindMigration
}

// isIPAM reports whether a kind is for the assignment of addresses only.
func isIPAM(kind model.Kind) bool {
	switch kind {
	case model.KindIPAMBlock, model.KindBlockAffinity, model.KindIPAMHandle, model.KindIPAMConfig,
		model.KindIPAMConfiguration:
		return true
	}
	return false
}

// message is a type of Kubernetes in its protobuf form.
type message[T any] interface {
	*T
	Unmarshal([]byte) error
}

// typed decodes one of Kubernetes' own objects, of which it keeps parts. It serves one reader at a time.
func typed[T any, P message[T]](keep parts, convert func(*T) *model.Object) func([]byte) (*model.Object, error) {
	var room []byte
	v := new(T) // used again, since these kinds are numerous; the result of convert must not refer to it
	return func(raw []byte) (*model.Object, error) {
		room = trim(room[:0], raw, keep)
		*v = *new(T)
		if err := P(v).Unmarshal(room); err != nil {
			return nil, fmt.Errorf("%w: %w", errMangled, err)
		}
		return convert(v), nil
	}
}

func (s *Store) node(n *corev1.Node) *model.Object {
	o, notices := form.Node(n, s.form())
	s.logNotices(o, notices)
	return o
}

func (s *Store) endpoint(p *corev1.Pod) *model.Object {
	o, notices := form.Endpoint(p, s.form())
	s.logNotices(o, notices)
	return o
}

func (s *Store) networkPolicy(p *networkingv1.NetworkPolicy) *model.Object {
	o := form.KubernetesPolicy(p)
	s.logNotices(o, conversion.PolicyNotices(o))
	return o
}

func (s *Store) clusterPolicy(raw []byte) (*model.Object, error) {
	o, err := form.ClusterPolicy(raw)
	if err == nil {
		s.logNotices(o, conversion.PolicyNotices(o))
	}
	return o, err
}

func (s *Store) form() form.Config {
	return form.Config{UsePodCIDR: s.config.UsePodCIDR, InterfacePrefix: s.config.InterfacePrefix}
}
