package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/manxnet/manx/datastore/conversion"
	"github.com/manxnet/manx/integration/kubernetes/twonodes"
	"github.com/manxnet/manx/integration/lab"
)

// nobodyToB denies all connections to pod b.
const nobodyToB = `
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: nobody-to-b, namespace: default}
spec: {podSelector: {matchLabels: {app: b}}, policyTypes: [Ingress]}
`

// TestWhoSaysThatThereIsANetwork: of two nodes whose Nodes say that there is no network, one enforces policy alone. It
// leaves the condition, and the addresses of the Node, to the program that makes the network. The other node, with
// VXLAN and without BGP, says that there is one.
func TestWhoSaysThatThereIsANetwork(t *testing.T) {
	w := newWorld(t)
	for _, n := range w.Nodes {
		unavailable := map[string]any{"type": "NetworkUnavailable", "status": "True", "reason": "NoRouteCreated",
			"message": "the cloud has made no route"}
		w.server.Request(t, http.MethodPatch, "/api/v1/nodes/"+n.Name+"/status",
			map[string]any{"status": map[string]any{"conditions": []any{unavailable}}})
	}
	before := w.node(t, w.n1)
	must(t, w.n1.StartManxd("--datastore=kubernetes", "--kubeconfig="+w.kube[0], "--networking=none",
		"--interface-prefix=eni"))
	must(t, w.n1.Ready(patience))
	_, err := w.n1.Run("sh", "-c", "echo 1 >/proc/sys/net/ipv4/ip_forward")
	must(t, err)
	a, b := w.addForeignPod(t, w.n1, "a", "10.10.0.1"), w.addForeignPod(t, w.n1, "b", "10.10.0.2")
	b.echo(t, 7)
	until(t, "a reaches b", func() error { return a.dial(b, 7) })
	for _, policy := range twonodes.Documents(t, nobodyToB) {
		twonodes.Create(t, w.server, policy)
	}
	until(t, "policy holds", func() error {
		if a.dial(b, 7) == nil {
			return errors.New("a reaches b, which a policy denies")
		}
		return nil
	})

	must(t, w.n2.StartManxd(append(w.arguments(1), "--networking=vxlan", "--ipv4pool-vxlan=Always")...))
	must(t, w.n2.Ready(patience))
	until(t, "n2 says that there is a network", func() error {
		if c := condition(w.node(t, w.n2)); c.Status != corev1.ConditionFalse || c.Reason != "CalicoIsUp" {
			return fmt.Errorf("NetworkUnavailable is %s, %s", c.Status, c.Reason)
		}
		return nil
	})
	after := w.node(t, w.n1)
	if c := condition(after); c != condition(before) {
		t.Errorf("policy only: NetworkUnavailable is %v, and was %v", c, condition(before))
	}
	const address = "projectcalico.org/IPv4Address"
	if after.Annotations[address] != "" || w.node(t, w.n2).Annotations[address] == "" {
		t.Errorf("addresses: %v with policy only, %v with VXLAN", after.Annotations, w.node(t, w.n2).Annotations)
	}
	if links, err := w.n1.Run("ip", "-o", "link"); err != nil || strings.Contains(links, "vxlan") {
		t.Errorf("policy only: a device of VXLAN (%v):\n%s", err, links)
	}
}

// node reads the Node of a host.
func (w *world) node(t *testing.T, n *lab.Node) *corev1.Node {
	t.Helper()
	var o corev1.Node
	must(t, json.Unmarshal(w.server.Request(t, http.MethodGet, "/api/v1/nodes/"+n.Name, nil), &o))
	return &o
}

// condition is the condition NetworkUnavailable of a Node.
func condition(n *corev1.Node) corev1.NodeCondition {
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeNetworkUnavailable {
			return c
		}
	}
	return corev1.NodeCondition{}
}

// addForeignPod makes a pod that the plugin of another network has connected: Calico knows its address by the status,
// which the kubelet writes.
func (w *world) addForeignPod(t *testing.T, n *lab.Node, name, ip string) *pod {
	t.Helper()
	p := &pod{name: name, ns: w.Spec.Name + "-" + name, iface: conversion.InterfaceName("eni", "default", name),
		ip: netip.MustParseAddr(ip)}
	w.createPod(t, n, "default", name)
	w.wire(t, n, p)
	run(t, "ip", "-n", n.Namespace, "route", "add", ip, "dev", p.iface)
	w.hasAddress(t, "default", p)
	return p
}
