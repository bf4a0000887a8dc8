package engine

import (
	"crypto/sha1" //nolint:gosec // a name, not a secret
	"encoding/hex"
	"fmt"
	"net/netip"
	"slices"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/manxnet/manx/cni"
	"github.com/manxnet/manx/datastore/model"
)

// workload identifies one interface of one container.
type workload struct {
	Network     string
	Node        string
	ContainerID string
	IfName      string
	Namespace   string
	Pod         string // empty outside Kubernetes
}

func newWorkload(network, node, containerID, ifName string, a cni.Args) workload {
	w := workload{Network: network, Node: node, ContainerID: containerID, IfName: ifName, Namespace: "default"}
	if a.K8S_POD_NAME != "" && a.K8S_POD_NAMESPACE != "" {
		w.Pod, w.Namespace = string(a.K8S_POD_NAME), string(a.K8S_POD_NAMESPACE)
	}
	return w
}

// podID returns NAMESPACE/NAME of the pod.
func (w workload) podID() string { return w.Namespace + "/" + w.Pod }

func (w workload) orchestrator() string {
	if w.Pod != "" {
		return "k8s"
	}
	return "cni"
}

// handle returns the IPAM handle of the container: all its addresses in one network are released together.
func (w workload) handle() string { return w.Network + "." + w.ContainerID }

// oldHandle returns the name of the handle in very old versions. It is for release only.
func (w workload) oldHandle() string {
	if w.Pod != "" {
		return w.Namespace + "." + w.Pod
	}
	return w.ContainerID
}

// key returns the key of the endpoint.
func (w workload) key() (model.Key, error) {
	name, err := model.WorkloadEndpointName(model.WorkloadEndpointIDs{
		Node: w.Node, Orchestrator: w.orchestrator(), Pod: w.Pod, ContainerID: w.ContainerID, Endpoint: w.IfName,
	})
	if err != nil {
		return model.Key{}, fmt.Errorf("name of the WorkloadEndpoint: %w", err)
	}
	return model.Key{Kind: model.KindWorkloadEndpoint, Namespace: w.Namespace, Name: name}, nil
}

// hostIf returns the name of the host interface. A pod's name is stable over restarts; other containers have only their
// ID.
func (w workload) hostIf(prefix string) string {
	if w.Pod != "" {
		sum := sha1.Sum([]byte(w.Namespace + "." + w.Pod)) //nolint:gosec
		return prefix + hex.EncodeToString(sum[:])[:11]
	}
	return prefix + w.ContainerID[:min(11, len(w.ContainerID))]
}

// attributes returns the attributes of an allocation. Without pod and namespace an allocation would count as valid for
// ever.
func (w workload) attributes(now string) map[string]string {
	a := map[string]string{"node": w.Node, "timestamp": now}
	if w.Pod != "" {
		a["pod"], a["namespace"] = w.Pod, w.Namespace
	}
	return a
}

// endpoint fills in a WorkloadEndpoint. old is the stored one, nil if there is none; it keeps fields of other writers.
// Without Kubernetes policy the endpoint has the network's profile.
func (w workload) endpoint(old *model.WorkloadEndpoint, a *cni.Attachment, kubernetes bool) *model.WorkloadEndpoint {
	e := &model.WorkloadEndpoint{}
	if old != nil {
		*e = *old
	}
	e.TypeMeta = metav1.TypeMeta{Kind: string(model.KindWorkloadEndpoint), APIVersion: model.APIVersion}
	key, _ := w.key()
	e.Namespace, e.Name = key.Namespace, key.Name
	e.Labels = withLabels(e.Labels, map[string]string{model.LabelNamespace: w.Namespace,
		model.LabelOrchestrator: w.orchestrator()})
	s := &e.Spec
	s.Orchestrator, s.Node, s.ContainerID, s.Pod, s.Endpoint = w.orchestrator(), w.Node, w.ContainerID, w.Pod, w.IfName
	s.InterfaceName, s.MAC = a.HostIf, a.MAC
	s.IPNetworks, s.Claim = nil, nil
	for _, ip := range a.Addresses {
		s.IPNetworks = append(s.IPNetworks, netip.PrefixFrom(ip, ip.BitLen()).String())
	}
	if !kubernetes && !slices.Contains(s.Profiles, w.Network) {
		s.Profiles = append(slices.Clone(s.Profiles), w.Network)
	}
	return e
}

func withLabels(have, want map[string]string) map[string]string {
	all := make(map[string]string, len(have)+len(want))
	for k, v := range have {
		all[k] = v
	}
	for k, v := range want {
		all[k] = v
	}
	return all
}

// networkProfile returns the profile of a network without policy. With Kubernetes, a pod is reachable from everywhere;
// other containers are reachable from their network, and may connect to everything.
func (w workload) networkProfile() *model.Object {
	network := w.Network
	from := v3.EntityRule{Selector: "has(" + network + ")"}
	if w.Pod != "" {
		from = v3.EntityRule{}
	}
	p := &v3.Profile{}
	p.TypeMeta = metav1.TypeMeta{Kind: string(model.KindProfile), APIVersion: model.APIVersion}
	p.Name = network
	p.Spec = v3.ProfileSpec{
		Ingress:       []v3.Rule{{Action: v3.Allow, Source: from}},
		Egress:        []v3.Rule{{Action: v3.Allow}},
		LabelsToApply: map[string]string{network: ""},
	}
	return model.NewObject(model.ResourceKey(model.KindProfile, network), p)
}

// endpointAddresses parses the addresses of a stored endpoint and skips malformed ones.
func endpointAddresses(e *model.WorkloadEndpoint) []netip.Addr {
	var addrs []netip.Addr
	for _, p := range model.Networks(e.Spec.IPNetworks) {
		addrs = append(addrs, p.Addr())
	}
	return addrs
}
