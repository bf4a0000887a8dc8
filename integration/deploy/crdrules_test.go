package deploy

import (
	"context"
	"fmt"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/manxnet/manx/datastore/document"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/datastore/validation"
)

// badFields are specs with one wrong field, and the field and the value that the API server names in its answer.
var badFields = []struct{ kind, spec, field, value string }{
	{"BGPPeer", `{peerIP: 10.0.1.300, asNumber: 65000}`, "spec.peerIP", "10.0.1.300"},
	{"BGPPeer", `{peerIP: tor1.example.com}`, "spec.peerIP", "tor1.example.com"},
	{"BGPPeer", `{peerIP: "10.0.0.1:bgp"}`, "spec.peerIP", "10.0.0.1:bgp"},
	{"BGPPeer", `{peerIP: "fd00::12345"}`, "spec.peerIP", "fd00::12345"},
	{"BGPPeer", `{peerIP: "fe80::1%eth0"}`, "spec.peerIP", "fe80::1%eth0"},
	{"BGPPeer", `{peerIP: 10.0.0.1, reachableBy: 10.0.0}`, "spec.reachableBy", "10.0.0"},
	{"BGPPeer", `{reachableBy: 10.0.0.1}`, "spec", "reachableBy needs peerIP"},
	{"BGPPeer", `{peerIP: 10.0.0.1, asNumber: 4294967296}`, "spec.asNumber", "4294967296"},
	{"BGPPeer", `{peerIP: 10.0.0.1, sourceAddress: Loopback}`, "spec.sourceAddress", "Loopback"},
	{"BGPPeer", `{peerIP: 10.0.0.1, numAllowedLocalASNumbers: -1}`, "spec.numAllowedLocalASNumbers", "-1"},
	{"BGPConfiguration", `{serviceClusterIPs: [{cidr: 10.96.0.0/33}]}`, "spec.serviceClusterIPs[0].cidr", "10.96.0.0/33"},
	{"BGPConfiguration", `{serviceLoadBalancerIPs: [{cidr: 10.0.0.0/8}, {cidr: lan}]}`,
		"spec.serviceLoadBalancerIPs[1].cidr", "lan"},
	{"BGPConfiguration", `{prefixAdvertisements: [{cidr: "fd00::/129", communities: ["1:1"]}]}`,
		"spec.prefixAdvertisements[0].cidr", "fd00::/129"},
	{"BGPConfiguration", `{localWorkloadPeeringIPV4: 169.254.1.256}`, "spec.localWorkloadPeeringIPV4", "169.254.1.256"},
	{"BGPConfiguration", `{ignoredInterfaces: ["*"]}`, "spec.ignoredInterfaces[0]", "*"},
	{"BGPConfiguration", `{listenPort: 65536}`, "spec.listenPort", "65536"},
	{"BGPFilter", `{importV4: [{action: Accept, matchOperator: In, cidr: "fd00::/8"}]}`, "spec.importV4[0].cidr", "fd00::/8"},
	{"BGPFilter", `{exportV6: [{action: Accept, matchOperator: In, cidr: "fd00::/8", prefixLength: {max: 129}}]}`,
		"spec.exportV6[0].prefixLength.max", "129"},
	{"BGPFilter", `{exportV4: [{action: Accept, communities: {values: ["1:65536"]}}]}`,
		"spec.exportV4[0].communities.values[0]", "1:65536"},
	{"BGPFilter", `{exportV4: [{action: Accept, communities: {values: ["1:1", "1:2"]}}]}`,
		"spec.exportV4[0].communities.values", "2"},
	{"BGPFilter", `{exportV4: [{action: Accept, interface: abcdefghijklmnop}]}`, "spec.exportV4[0].interface",
		"abcdefghijklmnop"},
	{"BGPFilter", `{exportV4: [{action: Accept, priority: 0}]}`, "spec.exportV4[0].priority", "0"},
	{"BGPFilter", `{exportV4: [{action: Accept, operations: [{prependASPath: {prefix: []}}]}]}`,
		"spec.exportV4[0].operations[0].prependASPath.prefix", "0"},
	{"IPPool", `{cidr: 10.0.0.0/40}`, "spec.cidr", "10.0.0.0/40"},
	{"IPPool", `{cidr: 10.0.0.0}`, "spec.cidr", "10.0.0.0"},
	{"FelixConfiguration", `{externalNodesList: [lvs]}`, "spec.externalNodesList[0]", "lvs"},
	{"IPReservation", `{reservedCIDRs: [10.0.0.256/32]}`, "spec.reservedCIDRs[0]", "10.0.0.256/32"},
	{"HostEndpoint", `{node: n1, expectedIPs: [10.0.0.1/24]}`, "spec.expectedIPs[0]", "10.0.0.1/24"},
	{"HostEndpoint", `{node: n1}`, "spec", "interfaceName or expectedIPs is required"},
	{"HostEndpoint", `{node: n1, interfaceName: a-very-long-interface}`, "spec.interfaceName", "a-very-long-interface"},
	{"HostEndpoint", `{node: n1, interfaceName: eth0, ports: [{name: p, port: 0, protocol: TCP}]}`, "spec.ports[0].port", "0"},
	{"GlobalNetworkSet", `{nets: [10.0.0.0/8, 10.0.0.1000]}`, "spec.nets[1]", "10.0.0.1000"},
	{"NetworkSet", `{nets: ["10.0.0.0 /8"]}`, "spec.nets[0]", "10.0.0.0 /8"},
	{"GlobalNetworkPolicy", `{ingress: [{action: Deny, source: {nets: [home]}}]}`, "spec.ingress[0].source.nets[0]", "home"},
	{"NetworkPolicy", `{egress: [{action: Deny, destination: {notNets: [10.0.0.0/64]}}]}`,
		"spec.egress[0].destination.notNets[0]", "10.0.0.0/64"},
	{"NetworkPolicy", `{ingress: [{action: Allow, protocol: tcp}]}`, "spec.ingress[0].protocol", "tcp"},
	{"StagedNetworkPolicy", `{ingress: [{action: Allow, notProtocol: 0}]}`, "spec.ingress[0].notProtocol", "0"},
}

