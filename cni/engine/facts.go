package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"

	"github.com/containernetworking/cni/pkg/types"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/manxnet/manx/cni"
	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/conversion"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/ipam"
)

// Kubernetes reads single objects of the Kubernetes API. The errors of the first two wrap datastore.ErrNotFound.
type Kubernetes interface {
	Pod(ctx context.Context, namespace, name string) (*model.Pod, error)
	Namespace(ctx context.Context, name string) (*model.Namespace, error)
	// KubeVirt reads the metadata of an object of a resource of KubeVirt, nil if there is none. served is false if the
	// API has no such resource.
	KubeVirt(ctx context.Context, resource, namespace, name string) (o *metav1.PartialObjectMetadata, served bool,
		err error)
}

// Annotations for addresses (Calico's names). A pod's take priority over its namespace's.
const (
	annotation4Pools    = "cni.projectcalico.org/ipv4pools"
	annotation6Pools    = "cni.projectcalico.org/ipv6pools"
	annotationFamilies  = "cni.projectcalico.org/ipFamilies"
	annotationAddresses = "cni.projectcalico.org/ipAddrs"
	annotationUnmanaged = "cni.projectcalico.org/ipAddrsNoIpam"
	annotationMAC       = "cni.projectcalico.org/hwAddr"
	annotationFloating  = "cni.projectcalico.org/floatingIPs"
)

// facts are the attributes of a pod from Kubernetes that matter to CNI. The zero value is for other containers.
type facts struct {
	pod  *model.Pod // nil: the datastore is the Kubernetes API, or no pod was read
	live bool       // the datastore is the Kubernetes API: the endpoint is the pod

	pools4, pools6  []string
	families4And6   []string
	wanted          []netip.Addr // to be assigned
	unmanaged       []netip.Addr // to be used without IPAM
	mac             net.HardwareAddr
	namespaceLabels map[string]string
}

// facts reads the attributes of the pod.
func (c *call) facts(ctx context.Context, stored *model.Object) (*facts, error) {
	if c.work.Pod == "" {
		return &facts{}, nil
	}
	if c.store.Keeps(model.KindNamespace) { // the datastore is the Kubernetes API
		return c.factsOfDatastore(ctx, stored)
	}
	if !c.conf.OfKubernetes() {
		return &facts{}, nil
	}
	k, err := c.Kubernetes(c.conf)
	if err != nil {
		return nil, types.NewError(types.ErrInvalidNetworkConfig, "policy.type = \"k8s\" cannot be used",
			fmt.Sprintf("it needs labels and annotations of pod %s/%s from the Kubernetes API: %v", c.work.Namespace,
				c.work.Pod, err))
	}
	pod, err := k.Pod(ctx, c.work.Namespace, c.work.Pod)
	if errors.Is(err, datastore.ErrNotFound) {
		return nil, podGone(c.work)
	}
	if err != nil {
		return nil, err
	}
	namespace, err := k.Namespace(ctx, c.work.Namespace)
	if err != nil {
		return nil, err
	}
	f := &facts{pod: pod}
	return f, f.read(c.conf, pod.Annotations, namespace)
}

// factsOfDatastore reads the facts from the endpoint, which a Kubernetes datastore derives from the pod, and from the
// namespace.
func (c *call) factsOfDatastore(ctx context.Context, stored *model.Object) (*facts, error) {
	if stored == nil {
		var err error
		if stored, err = c.storedEndpoint(ctx); err != nil {
			return nil, err
		}
	}
	if stored == nil || stored.Metadata() == nil {
		return nil, podGone(c.work)
	}
	o, err := c.store.Get(ctx, model.Key{Kind: model.KindNamespace, Name: c.work.Namespace})
	if err != nil {
		return nil, fmt.Errorf("namespace %s: %w", c.work.Namespace, err)
	}
	namespace, ok := o.Value.(*model.Namespace)
	if !ok {
		return nil, fmt.Errorf("namespace %s: %w", c.work.Namespace, o.Err)
	}
	f := &facts{live: true}
	return f, f.read(c.conf, stored.Metadata().GetAnnotations(), namespace)
}

// read reads the annotations.
func (f *facts) read(conf *cni.Config, pod map[string]string, namespace *model.Namespace) error {
	f.namespaceLabels = namespace.Labels
	either := func(key string) string {
		if text, ok := pod[key]; ok {
			return text
		}
		return namespace.Annotations[key]
	}
	var addrs, unmanaged []string
	for key, list := range map[string]struct {
		text string
		into *[]string
	}{
		annotation4Pools: {either(annotation4Pools), &f.pools4}, annotation6Pools: {either(annotation6Pools),
			&f.pools6},
		annotationFamilies:  {either(annotationFamilies), &f.families4And6},
		annotationAddresses: {pod[annotationAddresses], &addrs}, annotationUnmanaged: {pod[annotationUnmanaged],
			&unmanaged},
	} {
		if list.text == "" {
			continue
		}
		if err := json.Unmarshal([]byte(list.text), list.into); err != nil {
			return wrongAnnotation(key, list.text, `must be a JSON list of texts, like ["10.0.0.0/24"]`)
		}
	}
	if text := pod[annotationMAC]; text != "" {
		mac, err := net.ParseMAC(text)
		if err != nil || len(mac) != 6 || mac[0]&1 != 0 {
			return wrongAnnotation(annotationMAC, text, "must be a hardware address of one interface")
		}
		f.mac = mac
	}
	return f.addresses(conf, pod, addrs, unmanaged)
}

