package main_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
)

// resource writes a document of Calico's in one line.
func resource(kind, meta, spec string) string {
	return fmt.Sprintf("{apiVersion: projectcalico.org/v3, kind: %s, metadata: {%s}, spec: {%s}}\n---\n", kind, meta,
		spec)
}

func TestPoliciesFromCreationToTheEndOfTheirTier(t *testing.T) {
	s, server := newShell(t)
	web := resource("NetworkPolicy", "name: platform.web, namespace: shop",
		"tier: platform, order: 10, selector: app == 'web', ingress: [{action: Allow}]")
	s.pipe(web, "apply", "-f", "-").want(t, 1, "",
		`NetworkPolicy shop/platform.web is invalid: spec.tier = "platform": must be a tier that exists`)
	s.mustPipe(resource("Tier", "name: platform", "order: 5"), "create", "-f", "-")
	s.pipe(web, "apply", "-f", "-").want(t, 0, "networkpolicy/platform.web created\n")
	s.pipe(web, "apply", "-f", "-").want(t, 0, "networkpolicy/platform.web unchanged\n")
	s.pipe(strings.Replace(web, "order: 10", "order: 11.5", 1), "apply", "-f", "-").want(t, 0,
		"networkpolicy/platform.web configured\n")

	// The stored objects equal those that Calico writes.
	raw, err := server.Client(t).Get(context.Background(),
		"/calico/resources/v3/projectcalico.org/networkpolicies/shop/platform.web")
	if err != nil || len(raw.Kvs) != 1 {
		t.Fatal(raw, err)
	}
	for _, want := range []string{`"labels":{"projectcalico.org/tier":"platform"}`,
		`"annotations":{"projectcalico.org/metadata":"{\"name\":\"platform.web\"}"}`,
		`"ingress":[{"action":"Allow"}]`, `"types":["Ingress"]`} {
		if !strings.Contains(string(raw.Kvs[0].Value), want) {
			t.Errorf("%s lacks %s", raw.Kvs[0].Value, want)
		}
	}
	if shown := s.must("get", "np", "platform.web", "-n", "shop", "-o", "yaml"); strings.Contains(shown,
		"projectcalico.org/metadata") || !strings.Contains(shown, "order: 11.5") {
		t.Errorf("shown as\n%s", shown)
	}
	s.run("get", "policies", "-A", "-o", "wide").want(t, 0,
		"NAMESPACE   NAME           TIER       ORDER   SELECTOR\n"+
			"shop        platform.web   platform   11.5    app == 'web'\n")

	s.run("delete", "tier", "platform").want(t, 1, "", "delete Tier platform: still has policies, move or delete "+
		"them first: NetworkPolicy shop/platform.web")
	s.run("delete", "tier", "default").want(t, 1, "", "delete Tier default: is built in and cannot be deleted")
	s.run("delete", "np", "platform.web", "-n", "shop").want(t, 0, "networkpolicy/platform.web deleted\n")
	s.run("delete", "tier", "platform").want(t, 0, "tier/platform deleted\n")
	s.run("delete", "tier", "platform").want(t, 1, "", "delete Tier platform: does not exist")
}

func TestTierWithManyPoliciesNamesSome(t *testing.T) {
	s, _ := newShell(t)
	input := resource("Tier", "name: audit", "")
	for i := range 7 {
		input += resource("StagedGlobalNetworkPolicy", fmt.Sprintf("name: p%d", i), "tier: audit")
	}
	s.mustPipe(input, "create", "-f", "-")
	s.run("delete", "tier", "audit").want(t, 1, "", "StagedGlobalNetworkPolicy p0, ",
		"StagedGlobalNetworkPolicy p4 and 2 more")
}