// testUnknownFields: a misspelled example is refused, so an accepted one is valid.
func (a *api) testUnknownFields(t *testing.T) {
	for _, kind := range []string{"BGPFilter", "FelixConfiguration", "HostEndpoint"} {
		o := decode(t, fmt.Appendf(nil, "{apiVersion: %s/v3, kind: %s, metadata: {name: x}, spec: {mispelled: 1}}",
			groupV3, kind))
		if _, err := a.put(o); err == nil {
			t.Errorf("%s: an unknown field is accepted", kind)
			_ = a.on(o).Delete(t.Context(), "x", metav1.DeleteOptions{})
		}
	}
}

// testWrongFields: a wrong field is refused by the API server and by manxctl, with its name and its value.
func (a *api) testWrongFields(t *testing.T) {
	for _, b := range badFields {
		text := fmt.Sprintf("{apiVersion: %s/v3, kind: %s, metadata: {name: default}, spec: %s}", groupV3, b.kind,
			b.spec)
		if !refusedByManxctl(t, []byte(text)) {
			t.Errorf("manxctl accepts %s", text)
		}
		o := decode(t, []byte(text))
		if a.resources[o.GetAPIVersion()+" "+b.kind].namespaced {
			o.SetNamespace("default")
		}
		_, err := a.on(o).Create(context.Background(), o, metav1.CreateOptions{DryRun: []string{"All"}})
		if err == nil || !strings.Contains(err.Error(), b.field+": ") || !strings.Contains(err.Error(), b.value) {
			t.Errorf("%s: %v; want %s and %s", text, err, b.field, b.value)
		}
	}
}

