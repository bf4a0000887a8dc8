package kubeapi

import (
	"net/http"
	"testing"
	"time"

	"github.com/manxnet/manx/integration/kubernetes/apiserver"
)

// The existence of a virtual machine of KubeVirt follows from the responses of a real API server.
func TestVirtualMachine(t *testing.T) {
	server := apiserver.Start(t)
	server.AddUsers(t, "stranger")
	api, err := New(server.Config(apiserver.Admin))
	if err != nil {
		t.Fatal(err)
	}
	exists := func(name string) bool {
		t.Helper()
		exists, err := api.VirtualMachine(t.Context(), "default", name)
		if err != nil {
			t.Fatal(err)
		}
		return exists
	}
	if !exists("gone") {
		t.Error("without KubeVirt a machine counts as gone")
	}
	for kind, plural := range map[string]string{"VirtualMachine": "virtualmachines",
		"VirtualMachineInstance": "virtualmachineinstances"} {
		schema := map[string]any{"type": "object", "x-kubernetes-preserve-unknown-fields": true}
		server.Request(t, http.MethodPost, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", map[string]any{
			"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
			"metadata": map[string]any{"name": plural + ".kubevirt.io"},
			"spec": map[string]any{"group": "kubevirt.io", "scope": "Namespaced",
				"names": map[string]any{"kind": kind, "plural": plural},
				"versions": []any{map[string]any{"name": "v1", "served": true, "storage": true,
					"schema": map[string]any{"openAPIV3Schema": schema}}}}})
	}
	for deadline := time.Now().Add(time.Minute); exists("gone"); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("a machine that is gone counts as one that exists")
		}
	}
	put := func(plural, kind, name string, owners ...any) {
		server.Request(t, http.MethodPost, "/apis/kubevirt.io/v1/namespaces/default/"+plural, map[string]any{
			"apiVersion": "kubevirt.io/v1", "kind": kind,
			"metadata": map[string]any{"name": name, "ownerReferences": owners}})
	}
	put("virtualmachines", "VirtualMachine", "stopped")
	put("virtualmachineinstances", "VirtualMachineInstance", "alone")
	put("virtualmachineinstances", "VirtualMachineInstance", "orphan", map[string]any{"apiVersion": "kubevirt.io/v1",
		"kind": "VirtualMachine", "name": "orphan", "uid": "11111111-1111-1111-1111-111111111111"})
	for name, want := range map[string]bool{"stopped": true, "alone": true, "orphan": false, "gone": false,
		"../stopped": true} {
		if got := exists(name); got != want {
			t.Errorf("%s exists: %t", name, got)
		}
	}
	stranger, err := New(server.Config("stranger"))
	if err != nil {
		t.Fatal(err)
	}
	if exists, err := stranger.VirtualMachine(t.Context(), "default", "gone"); err == nil || !exists {
		t.Errorf("without the right to look: %t, %v", exists, err)
	}
}
