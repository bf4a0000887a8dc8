package document

import (
	"strings"
	"testing"
)

func TestDocuments(t *testing.T) {
	for _, c := range []struct {
		rule, in string
		want     string // the keys
	}{
		{"YAML documents", "# two\n---\nkind: Tier\nmetadata: {name: a}\n--- # next\nkind: Tier\n" +
			"metadata: {name: b}\n---\n", "Tier a, Tier b"},
		{"a document on the line of its mark", "--- {kind: Tier, metadata: {name: a}}\n", "Tier a"},
		{"the end mark", "kind: Tier\nmetadata: {name: a}\n...\n", "Tier a"},
		{"line ends of Windows", "kind: Tier\r\nmetadata: {name: a}\r\n---\r\nkind: Tier\r\nmetadata: {name: b}\r\n",
			"Tier a, Tier b"},
		{"JSON", `{"kind":"Tier","apiVersion":"projectcalico.org/v3","metadata":{"name":"a","creationTimestamp":null}}`,
			"Tier a"},
		{"JSON with tabs", "{\n\t\"kind\": \"Tier\",\n\t\"metadata\": {\n\t\t\"name\": \"a\"\n\t}\n}\n", "Tier a"},
		{"JSON after JSON",
			"{\"kind\":\"Tier\",\"metadata\":{\"name\":\"a\"}}\n{\"kind\":\"Tier\",\"metadata\":{\"name\":\"b\"}}\n",
			"Tier a, Tier b"},
		{"numbers and booleans where text is wanted",
			"kind: Tier\nmetadata: {name: a, labels: {zone: 1, main: true}}\n", "Tier a"},
		{"an array", `[{"kind":"Tier","metadata":{"name":"a"}},{"kind":"Node","metadata":{"name":"n"}}]`,
			"Tier a, Node n"},
		{"an array in YAML", "- kind: Tier\n  metadata: {name: a}\n- kind: Tier\n  metadata: {name: b}\n",
			"Tier a, Tier b"},
		{"a list of anything", "kind: List\napiVersion: v1\nitems:\n- kind: Tier\n  metadata: {name: a}\n", "Tier a"},
		{"a list of a kind, whose items need none", "kind: TierList\nmetadata: {resourceVersion: \"9\"}\nitems:\n" +
			"- metadata: {name: a}\n", "Tier a"},
		{"namespaces", "kind: WorkloadEndpoint\nmetadata: {name: a, namespace: shop}\n", "WorkloadEndpoint shop/a"},
		{"three dashes inside a text", "kind: Tier\nmetadata:\n  name: a\n  annotations:\n    x: |\n" +
			"      ---\n      y\n", "Tier a"},
	} {
		t.Run(c.rule, func(t *testing.T) {
			objects, err := Parse([]byte(c.in))
			if err != nil {
				t.Fatal(err)
			}
			var keys []string
			for _, o := range objects {
				keys = append(keys, o.Key.String())
			}
			if got := strings.Join(keys, ", "); got != c.want {
				t.Errorf("read %s, want %s", got, c.want)
			}
		})
	}
}

func TestRevisionOfADocument(t *testing.T) {
	for kind, versions := range map[string][]string{"Tier": {"77"}, "Profile": {"77", "77/", "/77"}} {
		for _, v := range versions {
			objects, err := Parse([]byte(`{kind: ` + kind + `, metadata: {name: a, resourceVersion: "` + v +
				`"}}`))
			if err != nil || objects[0].Revision != 77 {
				t.Errorf("%s %s: %v, %v", kind, v, objects, err)
			}
		}
	}
}

