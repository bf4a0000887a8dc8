package form

import (
	"encoding/json"
	"net/netip"
	"strings"
	"testing"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"

	"github.com/manxnet/manx/datastore/codec"
	"github.com/manxnet/manx/datastore/model"
)

func decode(t *testing.T, g Group, k model.Kind, raw string) *model.Object {
	t.Helper()
	o, err := Decode(g, k, []byte(raw))
	if err != nil {
		t.Fatal(err)
	}
	return o
}

func encode(t *testing.T, g Group, o *model.Object) map[string]any {
	t.Helper()
	raw, err := Encode(g, o)
	if err != nil {
		t.Fatal(err)
	}
	var top map[string]any
	if err := json.Unmarshal(raw, &top); err != nil {
		t.Fatal(err)
	}
	return top
}

// at follows the names of members.
func at(t *testing.T, v any, names ...string) any {
	t.Helper()
	for _, n := range names {
		m, _ := v.(map[string]any)
		v = m[n]
	}
	return v
}

func TestUID(t *testing.T) {
	const custom, seen = "0f3ac7de-9b21-4c55-8f10-2b6d1a9e7c04", "f05ce37b-d984-4caa-8f08-d4b658793e20"
	if UID(V1, custom) != seen || UID(V1, seen) != custom || UID(V3, custom) != custom ||
		UID(V1, "no uuid") != "no uuid" {
		t.Errorf("%s, %s, %s, %s", UID(V1, custom), UID(V1, seen), UID(V3, custom), UID(V1, "no uuid"))
	}
}

func TestResources(t *testing.T) {
	for _, c := range []struct {
		kind   model.Kind
		v1, v3 string // "" for none
		status bool
	}{
		{model.KindNode, "", "", false}, {model.KindProfile, "", "", false},
		{model.KindWorkloadEndpoint, "", "", false},
		{model.KindPod, "", "", false}, {model.KindKubernetesNetworkPolicy, "", "", false}, {"Stranger", "", "", false},
		{model.KindBGPPeer, "bgppeers", "bgppeers", false}, {model.KindIPPool, "ippools", "ippools", true},
		{model.KindTier, "tiers", "tiers", true}, {model.KindCalicoNodeStatus, "caliconodestatuses",
			"caliconodestatuses", true},
		{model.KindIPAMConfig, "ipamconfigs", "ipamconfigurations", false},
		{model.KindIPAMConfiguration, "ipamconfigs", "ipamconfigurations", false},
		{model.KindBlockAffinity, "blockaffinities", "blockaffinities", false},
	} {
		for g, plural := range map[Group]string{V1: c.v1, V3: c.v3} {
			r, ok := CustomResource(g, c.kind)
			if ok != (plural != "") || r.Plural != plural || r.Status != c.status || ok &&
				r.Group+"/"+r.Version != string(g) {
				t.Errorf("%s %s: %+v, %v", g, c.kind, r, ok)
			}
		}
	}
}

func affinity(typ model.AffinityType, host, cidr string) model.Key {
	return model.AffinityKey(model.Affinity{Type: typ, Host: host, CIDR: netip.MustParsePrefix(cidr)})
}

func TestNames(t *testing.T) {
	long := strings.Repeat("n", 240)
	for _, c := range []struct {
		key  model.Key
		want string
	}{
		{model.BlockKey(netip.MustParsePrefix("192.168.9.64/26")), "192-168-9-64-26"},
		{model.BlockKey(netip.MustParsePrefix("fd00:9::40/122")), "fd00-9--40-122"},
		{model.BlockKey(netip.MustParsePrefix("fd00:10:244::/122")), "fd00-10-244---122"},
		{model.BlockKey(netip.MustParsePrefix("1:2:3:4:5:6:7:0/116")), "1-2-3-4-5-6-7-0-116"},
		{affinity("host", "node-1", "192.168.9.64/26"), "node-1-192-168-9-64-26"},
		{affinity("virtual", "load-balancer", "fd00::/122"), "load-balancer-fd00---122"},
		// 240 + 1 + 11 characters are one less than the most, and one more is hashed.
		{affinity("host", long, "10.0.0.0/26"), long + "-10-0-0-0-26"},
		{affinity("host", long+"n", "10.0.0.0/26"), strings.Repeat("n", 228) + "-10-0-0-0-26-d6cfd52524f"},
		{model.HandleKey("k8s-pod-network.AbC"), "k8s-pod-network.abc"},
		{model.IPAMConfigKey, "default"},
		{model.Key{Kind: model.KindNetworkPolicy, Namespace: "n", Name: "p"}, "p"},
	} {
		if have, err := Name(c.key); err != nil || have != c.want {
			t.Errorf("%s: %q (%d), %v", c.key, have, len(have), err)
		}
	}
	for _, k := range []model.Key{
		{Kind: model.KindIPAMBlock, Name: "cow"}, {Kind: model.KindBlockAffinity, Name: "host/10.0.0.0/26"},
		affinity("host", "", "10.0.0.0/26"),
		{Kind: model.KindIPAMHandle}, {Kind: model.KindBGPPeer},
	} {
		if have, err := Name(k); err == nil {
			t.Errorf("%s: %q", k, have)
		}
	}
}

