package ipamgc

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/manxnet/manx/controllers/nodename"
	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/conversion"
	"github.com/manxnet/manx/datastore/model"
)

// Pods reads the possible users of an address from the Kubernetes API, not from a cache.
type Pods interface {
	// Pod reads a pod. The error Is datastore.ErrNotFound if there is no such pod.
	Pod(ctx context.Context, namespace, name string) (*model.Pod, error)
	// VirtualMachine reports whether KubeVirt has a VirtualMachine of that name, or a VirtualMachineInstance without
	// one. It returns true if the API does not serve KubeVirt's resources: then the deletion of the machine cannot be
	// determined.
	VirtualMachine(ctx context.Context, namespace, name string) (bool, error)
}

// The tables are only a hint, since they may lag behind. Each release is verified with a read from the source first. A
// missing or unreadable answer keeps the address.

// liveNode reads the facts about a node.
func (c *Collector) liveNode(ctx context.Context, name string) (nodeFacts, error) {
	o, err := c.Store.Get(ctx, model.ResourceKey(model.KindNode, name))
	if errors.Is(err, datastore.ErrNotFound) {
		return nodeFacts{}, nil
	}
	if err != nil {
		return nodeFacts{}, err
	}
	n, ok := o.Value.(*model.Node)
	if !ok || o.Err != nil {
		return nodeFacts{}, fmt.Errorf("node %s cannot be read: %w", name, o.Err)
	}
	ref := nodename.Of(n)
	if ref == "" {
		return nodeFacts{foreign: true}, nil
	}
	_, err = c.Source.Get(ctx, model.ResourceKey(model.KindNode, ref))
	if err != nil && !errors.Is(err, datastore.ErrNotFound) {
		return nodeFacts{}, err
	}
	return nodeFacts{kubernetes: ref, exists: err == nil}, nil
}

// verify returns the reason for which a leak may be released; inUse is set if it may not be released now.
func (c *Collector) verify(ctx context.Context, a *allocation) (reason Reason, inUse bool, err error) {
	n, err := c.liveNode(ctx, a.node())
	if err != nil || n.foreign {
		return "", true, err
	}
	if a.tunnel() {
		return nodeGone, n.exists, nil
	}
	namespace, name, _ := a.pod()
	pod, err := c.Pods.Pod(ctx, namespace, name)
	if errors.Is(err, datastore.ErrNotFound) {
		return c.verifyVM(ctx, a, podGone)
	}
	if err != nil {
		return "", true, err
	}
	if reason, inUse = evaluatePod(pod, n.kubernetes, a.Address); inUse {
		return reason, inUse, nil
	}
	if reason != podMoved && !ended(pod) {
		if inUse, err = c.endpointHas(ctx, a, pod); inUse || err != nil {
			return "", true, err
		}
	}
	return c.verifyVM(ctx, a, reason)
}

// verifyVM does the same for an address that no pod uses, with the given reason. A virtual machine keeps its address
// over the change of its pods.
func (c *Collector) verifyVM(ctx context.Context, a *allocation, why Reason) (reason Reason, inUse bool, err error) {
	if a.vm() == "" {
		return why, false, nil
	}
	namespace, _, _ := a.pod()
	exists, err := c.Pods.VirtualMachine(ctx, namespace, a.vm())
	return vmGone, exists || err != nil, err
}

// evaluatePod applies Calico's rules to a pod: an address that the pod does not have is unused if the pod runs and has
// an address.
func evaluatePod(p *model.Pod, kubernetesNode string, address netip.Addr) (reason Reason, inUse bool) {
	switch {
	case p.Spec.NodeName != "" && kubernetesNode != "" && p.Spec.NodeName != kubernetesNode:
		return podMoved, false
	case p.Status.PodIP == "" || len(p.Status.PodIPs) == 0:
		return "", true // no address is visible yet
	}
	w, _, err := conversion.Pod(p, "cali")
	if err != nil {
		return "", true
	}
	same := func(text string) bool { return is(text, address) }
	if w != nil && slices.ContainsFunc(w.Confirmed().Spec.IPNetworks, same) {
		return "", true
	}
	if !ended(p) && slices.ContainsFunc(pluginAddresses(p), same) {
		return "", true // the plugin is ahead of the kubelet
	}
	return addressUnused, false
}

// ended reports whether a pod will never run again.
func ended(p *model.Pod) bool { return p.Status.Phase == "Succeeded" || p.Status.Phase == "Failed" }

// pluginAddresses returns the addresses that the CNI plugin annotates on the pod, before its status has them.
func pluginAddresses(p *model.Pod) []string {
	return append(strings.Split(p.Annotations["cni.projectcalico.org/podIPs"], ","),
		p.Annotations["cni.projectcalico.org/podIP"])
}

// endpointHas reports whether the pod's endpoint in Calico's datastore has the address. An endpoint derived from the
// pod has the pod's addresses.
func (c *Collector) endpointHas(ctx context.Context, a *allocation, pod *model.Pod) (bool, error) {
	name, err := model.WorkloadEndpointName(model.WorkloadEndpointIDs{Node: a.node(), Orchestrator: "k8s",
		Pod:      pod.Name,
		Endpoint: "eth0"})
	if err != nil {
		return true, nil //nolint:nilerr // no endpoint could have such a name: leave it alone
	}
	o, err := c.Store.Get(ctx, model.Key{Kind: model.KindWorkloadEndpoint, Namespace: pod.Namespace, Name: name})
	if errors.Is(err, datastore.ErrNotFound) {
		return false, nil
	}
	if err != nil {
		return true, err
	}
	w := o.Workload()
	if w == nil {
		return true, o.Err
	}
	return w.Confirmed().Has(a.Address), nil
}

// is compares an address with a text: the address or a CIDR of it only.
func is(text string, address netip.Addr) bool {
	text, _, _ = strings.Cut(strings.TrimSpace(text), "/")
	a, err := netip.ParseAddr(text)
	return err == nil && a.Unmap() == address
}
