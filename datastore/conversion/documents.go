package conversion

import (
	"cmp"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/datastore/validation"
)

const (
	// interfacePrefix is Calico's default; files do not contain a cluster's.
	interfacePrefix = "cali"
	// metadataName is the label that Kubernetes' API server sets on every namespace.
	metadataName     = "kubernetes.io/metadata.name"
	defaultNamespace = "default"
)

// FromDocuments converts documents of Calico's and Kubernetes' kinds to the content of Calico's datastore for that
// cluster: profiles of Namespaces and ServiceAccounts, endpoints of Pods, and policies (NetworkPolicies as
// "knp.default.NAME", the name that calico-kube-controllers use; ClusterNetworkPolicies as "TIER.NAME"). Calico's
// objects, Services and EndpointSlices stay unchanged. FromDocuments sets the API server's defaults. A pod's namespace
// without a document counts as one without labels. The notices report that and everything left out. The given objects
// are not changed.
func FromDocuments(objects []*model.Object) ([]*model.Object, []Notice) {
	var c conversion
	for _, o := range objects {
		info, ok := model.Lookup(o.Key.Kind)
		if !ok || !info.Kubernetes || o.Value == nil || o.Err != nil {
			c.objects = append(c.objects, o)
			continue
		}
		o = o.Clone()
		if m := o.Metadata(); m != nil && info.Namespaced && m.GetNamespace() == "" {
			m.SetNamespace(defaultNamespace)
			o.Key.Namespace = defaultNamespace
		}
		validation.Default(info.Kind, o.Value)
		c.convert(o)
	}
	c.completeProfiles()
	return c.objects, c.notices
}

// conversion is the state of one conversion.
type conversion struct {
	objects   []*model.Object
	endpoints []*model.WorkloadEndpoint // converted from pods
	notices   []Notice
}

func (c *conversion) convert(o *model.Object) {
	switch v := o.Value.(type) {
	case *model.Namespace:
		if v.Labels == nil {
			v.Labels = map[string]string{}
		}
		v.Labels[metadataName] = v.Name
		c.add(o, model.ResourceKey(model.KindProfile, NamespaceProfile(v.Name)), Namespace(v))
	case *model.ServiceAccount:
		c.add(o, model.ResourceKey(model.KindProfile, ServiceAccountProfile(v.Namespace, v.Name)), ServiceAccount(v))
	case *model.Pod:
		c.pod(o, v)
	case *networkingv1.NetworkPolicy:
		p, notices, err := NetworkPolicy(v)
		c.note(o.Key, notices, err, "the policy is left out")
		if p != nil {
			p.Name = model.KubernetesPolicyPrefix + p.Name
			c.add(o, model.Key{Kind: model.KindNetworkPolicy, Namespace: p.Namespace, Name: p.Name}, p)
		}
	case *model.ClusterNetworkPolicy:
		p, notices, err := clusterNetworkPolicy(v)
		c.note(o.Key, notices, err, "the policy is left out")
		if p != nil {
			p.Name = p.Spec.Tier + "." + p.Name
			c.add(o, model.ResourceKey(model.KindGlobalNetworkPolicy, p.Name), p)
		}
	default:
		c.objects = append(c.objects, o)
	}
}

func (c *conversion) pod(o *model.Object, in *model.Pod) {
	if in.UID == "" { // else an API server has stored the pod, with its defaults
		in.Spec.ServiceAccountName = cmp.Or(in.Spec.ServiceAccountName, "default")
	}
	w, notices, err := Pod(in, interfacePrefix)
	if w != nil {
		w = w.Confirmed() // whoever gives the documents decides about all of them
	}
	const noEndpoint = "the pod has no endpoint"
	c.note(o.Key, notices, err, noEndpoint)
	switch {
	case w != nil && len(w.Spec.IPNetworks) > 0:
		c.add(o, model.Key{Kind: model.KindWorkloadEndpoint, Namespace: w.Namespace, Name: w.Name}, w)
		c.endpoints = append(c.endpoints, w)
	case err != nil, in.Spec.HostNetwork, finished(in):
	case w == nil:
		c.note(o.Key, nil, wrong("spec.nodeName", "", "is not set: the pod runs nowhere yet"), noEndpoint)
	default:
		c.note(o.Key, nil, wrong("status.podIPs", "", "is empty: the pod has no address yet"), noEndpoint)
	}
}

// completeProfiles adds the missing profiles of pods. A pod without its namespace's profile would be cut off.
func (c *conversion) completeProfiles() {
	have := model.NewSet(c.objects...)
	missing := func(p *v3.Profile) bool {
		o := model.NewObject(model.ResourceKey(model.KindProfile, p.Name), p)
		if have[o.Key] != nil {
			return false
		}
		have[o.Key] = o
		c.objects = append(c.objects, o)
		return true
	}
	for _, w := range c.endpoints {
		labels := map[string]string{metadataName: w.Namespace}
		if missing(Namespace(&model.Namespace{ObjectMeta: metav1.ObjectMeta{Name: w.Namespace, Labels: labels}})) {
			c.note(model.ResourceKey(model.KindNamespace, w.Namespace), nil,
				wrong("metadata.labels", "", "the namespace has pods, but is not among the documents"),
				"it counts as one without labels")
		}
		account := metav1.ObjectMeta{Namespace: w.Namespace, Name: w.Spec.ServiceAccountName}
		if account.Name == "" {
			continue
		}
		missing(ServiceAccount(&model.ServiceAccount{ObjectMeta: account}))
	}
}

// add stores value, the converted form of an object, in the place of that object.
func (c *conversion) add(from *model.Object, key model.Key, value any) {
	o := model.NewObject(key, value)
	o.Revision = from.Revision
	info, _ := model.Lookup(key.Kind)
	validation.Default(info.Kind, value)
	c.objects = append(c.objects, o)
}

func (c *conversion) note(key model.Key, list []Notice, err error, effect string) {
	c.notices = append(c.notices, list...)
	if err != nil {
		n := notices{key: key}
		n.add(err, effect)
		c.notices = append(c.notices, n.list...)
	}
}

// PolicyNotices lists the parts that Policy leaves out of a policy of Kubernetes' kinds; none for other objects, or for
// a policy that cannot be converted at all.
func PolicyNotices(o *model.Object) (list []Notice) {
	switch v := o.Value.(type) {
	case *networkingv1.NetworkPolicy:
		_, list, _ = NetworkPolicy(v)
	case *model.ClusterNetworkPolicy:
		_, list, _ = clusterNetworkPolicy(v)
	}
	return list
}
