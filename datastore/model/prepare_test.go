package model

import (
	"encoding/json"
	"errors"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
)

var testTime = time.Date(2026, 8, 1, 12, 0, 0, 999, time.FixedZone("x", 7200))

// input.yaml is what a user gave to calicoctl; objects.jsonl is what calicoctl made of it (other programs wrote some of
// it again later: those objects are left out).
func TestDefaultsAreThoseOfCalico(t *testing.T) {
	written := map[Key][]string{}
	for _, s := range readLines[stored](t, "history.jsonl") {
		if s.Op != "delete" {
			written[storedKey(s.Key)] = append(written[storedKey(s.Key)], s.Raw)
		}
	}
	input, err := os.ReadFile("testdata/input.yaml")
	if err != nil {
		t.Fatal(err)
	}
	objects, err := DecodeDocument(input)
	if err != nil {
		t.Fatal(err)
	}
	if len(objects) != 80 {
		t.Fatalf("%d objects", len(objects))
	}
	compared := 0
	for _, o := range objects {
		if info, _ := Lookup(o.Key.Kind); info.Namespaced && o.Key.Namespace == "" {
			o.Key.Namespace = "default" // as calicoctl does
		}
		if err := PrepareCreate(o, testTime); err != nil {
			t.Error(err)
			continue
		}
		b, err := Encode(o)
		if err != nil {
			t.Fatal(err)
		}
		if programs[o.Key.String()] {
			continue
		}
		compared++
		got, m := comparable(t, string(b))
		if m["creationTimestamp"] != "2026-08-01T10:00:00Z" || !uuidFormat.MatchString(m["uid"].(string)) {
			t.Errorf("%s: %v", o.Key, m)
		}
		if !slices.ContainsFunc(written[o.Key], func(raw string) bool {
			want, _ := comparable(t, raw)
			return reflect.DeepEqual(got, want)
		}) {
			t.Errorf("%s: made\n%s\nCalico made\n%s", o.Key, b, strings.Join(written[o.Key], "\n"))
		}
	}
	if compared < 40 {
		t.Errorf("only %d objects were compared", compared)
	}
}

