package form

import (
	"encoding/json"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/manxnet/manx/datastore/conversion"
	"github.com/manxnet/manx/datastore/model"
)

// live returns the object for a value that Kubernetes' API server has validated, at the given version.
func live(key model.Key, resourceVersion string, value metav1.Object) *model.Object {
	revision, err := revisionOf(resourceVersion)
	if err != nil {
		return &model.Object{Key: key, Value: value, Err: fmt.Errorf("%s: %w", key, err)}
	}
	value.SetResourceVersion(resourceVersion)
	return &model.Object{Key: key, Revision: revision, Value: value}
}

// kept returns the part of a Kubernetes object's metadata that tables keep.
func kept(m metav1.ObjectMeta) metav1.ObjectMeta {
	return metav1.ObjectMeta{Name: m.Name, Namespace: m.Namespace, UID: m.UID, CreationTimestamp: m.CreationTimestamp}
}

// Namespace returns the KindNamespace for the tables: its labels, and the annotations about its pods' addresses.
func Namespace(n *corev1.Namespace) *model.Object {
	m := kept(n.ObjectMeta)
	m.Labels, m.Annotations = n.Labels, conversion.AddressAnnotations(n.Annotations)
	return live(model.ResourceKey(model.KindNamespace, n.Name), n.ResourceVersion, &model.Namespace{ObjectMeta: m})
}

// ServiceAccount returns the KindServiceAccount for the tables: its labels.
func ServiceAccount(a *corev1.ServiceAccount) *model.Object {
	m := kept(a.ObjectMeta)
	m.Labels = a.Labels
	key := model.Key{Kind: model.KindServiceAccount, Namespace: a.Namespace, Name: a.Name}
	return live(key, a.ResourceVersion, &model.ServiceAccount{ObjectMeta: m})
}

// Profile returns the profile of a namespace or a service account, nil for any other object. Its revision is that of o,
// on the clock of the kind of o.
func Profile(o *model.Object) *model.Object {
	p := conversion.Profile(o)
	if p == nil {
		return nil
	}
	// Calico joins the revisions of both kinds, with the other one left empty.
	p.ResourceVersion = o.Metadata().GetResourceVersion() + "/"
	if o.Key.Kind == model.KindServiceAccount {
		p.ResourceVersion = "/" + o.Metadata().GetResourceVersion()
	}
	return &model.Object{Key: model.ResourceKey(model.KindProfile, p.Name), Revision: o.Revision, Value: p, Err: o.Err}
}

// KubernetesPolicy returns the KindKubernetesNetworkPolicy for the tables.
func KubernetesPolicy(p *networkingv1.NetworkPolicy) *model.Object {
	key := model.Key{Kind: model.KindKubernetesNetworkPolicy, Namespace: p.Namespace, Name: p.Name}
	return live(key, p.ResourceVersion, &networkingv1.NetworkPolicy{ObjectMeta: kept(p.ObjectMeta), Spec: p.Spec})
}

// ClusterPolicy parses a KindClusterNetworkPolicy, which is a custom resource of Kubernetes. The object has Err set if
// its content does not fit its type. The error is as of Decode.
func ClusterPolicy(raw []byte) (*model.Object, error) {
	p := new(model.ClusterNetworkPolicy)
	return foreign(model.KindClusterNetworkPolicy, raw, p, func() {
		p.TypeMeta, p.ObjectMeta = metav1.TypeMeta{}, kept(p.ObjectMeta)
	})
}

// Migration parses a KindMigration, with Err and the error as of ClusterPolicy.
func Migration(raw []byte) (*model.Object, error) {
	m := new(model.VirtualMachineInstanceMigration)
	return foreign(model.KindMigration, raw, m, func() {
		m.TypeMeta, m.ObjectMeta = metav1.TypeMeta{}, kept(m.ObjectMeta)
	})
}

// foreign parses a custom resource of another project into a value of which trim keeps a part.
func foreign(kind model.Kind, raw []byte, value metav1.Object, trim func()) (*model.Object, error) {
	var head struct {
		Metadata metadata `json:"metadata"`
	}
	if err := json.Unmarshal(raw, &head); err != nil {
		return nil, fmt.Errorf("%s: %w", kind, err)
	}
	if head.Metadata.Name == "" {
		return nil, fmt.Errorf("%s: metadata.name is missing", kind)
	}
	key := model.Key{Kind: kind, Namespace: head.Metadata.Namespace, Name: head.Metadata.Name}
	if _, err := revisionOf(head.Metadata.ResourceVersion); err != nil {
		return nil, fmt.Errorf("%s: %w", key, err)
	}
	err := json.Unmarshal(raw, value)
	trim()
	o := live(key, head.Metadata.ResourceVersion, value)
	if err != nil {
		o.Value, o.Err = nil, fmt.Errorf("%s: %w", key, err)
	}
	return o, nil
}

// Service returns the KindService for the tables.
func Service(s *corev1.Service) *model.Object {
	v := &model.Service{ObjectMeta: kept(s.ObjectMeta), Spec: model.ServiceSpec{
		Type: model.ServiceType(s.Spec.Type), ClusterIP: s.Spec.ClusterIP, ClusterIPs: s.Spec.ClusterIPs,
		ExternalIPs: s.Spec.ExternalIPs, LoadBalancerIP: s.Spec.LoadBalancerIP,
		ExternalTrafficPolicy: string(s.Spec.ExternalTrafficPolicy),
	}}
	for name, text := range s.Annotations {
		if strings.HasPrefix(name, calico) {
			v.Annotations = union(v.Annotations, map[string]string{name: text})
		}
	}
	for _, f := range s.Spec.IPFamilies {
		v.Spec.IPFamilies = append(v.Spec.IPFamilies, string(f))
	}
	for _, p := range s.Spec.Ports {
		v.Spec.Ports = append(v.Spec.Ports, model.ServicePort{Name: p.Name, Protocol: string(p.Protocol), Port: p.Port})
	}
	for _, i := range s.Status.LoadBalancer.Ingress {
		v.Status.LoadBalancer.Ingress = append(v.Status.LoadBalancer.Ingress, model.LoadBalancerIngress{IP: i.IP})
	}
	return live(model.Key{Kind: model.KindService, Namespace: s.Namespace, Name: s.Name}, s.ResourceVersion, v)
}

// EndpointSlice returns the KindEndpointSlice for the tables.
func EndpointSlice(s *discoveryv1.EndpointSlice) *model.Object {
	v := &model.EndpointSlice{ObjectMeta: kept(s.ObjectMeta), AddressType: string(s.AddressType)}
	if service, ok := s.Labels[model.LabelServiceName]; ok {
		v.Labels = map[string]string{model.LabelServiceName: service}
	}
	v.Endpoints = make([]model.Endpoint, len(s.Endpoints))
	for i, e := range s.Endpoints {
		v.Endpoints[i] = model.Endpoint{
			Addresses: e.Addresses, NodeName: e.NodeName,
			Conditions: model.EndpointConditions{Ready: e.Conditions.Ready, Terminating: e.Conditions.Terminating},
		}
	}
	for _, p := range s.Ports {
		v.Ports = append(v.Ports, model.SlicePort{Name: p.Name, Protocol: (*string)(p.Protocol), Port: p.Port})
	}
	return live(model.Key{Kind: model.KindEndpointSlice, Namespace: s.Namespace, Name: s.Name}, s.ResourceVersion, v)
}
