package form

import (
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/manxnet/manx/datastore/conversion"
	"github.com/manxnet/manx/datastore/model"
)

// Config is what the form of some kinds depends on.
type Config struct {
	// UsePodCIDR derives tunnel addresses from the range that Kubernetes gave each node for its pods.
	UsePodCIDR bool
	// InterfacePrefix begins the names of pods' interfaces on the host: "cali" unless something else is configured.
	InterfacePrefix string
}

// Node gives Calico's Node of a Kubernetes Node. Annotations that cannot be used are left out; the notices tell of them.
func Node(n *corev1.Node, c Config) (*model.Object, []conversion.Notice) { return nil, nil }

// NodePatch gives the merge patch of nodes/status that stores a Calico Node (KindNode) in the annotations of the Kubernetes
// Node. It has o.Revision as resourceVersion unless it is 0, so that it fails if the Node was changed.
func NodePatch(o *model.Object) ([]byte, error) { return nil, errUnfinished }

// Endpoint gives the WorkloadEndpoint of a pod: nil for one that has none. A finished pod's endpoint has no addresses.
func Endpoint(p *corev1.Pod, c Config) (*model.Object, []conversion.Notice) { return nil, nil }

// EndpointPatch gives the merge patch of pods/status that stores the addresses of a WorkloadEndpoint. It fails if the pod
// has another UID than o, unless o has none.
func EndpointPatch(o *model.Object) ([]byte, error) { return nil, errUnfinished }

// ReleasePatch gives the merge patch of pods/status that says that a pod has given back its addresses. UID and revision are
// preconditions, "" and 0 are none.
func ReleasePatch(uid types.UID, revision int64) ([]byte, error) { return nil, errUnfinished }

// Namespace gives the KindNamespace that tables keep: labels and Calico's annotations.
func Namespace(n *corev1.Namespace) *model.Object { return nil }

// ServiceAccount gives the KindServiceAccount that tables keep: labels.
func ServiceAccount(a *corev1.ServiceAccount) *model.Object { return nil }

// Profile gives the KindProfile of an object of KindNamespace or KindServiceAccount, for Get and List of profiles.
func Profile(o *model.Object) *model.Object { return nil }

// KubernetesPolicy gives the KindKubernetesNetworkPolicy that tables keep.
func KubernetesPolicy(p *networkingv1.NetworkPolicy) *model.Object { return nil }

// ClusterPolicy reads a KindClusterNetworkPolicy, which is a custom resource of Kubernetes. Object and error are as of Decode.
func ClusterPolicy(raw []byte) (*model.Object, error) { return nil, errUnfinished }

// Service gives the KindService that tables keep.
func Service(s *corev1.Service) *model.Object { return nil }

// EndpointSlice gives the KindEndpointSlice that tables keep.
func EndpointSlice(s *discoveryv1.EndpointSlice) *model.Object { return nil }