func TestMistakesInDocuments(t *testing.T) {
	const first = "kind: Tier\nmetadata: {name: a}\n---\n"
	for _, c := range []struct {
		rule, in string
		want     []string
	}{
		{"unknown field", first + "kind: BGPPeer\nmetadata:\n  name: b\nspec:\n  peerIp: 10.0.0.1\n",
			[]string{"document 2, line 8: spec.peerIp: there is no such field here"}},
		{"in JSON after JSON", "{\"kind\":\"Tier\",\"metadata\":{\"name\":\"a\"}}\n\n{\"kind\":\"Pigeon\"}\n",
			[]string{"document 2, line 3: kind"}},
		{"all unknown fields", "kind: BGPPeer\nmetadata: {name: b}\nfoo: 1\nspec:\n  peerIP: 10.0.0.1\n  bar: 1\n",
			[]string{"document 1, line 3: foo:", "document 1, line 6: spec.bar:"}},
		{"unknown field in a list element", "kind: Node\nmetadata: {name: b}\nspec:\n  addresses:\n" +
			"  - address: 10.0.0.1\n  - address: 10.0.0.2\n    kind: x\n",
			[]string{"line 7: spec.addresses[1].kind"}},
		{"unknown field in an item", "kind: List\nitems:\n- kind: Tier\n  metadata: {name: a}\n- kind: Tier\n" +
			"  metadata: {name: b}\n  spec:\n    x: 1\n",
			[]string{"document 1, line 8: spec.x"}},
		{"letter case matters", "kind: BGPPeer\nmetadata: {name: b}\nspec: {PeerIP: 10.0.0.1}\n",
			[]string{"line 3: spec.PeerIP"}},
		{"a field twice", "kind: Tier\nmetadata:\n  name: a\n  name: b\n", []string{"document 1", "line 4", "name"}},
		{"a field twice in JSON", "{\"kind\":\"Tier\",\n\"metadata\":{\"name\":\"a\",\n\"name\":\"b\"}}",
			[]string{"document 1", "metadata.name: the field is there twice"}},
		{"unknown field in JSON with tabs", "{\n\t\"kind\": \"Tier\",\n\t\"spec\": {\n\t\t\"x\": 1\n\t}\n}\n",
			[]string{"line 4: spec.x"}},
		{"wrong type", first + "kind: IPPool\nmetadata: {name: b}\nspec:\n  cidr: 10.0.0.0/8\n  natOutgoing: \"no\"\n",
			[]string{"document 2, line 8: spec.natOutgoing = \"no\": must be true or false"}},
		{"a port of no range, and all other mistakes", "kind: GlobalNetworkPolicy\nmetadata: {name: b}\nspec:\n" +
			"  order: first\n  ingress:\n  - action: Allow\n    source:\n      ports: [80, \"9:3\", 70000]\n  bar: 1\n",
			[]string{`line 4: spec.order = "first": must be a number`,
				`line 8: spec.ingress[0].source.ports[1] = "9:3": must be a port from 0 to 65535, a range like 80:90`,
				`line 8: spec.ingress[0].source.ports[2] = 70000: must be a port`, "line 9: spec.bar: there is no such"}},
		{"a range of ports that is none", "kind: FelixConfiguration\nmetadata: {name: default}\nspec:\n" +
			"  natPortRange: \"9:3\"\n", []string{`line 4: spec.natPortRange = "9:3": must be a port`}},
		{"an AS number out of range", "kind: BGPPeer\nmetadata: {name: b}\nspec:\n  asNumber: 4294967296\n",
			[]string{"line 4: spec.asNumber = 4294967296: must be an AS number: 0 to 4294967295"}},
		{"number out of range", "kind: BGPConfiguration\nmetadata: {name: b}\nspec:\n  listenPort: 70000\n",
			[]string{"line 4: spec.listenPort"}},
		{"unknown kind", first + "kind: Teer\nmetadata: {name: b}\n",
			[]string{`document 2, line 4: kind = "Teer" is not known: did you mean Tier?`}},
		{"kind like none", first + "kind: Pigeon\nmetadata: {name: b}\n",
			[]string{`document 2, line 4: kind = "Pigeon": must be one of Node, IPPool`}},
		{"kind of another product", first + "apiVersion: cilium.io/v2\nkind: CiliumBGPClusterConfig\n",
			[]string{`document 2, line 5: kind = "CiliumBGPClusterConfig" is not known: it is another product's; the ` +
				"kind for that is BGPPeer here"}},
		{"kind that users do not write", "kind: IPAMBlock\n", []string{`kind = "IPAMBlock"`}},
		{"no kind", "metadata: {name: b}\n", []string{"document 1, line 1: kind is missing"}},
		{"API version", "kind: Tier\napiVersion: projectcalico.org/v9\n",
			[]string{`line 2: apiVersion = "projectcalico.org/v9"`}},
		{"not YAML", first + "kind: {\n", []string{"document 2", "neither YAML nor JSON"}},
		{"no object", "just text\n", []string{"document 1, line 1: must be an object"}},
		{"nothing", "# nothing\n---\n", []string{"there is no object in the input"}},
		{"revision", "kind: Tier\nmetadata:\n  name: a\n  resourceVersion: x\n",
			[]string{`line 4: metadata.resourceVersion = "x"`}},
		{"revision of two kinds", "kind: Profile\nmetadata:\n  name: a\n  resourceVersion: 7/8\n",
			[]string{`line 4: metadata.resourceVersion = "7/8"`}},
		{"mistakes in several documents", "kind: A\n---\nkind: B\n",
			[]string{`document 1, line 1: kind = "A"`, `document 2, line 3: kind = "B"`}},
	} {
		t.Run(c.rule, func(t *testing.T) {
			objects, err := Parse([]byte(c.in))
			if err == nil {
				t.Fatalf("read %v", objects)
			}
			for _, w := range c.want {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("%q lacks %q", err, w)
				}
			}
		})
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{"kind: Tier\nmetadata: {name: a}\n---\n", `[{"kind":"Node"}]`,
		"kind: List\nitems: [1]\n", "--- |\n x\n", "&a [*a]", "a: &b {<<: *b}"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		objects, err := Parse(in)
		if (err == nil) == (len(objects) == 0) {
			t.Errorf("%d objects, %v", len(objects), err)
		}
	})
}