var uuidFormat = regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`)

// comparable returns an object without the parts of its metadata that are never the same, and these.
func comparable(t *testing.T, raw string) (object any, identity map[string]any) {
	t.Helper()
	object = withoutNewFields(exact(t, []byte(raw)))
	m := object.(map[string]any)["metadata"].(map[string]any)
	identity = map[string]any{"uid": m["uid"], "creationTimestamp": m["creationTimestamp"]}
	delete(m, "uid")
	delete(m, "creationTimestamp")
	return object, identity
}

// programs lists objects that a program created before the user applied them.
var programs = map[string]bool{
	"BGPConfiguration default": true, "IPAMConfiguration default": true, "FelixConfiguration default": true,
}

// refusal is one line of rejected.jsonl and accepted-although-odd.jsonl.
type refusal struct {
	Doc   any
	Verb  string
	Field any // text, list of texts or nil
	Why   string
}

// document returns the text of the document.
func (r refusal) document() []byte {
	if s, ok := r.Doc.(string); ok {
		return []byte(s)
	}
	b, _ := json.Marshal(r.Doc)
	return b
}

// refuse does what a store does with a new object, and gives the fields that were named.
func refuse(r refusal, others Reader) ([]string, error) {
	objects, err := DecodeDocument(r.document())
	if err != nil {
		return []string{err.Error()}, err
	}
	for _, o := range objects {
		err = PrepareCreate(o, testTime)
		if p, ok := o.Value.(*IPPool); ok && err == nil {
			if errs := CheckPoolOverlap(o.Key, p, others); len(errs) > 0 {
				err = &InvalidError{Key: o.Key, Fields: errs}
			}
		}
		if errs := CheckPolicyTier(o.Value, others); len(errs) > 0 && err == nil {
			err = &InvalidError{Key: o.Key, Fields: errs}
		}
	}
	var invalid *InvalidError
	if !errors.As(err, &invalid) {
		return nil, err
	}
	var fields []string
	for _, f := range invalid.Fields {
		fields = append(fields, f.Field)
	}
	return fields, err
}

// What Calico refuses and Manx does not, and why.
var acceptedByUs = map[string]string{
	"AS number above 2147483647, although it fits in 32 unsigned bits": "AS numbers have 32 bits (RFC 6793)",
	"names a filter that does not exist": "needs the other objects; an unknown filter " +
		"is reported with the session",
}

func TestWhatCalicoRefusesIsRefused(t *testing.T) {
	others := Set{}
	for _, s := range readLines[stored](t, "objects.jsonl") {
		k := storedKey(s.Key)
		others[k] = Decode(k, []byte(s.Raw), 1)
	}
	for _, r := range readLines[refusal](t, "rejected.jsonl") {
		t.Run(r.Why, func(t *testing.T) {
			fields, err := refuse(r, others)
			if reason := acceptedByUs[r.Why]; reason != "" {
				if err != nil {
					t.Errorf("refused although %s: %v", reason, err)
				}
				return
			}
			if err == nil {
				t.Fatalf("accepted: %s", r.document())
			}
			if !namesField(fields, r.Field) {
				t.Errorf("named %q, Calico names %v\n%v", fields, r.Field, err)
			}
		})
	}
}

// namesField tells whether one of fields is the one that Calico names, or a part of it. Calico spells fields in several
// ways: spec.x[0].y, Spec.X[].Y, IPPool.Spec.CIDR or only the last part; for a whole resource it names the kind.
func namesField(fields []string, calico any) bool {
	index := regexp.MustCompile(`\[\d*\]`)
	plain := func(s string) string { return strings.ToLower(index.ReplaceAllString(s, "")) }
	switch c := calico.(type) {
	case nil:
		return true
	case []any:
		for _, x := range c {
			if namesField(fields, x) {
				return true
			}
		}
	case string:
		c = plain(c)
		for _, i := range Kinds() {
			if k := strings.ToLower(string(i.Kind)); c == k || c == k+"spec" {
				c = "spec"
			}
			c = strings.TrimPrefix(c, strings.ToLower(string(i.Kind))+".")
		}
		last := c[strings.LastIndexByte(c, '.')+1:]
		for _, f := range fields {
			if f = plain(f); strings.Contains("."+f+".", "."+c+".") || strings.Contains(f, last) && c != "spec" {
				return true
			}
		}
	}
	return false
}

func TestWhatCalicoAcceptsIsAccepted(t *testing.T) {
	for _, r := range readLines[refusal](t, "accepted-although-odd.jsonl") {
		if _, err := refuse(r, Set{}); err != nil {
			t.Errorf("%s: %v", r.Why, err)
		}
	}
}

func TestRules(t *testing.T) {
	const pool, peer, conf, filter = KindIPPool, KindBGPPeer, KindBGPConfiguration, KindBGPFilter
	for _, c := range []struct {
		rule string
		kind Kind
		name string
		spec string
		want string // field and value of a refusal; empty for a valid object
	}{
		{"32-bit AS numbers are accepted everywhere", peer, "p",
			`peerIP: 10.0.0.1, asNumber: 4294967295, localASNumber: "65010.7"`, ""},
		{"also in the default configuration", conf, "default", `asNumber: 4200000001`, ""},
		{"peer address with a port", peer, "p", `peerIP: "[fd00::1]:1179"`, ""},
		{"port 0", peer, "p", `peerIP: "10.0.0.1:0"`, `spec.peerIP = "10.0.0.1:0"`},
		{"node and nodeSelector", peer, "p", `node: n1, nodeSelector: all()`, `spec.nodeSelector = "all()"`},
		{"gateway of the other family", peer, "p", `peerIP: 10.0.0.1, reachableBy: "fd00::1"`,
			`spec.reachableBy = "fd00::1"`},
		{"keepOriginalNextHop false beside nextHopMode", peer, "p", `peerIP: 10.0.0.1, nextHopMode: Self`, ""},
		{"negative time", peer, "p", `peerIP: 10.0.0.1, maxRestartTime: -1s`, `spec.maxRestartTime = "-1s"`},
		{"long selector", peer, "p", `peerSelector: "` + strings.Repeat("a", 513) + ` == '` + strings.Repeat("b", 600) +
			`'"`, `spec.peerSelector = `},
		{"unknown reverse peering", peer, "p", `reversePeering: Sometimes`,
			`spec.reversePeering = "Sometimes": must be one of Auto, Manual`},
		{"listen port of a node", conf, "node.n", `listenPort: 1790`, ""},
		{"mesh password without a mesh", conf, "default", `nodeToNodeMeshEnabled: false, nodeMeshPassword: {}`,
			"spec.nodeMeshPassword"},
		{"community by name and by value", conf, "default",
			`communities: [{name: a, value: "1:2"}], prefixAdvertisements: [{cidr: 10.0.0.0/8, communities: [a, "65535:65535", "4294967295:0:1"]}]`, ""},
		{"community that is not defined", conf, "default",
			`prefixAdvertisements: [{cidr: 10.0.0.0/8, communities: [a]}]`,
			"spec.prefixAdvertisements[0].communities[0]"},
		{"communities for nothing", conf, "default", `communities: [{name: a, value: "1:2"}]`, "spec.communities"},
		{"community beyond 16 bits", conf, "default",
			`prefixAdvertisements: [{cidr: 10.0.0.0/8, communities: ["1:65536"]}]`, "communities[0]"},
		{"advertised prefix with host bits", conf, "default",
			`prefixAdvertisements: [{cidr: 10.0.0.1/8, communities: ["1:1"]}]`, "10.0.0.0/8 is the network"},
		{"service range of a node", conf, "node.n", `serviceClusterIPs: [{cidr: 10.0.0.0/8}]`,
			"spec.serviceClusterIPs"},
		{"route priority", conf, "default", `ipv4NormalRoutePriority: 2147483647`,
			`spec.ipv4NormalRoutePriority = "2147483647"`},
		{"ignored interfaces", conf, "default", `ignoredInterfaces: ["eth*", "*"]`, "spec.ignoredInterfaces[1]"},
		{"a rule without conditions", filter, "f", `exportV4: [{action: Reject}]`, ""},
		{"a rule with everything", filter, "f",
			`importV6: [{action: Accept, cidr: "fd00::/8", matchOperator: NotIn, prefixLength: {min: 0, max: 128}, source: RemotePeers, interface: "eth*", peerType: iBGP,
			communities: {values: ["1:2:3"]}, asPathPrefix: [65000, "1.5"], priority: 2147483646, operations: [{addCommunity: {value: "1:2"}}, {prependASPath: {prefix: [1]}}, {setPriority: {value: 1}}]}]`, ""},
		{"no action", filter, "f", `exportV4: [{interface: eth0}]`, `spec.exportV4[0].action = ""`},
		{"unknown action", filter, "f", `exportV4: [{action: Drop}]`,
			`spec.exportV4[0].action = "Drop": must be one of Accept, Reject`},
		{"cidr of the other family", filter, "f",
			`importV4: [{action: Accept}, {action: Accept, cidr: "fd00::/8", matchOperator: In}]`,
			`spec.importV4[1].cidr = "fd00::/8"`},
		{"operator without cidr", filter, "f", `exportV6: [{action: Accept, matchOperator: In}]`,
			"spec.exportV6[0].cidr"},
		{"cidr without operator", filter, "f", `exportV6: [{action: Accept, cidr: "fd00::/8"}]`,
			"spec.exportV6[0].matchOperator"},
		{"unknown operator", filter, "f", `exportV4: [{action: Accept, cidr: 10.0.0.0/8, matchOperator: Near}]`,
			"must be one of Equal, NotEqual, In, NotIn"},
		{"length without cidr", filter, "f", `exportV4: [{action: Accept, prefixLength: {max: 20}}]`,
			"spec.exportV4[0].cidr"},
		{"length with Equal", filter, "f",
			`exportV4: [{action: Accept, cidr: 10.0.0.0/8, matchOperator: Equal, prefixLength: {max: 20}}]`,
			"goes with matchOperator In and NotIn only"},
		{"length with NotEqual", filter, "f",
			`exportV4: [{action: Accept, cidr: 10.0.0.0/8, matchOperator: NotEqual, prefixLength: {max: 20}}]`,
			"spec.exportV4[0].prefixLength"},
		{"length beyond the family's", filter, "f",
			`exportV6: [{action: Accept, cidr: "fd00::/8", matchOperator: In, prefixLength: {max: 129}}]`,
			`spec.exportV6[0].prefixLength.max = "129": must be from 0 to 128`},
		{"lengths the wrong way round", filter, "f",
			`exportV4: [{action: Accept, cidr: 10.0.0.0/8, matchOperator: In, prefixLength: {min: 24, max: 16}}]`,
			"must not exceed max, which is 16"},
		{"unknown source", filter, "f", `exportV4: [{action: Accept, source: Local}]`, "spec.exportV4[0].source"},
		{"interface of 16 characters", filter, "f", `exportV4: [{action: Accept, interface: abcdefghijklmnop}]`,
			"spec.exportV4[0].interface"},
		{"unknown peer type", filter, "f", `exportV4: [{action: Accept, peerType: ebgp}]`, "spec.exportV4[0].peerType"},
		{"no community", filter, "f", `exportV4: [{action: Accept, communities: {values: []}}]`,
			"spec.exportV4[0].communities.values"},
		{"two communities", filter, "f", `exportV4: [{action: Accept, communities: {values: ["1:1", "1:2"]}}]`,
			"must have exactly one community"},
		{"a bad community", filter, "f", `exportV4: [{action: Accept, communities: {values: ["1:65536"]}}]`,
			"spec.exportV4[0].communities.values[0]"},
		{"priority of a rule", filter, "f", `exportV4: [{action: Accept, priority: 2147483647}]`,
			"spec.exportV4[0].priority"},
		{"operations of Reject", filter, "f", `exportV4: [{action: Reject, operations: [{setPriority: {value: 1}}]}]`,
			"go with action Accept only"},
		{"eleven operations", filter, "f", `exportV4: [{action: Accept, operations: [` +
			strings.Repeat(`{setPriority: {value: 1}},`, 11) + `]}]`, "can have at most 10 entries"},
		{"two operations in one", filter, "f",
			`exportV4: [{action: Accept, operations: [{setPriority: {value: 1}, addCommunity: {value: "1:1"}}]}]`,
			"spec.exportV4[0].operations[0]"},
		{"nothing to prepend", filter, "f", `exportV4: [{action: Accept, operations: [{prependASPath: {prefix: []}}]}]`,
			"must have 1 to 10 AS numbers"},
		{"bare address in a filter", filter, "f", `importV4: [{action: Accept, matchOperator: In, cidr: 10.1.2.3}]`,
			`spec.importV4[0].cidr = "10.1.2.3": must be a CIDR: write 10.1.2.3/32`},
		{"host bits in a filter", filter, "f", `exportV6: [{action: Accept, matchOperator: In, cidr: "fd00::1/8"}]`,
			`spec.exportV6[0].cidr = "fd00::1/8": must not have host bits set: fd00::/8 is the network`},
		{"a priority to set", filter, "f", `exportV4: [{action: Accept, operations: [{setPriority: {value: 0}}]}]`,
			"spec.exportV4[0].operations[0].setPriority.value"},
		{"a community to add", filter, "f",
			`exportV4: [{action: Accept, operations: [{addCommunity: {value: "gold"}}]}]`,
			"spec.exportV4[0].operations[0].addCommunity.value"},
		{"pool as small as its block", pool, "p", `cidr: 10.0.0.0/26`, ""},
		{"pool smaller than its block", pool, "p", `cidr: 10.0.0.0/27`, `spec.blockSize = "26"`},
		{"disabled pool smaller than its block", pool, "p", `cidr: 10.0.0.0/27, disabled: true`, ""},
		{"IPIP for IPv6", pool, "p", `cidr: "fd00::/64", ipipMode: Always`, "spec.ipipMode"},
		{"pool for services", pool, "p", `cidr: 10.0.0.0/24, allowedUses: [LoadBalancer]`, ""},
		{"pool for services with a selector", pool, "p",
			`cidr: 10.0.0.0/24, allowedUses: [LoadBalancer], nodeSelector: has(a)`, "spec.nodeSelector"},
		{"namespaces in a pool for workloads", pool, "p",
			`cidr: 10.0.0.0/24, allowedUses: [Workload], namespaceSelector: has(a)`, ""},
		{"link-local pool", pool, "p", `cidr: 169.254.8.0/24`, "overlaps the link-local range 169.254.0.0/16"},
		{"pool around link-local addresses", pool, "p", `cidr: 169.0.0.0/8`, "overlaps the link-local range"},
		{"name", pool, "Big", `cidr: 10.0.0.0/24`, `metadata.name = "Big"`},
		{"tier with a default action", KindTier, "t", `defaultAction: Allow`,
			`spec.defaultAction = "Allow": must be one of Deny, Pass`},
		{"built-in tier as it is", KindTier, "kube-admin", `order: 1000, defaultAction: Pass`, ""},
		{"built-in profile", KindProfile, DefaultAllowProfile, ``, "metadata.name"},
		{"only one cluster information", KindClusterInformation, "other", ``, `must be "default"`},
		{"sections of controllers", KindKubeControllers, "default",
			`controllers: {node: {hostEndpoint: {templates: [{generateName: a, interfaceCIDRs: [10.0.0.0/8, 10.1.1.1]}, {generateName: b, interfacePattern: "eth[0-9]"}]}}}`, ""},
		{"template without a name", KindKubeControllers, "default",
			`controllers: {node: {hostEndpoint: {templates: [{interfacePattern: eth0}]}}}`,
			"spec.controllers.node.hostEndpoint.templates[0].generateName"},
		{"templates of one name", KindKubeControllers, "default",
			`controllers: {node: {hostEndpoint: {templates: [{generateName: a, interfacePattern: eth0}, {generateName: a, interfacePattern: eth1}]}}}`, "templates[1].generateName"},
		{"template of no interface", KindKubeControllers, "default",
			`controllers: {node: {hostEndpoint: {templates: [{generateName: a}]}}}`, "templates[0].interfacePattern"},
		{"template with a bad pattern", KindKubeControllers, "default",
			`controllers: {node: {hostEndpoint: {templates: [{generateName: a, interfacePattern: "eth["}]}}}`,
			"templates[0].interfacePattern"},
		{"which services get addresses", KindKubeControllers, "default",
			`controllers: {loadBalancer: {assignIPs: Some}}`,
			`spec.controllers.loadBalancer.assignIPs = "Some": must be one of AllServices, RequestedServicesOnly`},
		{"cooldown", KindIPAMConfiguration, "default", `strictAffinity: false, ipCooldownSeconds: 1201`,
			"spec.ipCooldownSeconds"},
		{"selector of a default felix configuration", KindFelixConfiguration, "default", `nodeSelector: all()`,
			"spec.nodeSelector"},
		{"names of node ports", KindFelixConfiguration, "default", `kubeNodePortRanges: ["30000:32767", web]`,
			`spec.kubeNodePortRanges[1] = "web"`},
		{"pattern of interfaces", KindFelixConfiguration, "default", `mtuIfacePattern: "("`, "spec.mtuIfacePattern"},
		{"health reporter", KindFelixConfiguration, "node.z", `healthTimeoutOverrides: [{name: "a*b", timeout: 1s}]`,
			"spec.healthTimeoutOverrides[0].name"},
		{"bare reservation", KindIPReservation, "r", `reservedCIDRs: [10.0.0.5]`, "spec.reservedCIDRs[0]"},
		{"node with AS only", KindNode, "n1", `bgp: {asNumber: 4200000001}`, ""},
		{"cluster ID", KindNode, "n1", `bgp: {routeReflectorClusterID: one}`, "spec.bgp.routeReflectorClusterID"},
		{"WireGuard key", KindNode, "n1", `wireguard: {interfaceIPv4Address: "fd00::1"}`,
			"spec.wireguard.interfaceIPv4Address"},
	} {
		t.Run(c.rule, func(t *testing.T) {
			objects, err := DecodeDocument([]byte("{apiVersion: projectcalico.org/v3, kind: " + string(c.kind) +
				", metadata: {name: " + c.name + "}, spec: {" + c.spec + "}}"))
			if err != nil {
				t.Fatal(err)
			}
			err = PrepareCreate(objects[0], testTime)
			var invalid *InvalidError
			switch {
			case c.want == "" && err != nil:
				t.Errorf("refused: %v", err)
			case c.want != "" && (!errors.As(err, &invalid) || !strings.Contains(err.Error(), c.want)):
				t.Errorf("%v; want %q", err, c.want)
			}
		})
	}
}