// Shortened names must be distinct, and fit.
func TestLongNamesDiffer(t *testing.T) {
	long := strings.Repeat("n", 252)
	seen := map[string]bool{}
	for _, host := range []string{long, long + "a", long + "b"} {
		for _, cidr := range []string{"10.0.0.0/26", "255.255.255.192/26",
			"fd00:1111:2222:3333:4444:5555:6666:7700/122"} {
			name, err := Name(affinity("host", host, cidr))
			if err != nil || len(name) > 252 || seen[name] {
				t.Errorf("%d characters: %s, %v", len(name), name, err)
			}
			seen[name] = true
		}
	}
}

func TestAffinityLabels(t *testing.T) {
	want := "projectcalico.org/affinity-type=host,projectcalico.org/hostname-hash=" +
		"7DS2CCNJGGLTHBDQLLFO6SX24SY2YDDEG3W2VN556FA2W4DLLV5A"
	if have := AffinitySelector("host/node1"); have != want {
		t.Error(have)
	}
	for g, deleted := range map[Group]any{V1: "false", V3: false} {
		// An affinity of an old release has no labels. An update adds them and keeps all other fields.
		o := decode(t, g, model.KindBlockAffinity,
			`{"metadata":{"name":"node1-fd00---122","resourceVersion":"7","uid":"u","labels":{"own":"x"},
			"annotations":{"a":"b"},"finalizers":["f"],"ownerReferences":[{"apiVersion":"v1","kind":"Node","name":"node1","uid":"n"}]},
			"spec":{"cidr":"fd00::/122","node":"node1","state":"confirmed","stranger":1}}`)
		if o.Err != nil || o.Key != affinity("host", "node1", "fd00::/122") {
			t.Fatal(o)
		}
		top := encode(t, g, o)
		if at(t, top, "metadata", "labels", "projectcalico.org/ip-version") != "6" ||
			at(t, top, "metadata", "labels", "own") != "x" ||
			at(t, top, "metadata", "annotations", "a") != "b" ||
			len(at(t, top, "metadata", "finalizers").([]any)) != 1 ||
			len(at(t, top, "metadata", "ownerReferences").([]any)) != 1 ||
			at(t, top, "spec", "type") != "host" || at(t, top, "spec", "deleted") != deleted ||
			at(t, top, "spec", "stranger") != 1.0 {
			t.Errorf("%s: %v", g, top)
		}
	}
}

// A new block has the required lists of its custom resource.
func TestNewBlock(t *testing.T) {
	cidr := netip.MustParsePrefix("10.0.0.0/30")
	raw, err := Encode(V1, model.NewObject(model.BlockKey(cidr), &model.Block{CIDR: cidr, Allocations: make([]*int, 4),
		SequenceNumber: 1795215910015272413}))
	want := `{"apiVersion":"crd.projectcalico.org/v1","kind":"IPAMBlock","metadata":{"name":"10-0-0-0-30","annotations":{"projectcalico.org/metadata":"{}"}},` +
		`"spec":{"allocations":[null,null,null,null],"attributes":[],"cidr":"10.0.0.0/30","deleted":false,"sequenceNumber":1795215910015272413,` +
		`"sequenceNumberForAllocation":{},"strictAffinity":false,"unallocated":[]}}`
	if err != nil || string(raw) != want {
		t.Errorf("%v\n%s\n%s", err, raw, want)
	}
}

