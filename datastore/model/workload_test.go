package model

import (
	"strings"
	"testing"
)

func TestWorkloadEndpointNames(t *testing.T) {
	for _, c := range []struct {
		rule string
		ids  WorkloadEndpointIDs
		want string
	}{
		{"k8s takes the pod", WorkloadEndpointIDs{Node: "node-1", Orchestrator: "k8s", Pod: "web-0", Endpoint: "eth0"},
			"node--1-k8s-web--0-eth0"},
		{"cni takes the container", WorkloadEndpointIDs{Node: "h1", Orchestrator: "cni", ContainerID: "feedface01",
			Endpoint: "eth0"}, "h1-cni-feedface01-eth0"},
		{"libnetwork takes its own name", WorkloadEndpointIDs{Node: "h1", Orchestrator: "libnetwork",
			Workload: "libnetwork", Endpoint: "ep-1"}, "h1-libnetwork-libnetwork-ep--1"},
		{"others take the workload", WorkloadEndpointIDs{Node: "ghost-1", Orchestrator: "openstack", Workload: "vm.one",
			Endpoint: "port1"}, "ghost--1-openstack-vm.one-port1"},
		{"dashes in a row", WorkloadEndpointIDs{Node: "a--b", Orchestrator: "k8s", Pod: "c", Endpoint: "d"},
			"a----b-k8s-c-d"},
	} {
		t.Run(c.rule, func(t *testing.T) {
			name, err := WorkloadEndpointName(c.ids)
			if err != nil || name != c.want {
				t.Fatalf("%q, %v", name, err)
			}
			if ids, err := ParseWorkloadEndpointName(name); err != nil || ids != c.ids {
				t.Errorf("%+v, %v", ids, err)
			}
		})
	}
}

func TestIDsThatMakeNoName(t *testing.T) {
	for _, c := range []struct {
		ids  WorkloadEndpointIDs
		want string
	}{
		{WorkloadEndpointIDs{Orchestrator: "k8s", Pod: "p", Endpoint: "e"}, `spec.node = "": is required`},
		{WorkloadEndpointIDs{Node: "n", Pod: "p", Endpoint: "e"}, `spec.orchestrator = "": is required`},
		{WorkloadEndpointIDs{Node: "n", Orchestrator: "k8s", ContainerID: "c", Endpoint: "e"},
			`spec.pod = "": is required`},
		{WorkloadEndpointIDs{Node: "n", Orchestrator: "cni", Pod: "c", Endpoint: "e"},
			`spec.containerID = "": is required`},
		{WorkloadEndpointIDs{Node: "n-", Orchestrator: "k8s", Pod: "p", Endpoint: "e"}, `spec.node = "n-"`},
		{WorkloadEndpointIDs{Node: "n", Orchestrator: "k8s", Pod: "-p", Endpoint: "e"}, `spec.pod = "-p"`},
	} {
		if name, err := WorkloadEndpointName(c.ids); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v gave %q, %v", c.ids, name, err)
		}
	}
}

func TestNamesThatAreNoWorkloadEndpoint(t *testing.T) {
	for _, name := range []string{"", "a", "a-k8s-c", "a-k8s-c-d-e", "a--k8s-c-d", "a---k8s-c-d", "-k8s-c-d",
		"a-k8s--d", "a-libnetwork-x-d"} {
		if ids, err := ParseWorkloadEndpointName(name); err == nil {
			t.Errorf("%q gave %+v", name, ids)
		}
	}
}

func FuzzWorkloadEndpointName(f *testing.F) {
	f.Add("node-1", "k8s", "web-0", "eth0")
	f.Add("a--", "cni", "-", "")
	f.Fuzz(func(t *testing.T, node, orchestrator, workload, endpoint string) {
		name, err := WorkloadEndpointName(WorkloadEndpointIDs{Node: node, Orchestrator: orchestrator, Pod: workload,
			ContainerID: workload, Workload: workload, Endpoint: endpoint})
		if err != nil || strings.Contains(name, "\x00") {
			return
		}
		ids, err := ParseWorkloadEndpointName(name)
		if err != nil || ids.Node != node || ids.Orchestrator != orchestrator || ids.Endpoint != endpoint {
			t.Errorf("%q gave %+v, %v", name, ids, err)
		}
	})
}