func TestImmutableFieldsOfPools(t *testing.T) {
	key := ResourceKey(KindIPPool, "p")
	old := Decode(key, []byte(`{"metadata":{"name":"p"},"spec":{"cidr":"fd00:0::/64","allowedUses":["LoadBalancer"]}}`),
		4)
	for _, c := range []struct {
		rule   string
		change func(*IPPool)
		want   string
	}{
		{"the spelling of the CIDR", func(p *IPPool) { p.Spec.CIDR = "FD00::/64" }, ""},
		{"the CIDR", func(p *IPPool) { p.Spec.CIDR = "fd01::/64" }, "spec.cidr"},
		{"the block size to its default", func(p *IPPool) { p.Spec.BlockSize = 122 }, ""},
		{"the block size", func(p *IPPool) { p.Spec.BlockSize = 123 }, "spec.blockSize"},
		{"the use", func(p *IPPool) { p.Spec.AllowedUses = []v3.IPPoolAllowedUse{"Workload"} }, "spec.allowedUses"},
	} {
		o := old.Clone()
		c.change(o.Value.(*IPPool))
		err := PrepareUpdate(o)
		if (err == nil) != (c.want == "") || (err != nil && !strings.Contains(err.Error(), c.want)) {
			t.Errorf("changing %s: %v", c.rule, err)
		}
	}
}