// addresses checks the addresses that a pod requests.
func (f *facts) addresses(conf *cni.Config, pod map[string]string, addrs, unmanaged []string) (err error) {
	switch {
	case len(addrs) > 0 && len(unmanaged) > 0:
		return wrongAnnotation(annotationAddresses, pod[annotationAddresses], "cannot be used together with "+
			annotationUnmanaged)
	case (len(addrs) > 0 || len(unmanaged) > 0) && !conf.OwnIPAM():
		return wrongAnnotation(annotationAddresses, "", "needs ipam.type calico-ipam")
	case len(unmanaged) > 0 && !conf.Features.IPAddrsNoIPAM:
		return wrongAnnotation(annotationUnmanaged, pod[annotationUnmanaged],
			"is allowed only with feature_control.ip_addrs_no_ipam in the network configuration")
	case pod[annotationFloating] != "" && !conf.Features.FloatingIPs:
		return wrongAnnotation(annotationFloating, pod[annotationFloating],
			"is allowed only with feature_control.floating_ips in the network configuration")
	}
	if f.wanted, err = oneOfEach(annotationAddresses, addrs); err == nil {
		f.unmanaged, err = oneOfEach(annotationUnmanaged, unmanaged)
	}
	return err
}

func oneOfEach(key string, texts []string) (list []netip.Addr, err error) {
	for _, text := range texts {
		a, err := netip.ParseAddr(strings.TrimSpace(text))
		if err != nil || a.Zone() != "" {
			return nil, wrongAnnotation(key, text, "must be an IP address")
		}
		a = a.Unmap()
		for _, have := range list {
			if have.Is4() == a.Is4() {
				return nil, wrongAnnotation(key, text, "only one address of each family can be used")
			}
		}
		list = append(list, a)
	}
	return list, nil
}

// wrongAnnotation returns an error that requires a change of the pod or of its namespace.
func wrongAnnotation(key, value, rule string) error {
	return types.NewError(types.ErrInvalidNetworkConfig, fmt.Sprintf("annotation %s = %q", key, value), rule)
}

// families returns the families in which the container gets an address.
func (f *facts) families(conf *cni.Config) (v4, v6 bool) {
	if len(f.families4And6) == 0 {
		return conf.IPAM.Wants()
	}
	for _, family := range f.families4And6 {
		v4, v6 = v4 || strings.EqualFold(family, "IPv4"), v6 || strings.EqualFold(family, "IPv6")
	}
	return v4, v6
}

// pools returns the requested pools of a family; with none IPAM selects the pools.
func (f *facts) pools(conf *cni.Config, family ipam.Family) []string {
	own, configured := f.pools4, conf.IPAM.IPv4Pools
	if family == ipam.IPv6 {
		own, configured = f.pools6, conf.IPAM.IPv6Pools
	}
	if len(own) > 0 {
		return own
	}
	return configured
}

// endpoint returns the WorkloadEndpoint of the attachment. old is the stored one, nil if there is none. It keeps the
// fields of other writers, except those that follow from Kubernetes.
func (c *call) endpoint(old *model.WorkloadEndpoint, f *facts, a *cni.Attachment) *model.WorkloadEndpoint {
	if f.pod != nil {
		pod := *f.pod
		pod.Status.PodIPs, pod.Status.PodIP = nil, "" // floating addresses map to the addresses assigned now
		for _, ip := range a.Addresses {
			pod.Status.PodIPs = append(pod.Status.PodIPs, model.PodIP{IP: ip.String()})
		}
		pod.Spec.NodeName = c.work.Node
		if made, _, err := conversion.Pod(&pod, c.prefix()); err == nil && made != nil {
			old = merged(old, made)
		}
	}
	e := c.work.endpoint(old, a, c.conf.OfKubernetes() || f.live)
	return e
}

// merged returns the stored endpoint with all fields that follow from the pod.
func merged(old, made *model.WorkloadEndpoint) *model.WorkloadEndpoint {
	if old == nil {
		made.UID = "" // the pod's; the endpoint gets another one
		return made
	}
	e := *old
	e.Labels, e.GenerateName = made.Labels, made.GenerateName
	e.Spec = made.Spec
	e.Spec.QoSControls = old.Spec.QoSControls
	return &e
}
