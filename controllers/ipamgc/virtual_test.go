package ipamgc

import (
	"errors"
	"net/netip"
	"testing"
	"time"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"

	"github.com/manxnet/manx/ipam"
)

// The rules for the address that Calico's plugin gave to a KubeVirt virtual machine, one by one.
func TestVirtualMachines(t *testing.T) {
	gone := func(w *world, _ netip.Addr) { delete(w.vms, "default/vm") }
	for _, test := range []struct {
		name   string
		change func(w *world, a netip.Addr) // of a machine that runs in the pod "web" on n1 with a
		reason Reason                       // empty: kept
		after  time.Duration                // not before
	}{
		{"a machine that runs", func(*world, netip.Addr) {}, "", 0},
		{"a machine that is stopped", func(w *world, _ netip.Addr) { w.removePod("web") }, "", 0},
		{"a machine that moved to another node, with the note of the first", func(w *world, a netip.Addr) {
			w.removePod("web")
			w.setPod(newPod("web-2", "n2", a))
		}, "", 0},
		{"a machine whose pod has another address for now", func(w *world, a netip.Addr) {
			w.setPod(newPod("web", "n1", a.Next()))
		}, "", 0},
		{"a machine that is stopped, on a node that is gone", func(w *world, _ netip.Addr) {
			w.removePod("web")
			w.removeNode("n1")
		}, "", 0},
		{"a machine that is gone", func(w *world, a netip.Addr) { gone(w, a); w.removePod("web") }, vmGone,
			leastVMGrace},
		{"a machine that is gone and whose pod has ended", func(w *world, a netip.Addr) {
			gone(w, a)
			p := newPod("web", "n1", a)
			p.Status.Phase = "Succeeded"
			w.setPod(p)
		}, vmGone, leastVMGrace},
		{"a machine that is gone while its pod ends", func(w *world, a netip.Addr) { gone(w, a) }, "", 0},
		{"a machine that is gone, and its node too", func(w *world, a netip.Addr) {
			gone(w, a)
			w.removePod("web")
			w.removeNode("n1")
		}, vmGone, 0},
		{"a machine of which nothing can be known", func(w *world, a netip.Addr) {
			gone(w, a)
			w.removePod("web")
			w.noVMs = errors.New("forbidden")
		}, "", 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := newWorld(t, "n1", "n2")
			w.vms["default/vm"] = true
			r, err := w.ipam.AutoAssign(t.Context(), ipam.Request{Host: "n1", Handle: "k8s-pod-network.vmi.default.vm",
				Num4: 1,
				Use:  v3.IPPoolAllowedUseWorkload, Attrs: map[string]string{"node": "n1", "pod": "web",
					"namespace": "default",
					attrVM:      "vm"}})
			if err != nil {
				t.Fatal(err)
			}
			a := r.V4.Addresses[0].Addr()
			w.setPod(newPod("web", "n1", a))
			l := w.newLeader(w.store)
			l.Grace = time.Minute // less than a machine may take to come back
			_ = l.runPass(true, 0)
			test.change(w, a)
			_ = l.runPass(false, 0)
			if test.reason != "" && test.after > 0 {
				w.now = w.now.Add(test.after - time.Second)
				_ = l.runPass(true, 0)
				w.wantAssigned(a)
			}
			for range 3 {
				w.now = w.now.Add(test.after + leastVMGrace + time.Second)
				_ = l.runPass(true, 0)
			}
			got := l.Releases.Last()
			if test.reason == "" {
				w.wantAssigned(a)
				if len(got) > 0 {
					t.Errorf("released %+v", got)
				}
				return
			}
			w.wantAssigned()
			if len(got) == 0 || got[0].Reason != test.reason ||
				got[0].Text() != "virtual machine default/vm does not exist" {
				t.Errorf("releases %+v", got)
			}
		})
	}
}

// 0 is never, for virtual machines as for other pods.
func TestNoGraceForVirtualMachines(t *testing.T) {
	if vmGrace(0) != 0 || vmGrace(time.Minute) != leastVMGrace || vmGrace(time.Hour) != time.Hour {
		t.Error(vmGrace(0), vmGrace(time.Minute), vmGrace(time.Hour))
	}
}