// The allocator's configuration and the one that users see are the same custom resource.
func TestConfigurationHasTwoViews(t *testing.T) {
	for g, kind := range map[Group]string{V1: "IPAMConfig", V3: "IPAMConfiguration"} {
		o := model.NewObject(model.ResourceKey(model.KindIPAMConfiguration, "default"), &model.IPAMConfiguration{})
		o.Value.(*model.IPAMConfiguration).Spec.StrictAffinity = true
		if err := codec.PrepareCreate(o, testTime); err != nil {
			t.Fatal(err)
		}
		o.Revision = 3
		raw, err := Encode(g, o)
		if err != nil {
			t.Fatal(err)
		}
		c := decode(t, g, model.KindIPAMConfig, string(raw))
		if v := c.Value.(*model.IPAMConfig); c.Key != model.IPAMConfigKey || !v.StrictAffinity ||
			!v.AutoAllocateBlocks {
			t.Errorf("%+v", v)
		}
		c = c.Clone()
		c.Value.(*model.IPAMConfig).StrictAffinity = false
		top := encode(t, g, c)
		if top["kind"] != kind || at(t, top, "spec", "strictAffinity") != false ||
			at(t, top, "spec", "autoAllocateBlocks") != true {
			t.Errorf("%v", top)
		}
		raw, _ = Encode(g, c)
		again := decode(t, g, model.KindIPAMConfiguration, string(raw))
		if v := again.Value.(*model.IPAMConfiguration); v.Spec.StrictAffinity || g == V1 &&
			v.CreationTimestamp.IsZero() {
			t.Errorf("the view of users lost something: %+v", v)
		}
	}
}

// Policies have been stored under two names, and group V1 may hold any name beside that of the custom resource.
func TestPolicyNames(t *testing.T) {
	for _, c := range []struct {
		group                   Group
		stored, annotations     string
		tier, want, wantWritten string
	}{
		{V1, "p", `"projectcalico.org/metadata":"{\"name\":\"p\"}"`, "default", "p", "p"},
		{V1, "default.p", `"projectcalico.org/metadata":"{\"name\":\"p\"}"`, "default", "p", "p"},
		{V1, "default.p", `"projectcalico.org/metadata":"{\"name\":\"default.p\"}"`, "default", "default.p",
			"default.p"},
		{V1, "default.p", `"projectcalico.org/metadata":"{}"`, "", "p", "p"},
		{V1, "default.p", `"projectcalico.org/metadata":"{}"`, "other", "default.p", "default.p"},
		{V1, "default.p", ``, "default", "default.p", "default.p"}, // written with kubectl
		{V3, "default.p", ``, "default", "default.p", ""},
		{V3, "p", `"projectcalico.org/metadata":"{\"name\":\"q\"}"`, "default", "p", ""},
	} {
		o := decode(t, c.group, model.KindGlobalNetworkPolicy, `{"metadata":{"name":"`+c.stored+
			`","resourceVersion":"1","annotations":{`+c.annotations+
			`}},"spec":{"tier":"`+c.tier+`"}}`)
		p := o.Value.(*v3.GlobalNetworkPolicy)
		if o.Key.Name != c.stored || p.Name != c.want || p.Annotations != nil || o.Err != nil {
			t.Errorf("%+v: key %s, %+v", c, o.Key, p.ObjectMeta)
		}
		top := encode(t, c.group, o)
		folded, _ := at(t, top, "metadata", "annotations", annotationFolded).(string)
		var written metadata
		_ = json.Unmarshal([]byte(folded), &written)
		if at(t, top, "metadata", "name") != c.stored || written.Name != c.wantWritten {
			t.Errorf("%+v: written as %v", c, top["metadata"])
		}
	}
}

