package conversion

import (
	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/manxnet/manx/datastore/model"
)

// nameLabel is the label with the name of an endpoint's namespace or service account, after the prefix of either.
const nameLabel = "projectcalico.org/name"

// NamespaceProfile returns the name of a namespace's profile.
func NamespaceProfile(namespace string) string { return "kns." + namespace }

// ServiceAccountProfile returns the name of a service account's profile.
func ServiceAccountProfile(namespace, name string) string { return "ksa." + namespace + "." + name }

// Profile returns the profile of an object of KindNamespace or KindServiceAccount, nil for any other kind and for nil.
func Profile(o *model.Object) *v3.Profile {
	if o == nil {
		return nil
	}
	switch v := o.Value.(type) {
	case *model.Namespace:
		return Namespace(v)
	case *model.ServiceAccount:
		return ServiceAccount(v)
	}
	return nil
}

// Namespace returns the profile of a namespace: its labels, and rules that allow all traffic on which no policy
// decides.
func Namespace(in *model.Namespace) *v3.Profile {
	p := profile(NamespaceProfile(in.Name), in.ObjectMeta, model.NamespaceLabelPrefix)
	p.Annotations = AddressAnnotations(in.Annotations)
	p.Spec.Ingress = []v3.Rule{{Action: v3.Allow}}
	p.Spec.Egress = []v3.Rule{{Action: v3.Allow}}
	return p
}

// ServiceAccount returns the profile of a service account: its labels, and no rules.
func ServiceAccount(in *model.ServiceAccount) *v3.Profile {
	return profile(ServiceAccountProfile(in.Namespace, in.Name), in.ObjectMeta, model.ServiceAccountLabelPrefix)
}

func profile(name string, of metav1.ObjectMeta, prefix string) *v3.Profile {
	labels := make(map[string]string, len(of.Labels)+1)
	for k, v := range of.Labels {
		labels[prefix+k] = v
	}
	labels[prefix+nameLabel] = of.Name
	return &v3.Profile{
		TypeMeta:   metav1.TypeMeta{Kind: string(model.KindProfile), APIVersion: model.APIVersion},
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: DerivedUID(of.UID), CreationTimestamp: of.CreationTimestamp},
		Spec:       v3.ProfileSpec{LabelsToApply: labels},
	}
}