func TestARefusedPolicyNamesEveryMistake(t *testing.T) {
	s, _ := newShell(t)
	s.pipe(resource("GlobalNetworkPolicy", "name: wrong", "selector: 'a ==', doNotTrack: true, ingress: [{action: "+
		"Drop, destination: {ports: [80]}}]"), "create", "-f", "-").
		want(t, 1, "", `spec.selector = "a =="`, `spec.applyOnForward = "false"`,
			`spec.ingress[0].action = "Drop": must be one of Allow, Deny, Log, Pass`,
			`spec.ingress[0].destination.ports[0] = "80": needs protocol TCP, UDP or SCTP`)
	s.pipe(resource("NetworkPolicy", "name: wrong", "preDNAT: true"), "create", "-f", "-").want(t, 1, "",
		"spec.preDNAT: there is no such field here")
	s.pipe("{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: web}, spec: {podSelector: {}}}",
		"apply", "-f", "-").
		want(t, 1, "", "KubernetesNetworkPolicy default/web", "belongs to Kubernetes")
	s.run("get", "clusternetworkpolicies").want(t, 2, "", "belongs to Kubernetes")
}

// A policy that a release before Calico 3.32 wrote is listed, shown and deleted under its stored name.
func TestPolicyUnderTheOldSpellingOfItsName(t *testing.T) {
	s, server := newShell(t)
	client := server.Client(t)
	const path = "/calico/resources/v3/projectcalico.org/globalnetworkpolicies/default.web"
	const raw = `{"kind":"GlobalNetworkPolicy","apiVersion":"projectcalico.org/v3","metadata":{"name":"default.web","uid":"u","creationTimestamp":"2020-01-01T00:00:00Z"},"spec":{"egress":[{"action":"Deny","source":{},"destination":{}}]}}`
	if _, err := client.Put(context.Background(), path, raw); err != nil {
		t.Fatal(err)
	}
	s.run("get", "gnp", "--no-headers").want(t, 0, "default.web   default\n")
	s.run("get", "gnp", "web").want(t, 1, "", "get GlobalNetworkPolicy web: does not exist")
	shown := s.must("get", "gnp", "default.web", "-o", "yaml")
	if !strings.Contains(shown, "\n  name: web\n") || !strings.Contains(shown, "types:\n  - Egress\n") {
		t.Errorf("shown as\n%s", shown)
	}
	// Written again it has today's spelling.
	again := strings.NewReplacer("  resourceVersion:", "  #", "  uid:", "  #").Replace(shown)
	s.pipe(again, "apply", "-f", "-").want(t, 0, "globalnetworkpolicy/web created\n")
	s.run("delete", "gnp", "default.web").want(t, 0, "globalnetworkpolicy/default.web deleted\n")
	s.run("get", "gnp", "--no-headers").want(t, 0, "web   default\n")
}

func TestSetsAndHostEndpointsInTables(t *testing.T) {
	s, _ := newShell(t)
	var nets []string
	for i := range 30 {
		nets = append(nets, fmt.Sprintf("10.0.%d.0/24", i))
	}
	s.mustPipe(resource("GlobalNetworkSet", "name: many", "nets: ["+strings.Join(nets, ", ")+"]")+
		resource("HostEndpoint", "name: all",
			`node: n1, interfaceName: "*", expectedIPs: [192.0.2.1], profiles: [a, b]`)+
		resource("HostEndpoint", "name: other", `node: n2, interfaceName: eth0`)+
		resource("Node", "name: n1", "bgp: {asNumber: 1}"), "create", "-f", "-")
	s.run("get", "gnetsets", "-o", "wide", "--no-headers").want(t, 0,
		"many   10.0.0.0/24,10.0.1.0/24,10.0.2.0/24,10.0.3.0/24,10.0.4.0/24,10.0.5.0/24,... (24 more)\n")
	s.run("get", "hep", "-o", "wide").want(t, 0, "NAME    NODE   INTERFACE   IPS         PROFILES\n"+
		"all     n1     *           192.0.2.1   a,b\nother   n2     eth0\n")
	// A host endpoint goes with its node.
	s.run("delete", "node", "n1").want(t, 0, "hostendpoint/all deleted\nnode/n1 deleted\n")
	s.run("get", "hep", "-o", "name").want(t, 0, "hostendpoint/other\n")
}