// Labels and annotations of the custom resource itself are visible too; the folded ones take precedence. Invisible
// metadata stays.
func TestMetadataOfCustomResource(t *testing.T) {
	o := decode(t, V1, model.KindBGPPeer,
		`{"metadata":{"name":"x","resourceVersion":"9","uid":"0f3ac7de-9b21-4c55-8f10-2b6d1a9e7c04",
		"creationTimestamp":"2026-01-01T00:00:00Z","generation":4,"managedFields":[{"manager":"m"}],"finalizers":["own"],
		"labels":{"a":"own","b":"own","projectcalico.org/x":"own"},"ownerReferences":[{"apiVersion":"v1","kind":"Pod","name":"p","uid":"u"}],
		"annotations":{"c":"own","projectcalico.org/metadata":
		"{\"labels\":{\"a\":\"folded\"},\"finalizers\":[\"folded\"],\"ownerReferences\":[{\"apiVersion\":\"crd.projectcalico.org/v1\",\"kind\":\"Tier\",\"name\":\"t\",\"uid\":\"0f3ac7de-9b21-4c55-8f10-2b6d1a9e7c04\"}]}"}},
		"spec":{"peerIP":"10.0.0.1","asNumber":1,"stranger":{"x":1}}}`)
	if o.Err != nil {
		t.Fatal(o.Err)
	}
	m := o.Value.(*model.BGPPeer).ObjectMeta
	if m.Labels["a"] != "folded" || m.Labels["b"] != "own" || m.Annotations["c"] != "own" ||
		m.Finalizers[0] != "folded" || m.CreationTimestamp.IsZero() ||
		m.UID != "f05ce37b-d984-4caa-8f08-d4b658793e20" || len(m.OwnerReferences) != 1 ||
		m.OwnerReferences[0].APIVersion != string(V3) ||
		m.OwnerReferences[0].UID != m.UID || len(m.ManagedFields) > 0 || m.Generation != 0 {
		t.Errorf("%+v", m)
	}
	changed := o.Clone()
	changed.Value.(*model.BGPPeer).Spec.PeerIP = "10.0.0.2"
	fresh := model.NewObject(o.Key, &model.BGPPeer{Spec: changed.Value.(*model.BGPPeer).Spec})
	fresh.Replaces(o)
	fresh.Revision = o.Revision
	for _, o := range []*model.Object{changed, fresh} {
		top := encode(t, V1, o)
		own := parse[metadata](t, mustJSON(t, top["metadata"]))
		if own.UID != "0f3ac7de-9b21-4c55-8f10-2b6d1a9e7c04" || own.ResourceVersion != "9" ||
			own.Finalizers[0] != "own" || own.OwnerReferences[0].Name != "p" ||
			own.Labels["a"] != "" || at(t, top, "spec", "stranger", "x") != 1.0 ||
			at(t, top, "spec", "peerIP") != "10.0.0.2" {
			t.Errorf("%v", top)
		}
		if _, leaked := top[memberHidden]; leaked {
			t.Error("what is hidden was written")
		}
		if o == fresh {
			continue // it has no labels
		}
		if own.Labels["projectcalico.org/x"] != "own" {
			t.Errorf("labels of Calico's programs: %v", own.Labels)
		}
		folded := parse[metadata](t, []byte(own.Annotations[annotationFolded]))
		if folded.Labels["b"] != "own" || folded.Finalizers[0] != "folded" ||
			folded.OwnerReferences[0].APIVersion != string(V1) ||
			folded.OwnerReferences[0].UID != "0f3ac7de-9b21-4c55-8f10-2b6d1a9e7c04" || folded.UID != "" ||
			folded.ResourceVersion != "" {
			t.Errorf("folded %+v", folded)
		}
	}
}

// A pool under deletion is recognised, and its mark is not folded: a new pool of the same name would inherit it.
func TestDeletionTimestamp(t *testing.T) {
	o := decode(t, V1, model.KindIPPool,
		`{"metadata":{"name":"x","resourceVersion":"9","deletionTimestamp":"2026-01-01T00:00:00Z",
		"annotations":{"projectcalico.org/metadata":"{}"}},"spec":{"cidr":"10.0.0.0/16"}}`)
	if o.Metadata().GetDeletionTimestamp() == nil {
		t.Error("not seen")
	}
	if folded := at(t, encode(t, V1, o), "metadata", "annotations", annotationFolded).(string); strings.Contains(folded,
		"deletion") {
		t.Error(folded)
	}
	o = decode(t, V1, model.KindIPPool,
		`{"metadata":{"name":"x","resourceVersion":"9","annotations":{"projectcalico.org/metadata":
		"{\"deletionTimestamp\":\"2026-01-01T00:00:00Z\"}"}},"spec":{"cidr":"10.0.0.0/16"}}`)
	if folded := at(t, encode(t, V1, o), "metadata", "annotations", annotationFolded).(string); !strings.Contains(
		folded, "deletion") {
		t.Error("a deletion by way of Calico's API server is undone: " + folded)
	}
}