func TestIdentityOfNewObjects(t *testing.T) {
	key := Key{Kind: KindWorkloadEndpoint, Namespace: "shop"}
	o := NewObject(key, &WorkloadEndpoint{Spec: WorkloadEndpointSpec{
		Orchestrator: "k8s", Node: "node-1", Pod: "web-0", Endpoint: "eth0", InterfaceName: "cali1"}})
	o.Metadata().SetLabels(map[string]string{"app": "web", LabelNamespace: "forged"})
	if err := PrepareCreate(o, testTime); err != nil {
		t.Fatal(err)
	}
	w := o.Value.(*WorkloadEndpoint)
	if o.Key.Name != "node--1-k8s-web--0-eth0" || w.Name != o.Key.Name || w.Namespace != "shop" {
		t.Errorf("named %s, %s/%s", o.Key, w.Namespace, w.Name)
	}
	if w.Kind != "WorkloadEndpoint" || w.APIVersion != "projectcalico.org/v3" {
		t.Errorf("typed %s %s", w.APIVersion, w.Kind)
	}
	want := map[string]string{"app": "web", LabelNamespace: "shop", LabelOrchestrator: "k8s"}
	if !reflect.DeepEqual(w.Labels, want) {
		t.Errorf("labelled %v", w.Labels)
	}
	uid, created := w.UID, w.CreationTimestamp
	if err := PrepareCreate(o, testTime.Add(time.Hour)); err != nil || w.UID != uid ||
		!w.CreationTimestamp.Equal(&created) {
		t.Errorf("an identity that is there must stay: %v", err)
	}
	o.Key.Name = "other"
	if err := PrepareCreate(o, testTime); err == nil || !strings.Contains(err.Error(), "metadata.name") {
		t.Errorf("key and name disagree: %v", err)
	}
	block := NewObject(Key{Kind: KindIPAMHandle, Name: "h"}, &Handle{Block: map[string]int{"10.0.0.0/26": 1}})
	if err := PrepareCreate(block, testTime); err != nil {
		t.Error(err)
	}
}

