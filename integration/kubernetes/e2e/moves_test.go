package e2e

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	"go.uber.org/zap"

	"github.com/manxnet/manx/datastore/conversion"
	"github.com/manxnet/manx/datastore/kubernetes/form"
	"github.com/manxnet/manx/integration/lab"
	"github.com/manxnet/manx/integration/packet"
	"github.com/manxnet/manx/ipam"
)

const migrations = "/apis/kubevirt.io/v1/namespaces/default/virtualmachineinstancemigrations"

// TestVirtualMachineMoves: KubeVirt moves a virtual machine from one node to the other. Pods of both nodes reach it
// where it runs, at each time.
func TestVirtualMachineMoves(t *testing.T) {
	w := newWorld(t)
	w.server.Define(t, form.Resource{Group: "kubevirt.io", Version: "v1", Plural: "virtualmachineinstancemigrations",
		Kind: "VirtualMachineInstanceMigration", Namespaced: true})
	w.settle(t)
	w.server.Request(t, http.MethodPatch, crds+"felixconfigurations/default",
		map[string]any{"spec": map[string]any{"liveMigrationRouteConvergenceTime": "2s"}})
	old := w.addPod(t, w.n1, "virt-launcher-db-1")
	old.echo(t, 9)
	prefix := old.ip.String()
	until(t, "b reaches the machine", func() error { return w.b.dial(old, 9) })

	uid := w.move(t, "Scheduling", map[string]any{})
	fresh := w.addMachine(t, w.n2, "virt-launcher-db-2", old.ip, uid)
	fresh.echo(t, 10)
	until(t, "the new pod waits", func() error {
		out, err := w.n2.Manxctl("routes", "--phase=blocked")
		if err != nil || !strings.Contains(out, "a virtual machine that moves here, and does not run here yet") {
			return fmt.Errorf("%s %v", out, err)
		}
		return nil
	})
	for _, p := range []*pod{w.a, w.b} {
		if err := p.dial(old, 9); err != nil {
			t.Errorf("%s does not reach the machine while it is to move: %v", p.name, err)
		}
	}
	w.move(t, "Running", map[string]any{"sourcePod": old.name, "targetPod": fresh.name})
	if line, err := route(w.n2, prefix); err == nil {
		t.Errorf("n2 has a route already: %s", line)
	}

	const handle = "k8s-pod-network.vmi.default.db"
	allocator := ipam.New(w.store, zap.NewNop(), time.Now)
	_, err := allocator.AutoAssign(t.Context(), ipam.Request{Host: w.n1.Name, Num4: 1, Handle: handle,
		Use: v3.IPPoolAllowedUseWorkload, Attrs: map[string]string{"namespace": "default", "pod": old.name}})
	must(t, err)
	_, err = allocator.SetNextOwner(t.Context(), handle, map[string]string{"namespace": "default", "pod": fresh.name})
	must(t, err)

	packet.Open(t, fresh.ns, "eth0").Send(t,
		packet.ARP(t, net.HardwareAddr{0x52, 0x54, 0, 0, 0, 1}, old.ip, old.ip))
	until(t, "b reaches the machine at its new place", func() error { return w.b.dial(fresh, 10) })
	until(t, "a, too, by the other node's route", func() error { return w.a.dial(fresh, 10) })
	if line, err := route(w.n2, prefix); err != nil || !strings.Contains(line, "dev "+fresh.iface+" ") ||
		!strings.Contains(line, "metric 512") {
		t.Errorf("n2: %s %v", line, err)
	}
	if line, err := route(w.n1, prefix); err != nil || !strings.Contains(line, "metric 512") {
		t.Errorf("n1: %s %v", line, err)
	}

	until(t, "IPAM knows it", func() error {
		has, err := allocator.AllocationsOf(t.Context(), handle)
		if err != nil || len(has) != 1 || has[0].Attrs["pod"] != fresh.name {
			return fmt.Errorf("%+v %w", has, err)
		}
		return nil
	})

	w.move(t, "Succeeded", map[string]any{"sourcePod": old.name, "targetPod": fresh.name})
	w.server.Request(t, http.MethodDelete, pods(old.name), nil)
	until(t, "the route is an ordinary one", func() error {
		line, err := route(w.n2, prefix)
		if err != nil || !strings.Contains(line, "metric 1024") {
			return fmt.Errorf("%s %w", line, err)
		}
		return nil
	})
	until(t, "a reaches the machine afterwards", func() error { return w.a.dial(fresh, 10) })
}

// move sets the phase of the migration, and returns its UID.
func (w *world) move(t *testing.T, phase string, state map[string]any) (uid string) {
	t.Helper()
	status := map[string]any{"status": map[string]any{"phase": phase, "migrationState": state}}
	if phase != "Scheduling" {
		w.server.Request(t, http.MethodPatch, migrations+"/m", status)
		return ""
	}
	status["kind"], status["apiVersion"] = "VirtualMachineInstanceMigration", "kubevirt.io/v1"
	status["metadata"], status["spec"] = map[string]any{"name": "m"}, map[string]any{"vmiName": "db"}
	var o struct{ Metadata struct{ UID string } }
	must(t, json.Unmarshal(w.server.Request(t, http.MethodPost, migrations, status), &o))
	return o.Metadata.UID
}

// addMachine makes the pod to which the migration with a UID moves a machine with an address.
func (w *world) addMachine(t *testing.T, n *lab.Node, name string, ip netip.Addr, uid string) *pod {
	t.Helper()
	p := &pod{name: name, ns: w.Spec.Name + "-" + name, ip: ip,
		iface: conversion.InterfaceName("cali", "default", name)}
	w.server.Request(t, http.MethodPost, pods(), map[string]any{"kind": "Pod", "apiVersion": "v1",
		"metadata": map[string]any{"name": name, "labels": map[string]string{"vmi.kubevirt.io/id": "db",
			"kubevirt.io/migrationJobUID": uid}},
		"spec": map[string]any{"nodeName": n.Name, "terminationGracePeriodSeconds": 0,
			"containers": []any{map[string]any{"name": "c", "image": "i"}}}})
	w.connect(t, n, p, "default")
	return p
}