// An invalid custom resource is shown with the reason, and never used.
func TestWrongCustomResources(t *testing.T) {
	huge := strings.Repeat("x", 1<<20)
	for _, c := range []struct {
		kind       model.Kind
		name, rest string // of metadata, with spec
		want       string
	}{
		{model.KindBGPPeer, "x", `,"annotations":{"projectcalico.org/metadata":"{"}},"spec":{}`,
			"projectcalico.org/metadata"},
		{model.KindBGPPeer, "x", `,"annotations":{"projectcalico.org/metadata":"` + huge + `"}},"spec":{}`,
			"projectcalico.org/metadata"},
		{model.KindBGPPeer, "x", `,"annotations":{"projectcalico.org/metadata":"{\"labels\":{\"a\":1}}"}},"spec":{}`,
			"projectcalico.org/metadata"},
		{model.KindBGPPeer, "x", `},"spec":{"asNumber":"cow"}`, "cow"},
		{model.KindBGPPeer, "x", `},"spec":[]`, "array"},
		{model.KindIPAMBlock, "10-0-0-0-30", `}`, "spec"},
		{model.KindIPAMBlock, "10-0-0-0-30", `},"spec":{"cidr":7}`, "spec.cidr"},
		{model.KindIPAMBlock, "10-0-0-0-30", `},"spec":{"cidr":"cow"}`, "spec.cidr"},
		{model.KindIPAMBlock, "10-0-0-0-30", `},"spec":{"cidr":"10.0.0.4/30"}`, `must be "10-0-0-4-30"`},
		{model.KindIPAMBlock, "10-0-0-0-30", `},"spec":{"cidr":"10.0.0.0/30","allocations":[9]}`, "allocations"},
		{model.KindBlockAffinity, "h-10-0-0-0-30", `},"spec":{"cidr":"10.0.0.0/30","node":"h","deleted":"perhaps"}`,
			"spec.deleted"},
		{model.KindBlockAffinity, "h-10-0-0-0-30", `},"spec":{"cidr":"10.0.0.0/30","node":"h","deleted":true}`,
			"spec.deleted"},
		{model.KindBlockAffinity, "h-10-0-0-0-30", `},"spec":{"cidr":"10.0.0.0/30","node":"other"}`, "metadata.name"},
		{model.KindBlockAffinity, "h-10-0-0-0-30", `},"spec":{"cidr":"10.0.0.0/30","node":"h","state":"so-so"}`,
			"state"},
		{model.KindIPAMHandle, "h", `},"spec":{"handleID":"other"}`, "metadata.name"},
		{model.KindIPAMHandle, "h", `},"spec":{"handleID":"H","block":{"cow":1}}`, "block"},
	} {
		o := decode(t, V1, c.kind, `{"metadata":{"name":"`+c.name+`","resourceVersion":"4"`+c.rest+`}`)
		if o.Err == nil || !strings.Contains(o.Err.Error(), c.want) || len(o.Err.Error()) > 400 || o.Revision != 4 ||
			o.Key.Name == "" {
			t.Errorf("%s %.100s: %.500v", c.kind, c.rest, o.Err)
		}
	}
	for _, raw := range []string{
		``, `null`, `[]`, `{`, `{}`, `{"metadata":{}}`, `{"metadata":{"name":"x"}}`,
		`{"metadata":{"name":"x","resourceVersion":"0"}}`,
		`{"metadata":{"name":"x","resourceVersion":"1e3"}}`, `{"metadata":{"name":7,"resourceVersion":"1"}}`,
		`{"metadata":{"name":"x","namespace":"n","resourceVersion":"1"}}`,
	} {
		if o, err := Decode(V1, model.KindBGPPeer, []byte(raw)); err == nil {
			t.Errorf("%s: %+v", raw, o)
		}
	}
	if _, err := Decode(V1, model.KindNode, []byte(`{"metadata":{"name":"x","resourceVersion":"1"}}`)); err == nil {
		t.Error("a Node is no custom resource")
	}
}