func TestPoolWithDefaults(t *testing.T) {
	old := &IPPool{Spec: IPPoolSpec{CIDR: "fd00::/48"}}
	p := old.WithDefaults()
	if p.Spec.BlockSize != 122 || p.Spec.IPIPMode != "Never" || p.Spec.VXLANMode != "Never" ||
		p.Spec.NodeSelector != "all()" ||
		len(p.Spec.AllowedUses) != 2 || *p.Spec.AssignmentMode != "Automatic" {
		t.Errorf("%+v", p.Spec)
	}
	if old.Spec.BlockSize != 0 || old.Spec.AssignmentMode != nil {
		t.Error("the pool itself was changed")
	}
	if four := (&IPPool{Spec: IPPoolSpec{CIDR: "10.0.0.0/8"}}).WithDefaults(); four.Spec.BlockSize != 26 {
		t.Errorf("%+v", four.Spec)
	}
	if set := (&IPPool{Spec: IPPoolSpec{CIDR: "10.0.0.0/8", BlockSize: 28,
		IPIPMode: "Always"}}).WithDefaults(); set.Spec.BlockSize != 28 || set.Spec.IPIPMode != "Always" {
		t.Errorf("%+v", set.Spec)
	}
}

func TestNewObjectRefusesAForeignType(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("an API type that lacks fields was taken")
		}
	}()
	NewObject(ResourceKey(KindBGPPeer, "p"), &v3.BGPPeer{})
}
