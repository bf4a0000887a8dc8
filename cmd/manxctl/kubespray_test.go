package main_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestKubespray makes the calls of calicoctl that kubespray's role network_plugin/calico makes, through its wrapper
// script, in their order: those of a new cluster, and then those of an existing one.
func TestKubespray(t *testing.T) {
	t.Parallel()
	s, server := newShell(t)
	dir := t.TempDir()
	if err := os.Symlink(binary, filepath.Join(dir, "calicoctl")); err != nil {
		t.Fatal(err)
	}
	wrapper := filepath.Join(dir, "calicoctl.sh")
	if err := os.WriteFile(wrapper, []byte("#!/bin/bash\nETCD_ENDPOINTS="+server.Endpoint+" \\\n"+dir+
		"/calicoctl --allow-version-mismatch \"$@\"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	s.env = nil
	sh := func(stdin, line string) result {
		t.Helper()
		return s.program("/bin/bash", stdin, "-c",
			"set -o pipefail; "+strings.ReplaceAll(line, "calicoctl.sh", wrapper))
	}
	must := func(stdin, line string) string {
		t.Helper()
		r := sh(stdin, line)
		if r.code != 0 {
			t.Fatalf("%s: exit code %d\n%s%s", line, r.code, r.out, r.err)
		}
		return r.out
	}
	// merged is Ansible's combine of a stored object with the role's.
	merged := func(stored, spec string) string {
		t.Helper()
		var object map[string]any
		var add map[string]any
		for text, to := range map[string]*map[string]any{stored: &object, spec: &add} {
			if err := json.Unmarshal([]byte(text), to); err != nil {
				t.Fatal(err)
			}
		}
		have := object["spec"].(map[string]any)
		for k, v := range add {
			have[k] = v
		}
		text, err := json.Marshal(object)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	const (
		felixSpec = `{"ipipEnabled": true, "reportingInterval": "0s", "bpfLogLevel": "", "bpfEnabled": false, ` +
			`"bpfExternalServiceMode": "Tunnel", "wireguardEnabled": false, "logSeverityScreen": "Info", ` +
			`"vxlanEnabled": false, "featureDetectOverride": "", "floatingIPs": "Disabled"}`
		poolSpec = `{"blockSize": 26, "cidr": "10.233.64.0/18", "ipipMode": "Always", "vxlanMode": "Never", ` +
			`"natOutgoing": true}`
		bgpSpec = `{"listenPort": 179, "logSeverityScreen": "Info", "asNumber": "64512", ` +
			`"nodeToNodeMeshEnabled": false, "serviceExternalIPs": []}`
	)
	document := func(kind, name, spec string) string {
		return `{"kind": "` + kind + `", "apiVersion": "projectcalico.org/v3", "metadata": {"name": "` + name +
			`"}, "spec": ` + spec + `}`
	}
	if r := sh("", "calicoctl.sh get ClusterInformation default"); r.code != 1 {
		t.Errorf("no cluster is ready yet: %+v", r)
	}
	must("", "calicoctl.sh get ippool | grep -w 10.233.64.0/18 | wc -l || true")
	for _, c := range []struct{ kind, name, spec string }{{"felixconfig", "default", felixSpec},
		{"ipPool", "default-pool", poolSpec}, {"bgpconfig", "default", bgpSpec}} {
		kind := map[string]string{"felixconfig": "FelixConfiguration", "ipPool": "IPPool",
			"bgpconfig": "BGPConfiguration"}[c.kind]
		get := "calicoctl.sh get " + c.kind + " " + c.name + " -o json"
		if r := sh("", get); r.code == 0 {
			t.Errorf("%s is there already: %s", c.kind, r.out)
		}
		must(document(kind, c.name, c.spec), "calicoctl.sh apply -f -")
		again := must(merged(must("", get), c.spec), "calicoctl.sh apply -f -")
		if !strings.Contains(again, "unchanged") {
			t.Errorf("the second run of the role: %s", again)
		}
	}
	if n := must("", "calicoctl.sh get ippool | grep -w 10.233.64.0/18 | wc -l"); strings.TrimSpace(n) != "1" {
		t.Errorf("%s pools, want 1", n)
	}
	must("", `calicoctl.sh patch felixconfiguration default --patch '{"spec": {"vxlanVNI": 4096, "healthHost": `+
		`"127.0.0.1", "chainInsertMode": "Insert", "usageReportingEnabled": false}}'`)
	must(document("Node", "n1", `{"bgp": {"asNumber": "65001", "ipv4Address": "10.0.0.1/24"}, "orchRefs": `+
		`[{"nodeName": "n1", "orchestrator": "k8s"}]}`), "calicoctl.sh apply -f -")
	must("", "calicoctl.sh get node n1")
	must("", `calicoctl.sh patch node "n1" --patch '{"spec": {"bgp": {"asNumber": "65002"}, "orchRefs": `+
		`[{"nodeName": "n1", "orchestrator": "k8s"}]}}'`)
	must("", "calicoctl.sh label node  n1 calico-rr-id=rr1 --overwrite")
	must("", "calicoctl.sh label node  n1 calico-rr-id=rr2 --overwrite")
	must(strings.Replace(must("", "calicoctl.sh get node n1 -ojson"), `"ipv4Address"`,
		`"routeReflectorClusterID": "1.0.0.1", "ipv4Address"`, 1), "calicoctl.sh replace -f-")
	must(document("BGPPeer", "global-10-0-0-254", `{"asNumber": "65000", "peerIP": "10.0.0.254"}`),
		"calicoctl.sh apply -f -")
	must(document("BGPPeer", "n1-tor", `{"asNumber": "65000", "node": "n1", "peerIP": "10.0.0.253", `+
		`"sourceAddress": "UseNodeIP"}`), "calicoctl.sh apply -f -")
	must(document("BGPPeer", "peer-to-rrs", `{"nodeSelector": "!has(i-am-a-route-reflector)", `+
		`"peerSelector": "has(i-am-a-route-reflector)"}`), "calicoctl.sh apply -f -")
	node := must("", "calicoctl.sh get node n1 -o yaml")
	for _, want := range []string{"asNumber: 65002", "calico-rr-id: rr2", "ipv4Address: 10.0.0.1/24",
		"routeReflectorClusterID: 1.0.0.1"} {
		if !strings.Contains(node, want) {
			t.Errorf("the node lacks %s:\n%s", want, node)
		}
	}
	// The role compares this with the oldest release that it upgrades from.
	if v := must("", "calicoctl.sh version | grep 'Client Version:' | awk '{ print $3}'"); v != "v3.32.0\n" {
		t.Errorf("the client's version is %q", v)
	}
	must("", "calicoctl.sh --log-level=warn get nodes")
	must("", dir+"/calicoctl -l panic get nodes --etcd-endpoints "+server.Endpoint)
}