// No pattern of an address refuses what manxctl accepts.
func TestPatternsAreNotStricter(t *testing.T) {
	kinds := map[string]string{ // with one field, %q
		"BGPPeer.peerIP": `{peerIP: %q}`, "BGPPeer.reachableBy": `{peerIP: 10.0.0.1, reachableBy: %q}`,
		"BGPConfiguration.serviceClusterIPs.cidr":   `{serviceClusterIPs: [{cidr: %q}]}`,
		"BGPConfiguration.localWorkloadPeeringIPV4": `{localWorkloadPeeringIPV4: %q}`,
		"BGPConfiguration.localWorkloadPeeringIPV6": `{localWorkloadPeeringIPV6: %q}`,
		"BGPFilter.exportV4.cidr":                   `{exportV4: [{action: Accept, matchOperator: In, cidr: %q}]}`,
		"BGPFilter.exportV6.cidr":                   `{exportV6: [{action: Accept, matchOperator: In, cidr: %q}]}`,
		"IPPool.cidr":                               `{cidr: %q, disabled: true}`,
		"IPReservation.reservedCIDRs":               `{reservedCIDRs: [%q]}`,
		"HostEndpoint.expectedIPs":                  `{node: n, expectedIPs: [%q]}`,
		"FelixConfiguration.externalNodesList":      `{externalNodesList: [%q]}`,
		"HostEndpoint.interfaceName":                `{node: n, interfaceName: %q}`,
		"GlobalNetworkSet.nets":                     `{nets: [%q]}`,
		"GlobalNetworkPolicy.ingress.source.nets":   `{ingress: [{action: Deny, source: {nets: [%q]}}]}`,
		"GlobalNetworkPolicy.ingress.protocol":      `{ingress: [{action: Deny, protocol: %q}]}`,
	}
	patterns := map[string]*regexp.Regexp{}
	for _, d := range readDefinitions(t, groupV3) {
		kind := d.Object["spec"].(map[string]any)["names"].(map[string]any)["kind"].(string)
		version := d.Object["spec"].(map[string]any)["versions"].([]any)[0].(map[string]any)
		spec, _, _ := unstructured.NestedMap(version, "schema", "openAPIV3Schema", "properties", "spec")
		for name := range kinds {
			if k, path, _ := strings.Cut(name, "."); k == kind {
				patterns[name] = patternAt(t, spec, path)
			}
		}
	}
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 0))
	accepted := map[string]int{}
	for range 1500 {
		text := addressLike(random)
		for name, form := range kinds {
			kind, _, _ := strings.Cut(name, ".")
			doc := fmt.Sprintf("{apiVersion: %s/v3, kind: %s, metadata: {name: default}, spec: %s}", groupV3, kind,
				fmt.Sprintf(form, text))
			if unsafe(doc) {
				continue
			}
			if accepted[name]++; !patterns[name].MatchString(text) {
				t.Errorf("seed %d: %s: manxctl accepts %q, the definition does not", seed, name, text)
			}
		}
	}
	for name := range kinds {
		if accepted[name] < 5 {
			t.Errorf("%s: only %d texts were valid", name, accepted[name])
		}
	}
}

// unsafe reports whether manxd would quarantine the object of a document.
func unsafe(text string) bool {
	objects, err := document.Parse([]byte(text))
	if err != nil {
		return true
	}
	info, _ := model.Lookup(objects[0].Key.Kind)
	validation.Default(info.Kind, objects[0].Value)
	return len(validation.Validate(objects[0].Key, objects[0].Value)) > 0
}

// patternAt returns the pattern of the field that path leads to.
func patternAt(t *testing.T, schema any, path string) *regexp.Regexp {
	t.Helper()
	at := schema.(map[string]any)
	for step := range strings.SplitSeq(path, ".") {
		at = at["properties"].(map[string]any)[step].(map[string]any)
		if items, ok := at["items"].(map[string]any); ok {
			at = items
		}
	}
	text, ok := at["pattern"].(string)
	if !ok {
		t.Fatalf("%s has no pattern", path)
	}
	return regexp.MustCompile(text)
}

// addressLike is a random text that is often an address, a CIDR, a name or nearly one.
func addressLike(r *rand.Rand) string {
	pick := func(list ...string) string { return list[r.IntN(len(list))] }
	var text string
	switch r.IntN(4) {
	case 0:
		text = pick("TCP", "UDP", "ICMPv6", "6", "132", "255", "eth0", "*", "bond0.100", "")
	case 1:
		parts := make([]string, 4)
		for i := range parts {
			parts[i] = fmt.Sprint(r.IntN(256))
		}
		text = strings.Join(parts, ".")
	default:
		groups := make([]string, 8)
		for i := range groups {
			groups[i] = fmt.Sprintf(pick("%x", "%X", "%04x"), r.IntN(1<<16))
		}
		if r.IntN(2) == 0 {
			from := r.IntN(8)
			groups = slices.Concat(groups[:from], []string{""}, groups[from+1+r.IntN(8-from):])
		}
		text = strings.Join(groups, ":")
		if strings.HasPrefix(text, ":") {
			text = ":" + text
		}
		if strings.HasSuffix(text, ":") {
			text += ":"
		}
		text = pick(text, text, "::ffff:192.0.2.1", "::", "64:ff9b::192.0.2.33", "["+text+"]:179")
	}
	text += pick("", "", "", "/0", "/8", "/24", "/32", "/64", "/128", ":179", ":00179")
	if r.IntN(4) == 0 && text != "" { // one character is wrong
		i := r.IntN(len(text))
		text = text[:i] + pick("", ":", ".", "0", "g", "/") + text[i+r.IntN(2):]
	}
	return text
}
