package main

import (
	"strings"
	"testing"

	"github.com/manxnet/manx/datastore/model"
)

// Two pods whose names have the same 44 bits of SHA-1, and so the same host interface.
const (
	firstPod  = "K8S_POD_NAMESPACE=default;K8S_POD_NAME=pod-796582"
	secondPod = "K8S_POD_NAMESPACE=default;K8S_POD_NAME=pod-952174"
	sharedIf  = "caliddf2565c959"
)

// A pod never takes the host interface of another one, which keeps its connections.
func TestInterfaceOfAnotherPod(t *testing.T) {
	h := newHost(t)
	refused := func(p *pod, other string) {
		t.Helper()
		err := p.add()
		if err == nil || !strings.Contains(err.Error(),
			sharedIf+" of pod default/pod-952174 is in use by "+other+" on this node") {
			t.Errorf("error is %v", err)
		}
	}
	bystander := h.pod("").mustAdd()
	neighbour := bystander.addrs()[0].String()
	first, second := h.pod(firstPod).mustAdd(), h.pod(secondPod)
	refused(second, "default/pod-796582")
	h.must(first.ping(neighbour))
	h.must(second.del())
	h.must(first.ping(neighbour))
	h.must(first.check())
	// The first pod has a new container, and its ADD is repeated.
	again := h.pod(firstPod).mustAdd()
	h.must(again.add())
	h.must(again.ping(neighbour))
	refused(second, "default/pod-796582")
	h.must(first.del())
	h.must(again.del())
	// An interface that no pod has is left over.
	h.ip("-n", h.name, "link", "add", sharedIf, "type", "veth", "peer", "name", "other")
	h.must(second.mustAdd().ping(neighbour))
	h.must(second.del())
	// The pod of a calico-node that has this interface, without an address of Manx's.
	h.ip("-n", h.name, "link", "add", sharedIf, "type", "veth", "peer", "name", "other")
	e := &model.WorkloadEndpoint{}
	e.Name, e.Namespace = "node--1-k8s-older-eth0", "shop"
	e.Spec = model.WorkloadEndpointSpec{Orchestrator: "k8s", Node: "node-1", Pod: "older", Endpoint: "eth0",
		ContainerID: "c", InterfaceName: sharedIf, IPNetworks: []string{"10.66.0.9/32"}}
	key := model.Key{Kind: model.KindWorkloadEndpoint, Namespace: e.Namespace, Name: e.Name}
	h.create(key, e)
	refused(second, "shop/older")
	if links := h.ip("-n", h.name, "link"); !strings.Contains(links, "other@") {
		t.Errorf("the interface of calico-node's pod is gone: %s", links)
	}
	_, err := h.store.Delete(t.Context(), key, 0)
	h.must(err)
	h.must(second.mustAdd().del())
	h.must(bystander.del())
	if left := h.leftovers(); left != "" {
		t.Errorf("left behind:\n%s", left)
	}
}
