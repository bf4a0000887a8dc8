package codec

import (
	"bytes"
	"net/netip"
	"reflect"
	"strings"
	"testing"

	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/integration/jsonlines"
)

// The files in testdata were written by unmodified Calico programs.

// stored is one line of objects.jsonl or history.jsonl.
type stored struct {
	Op, Key, Raw string
}

func exact(t testing.TB, b []byte) any {
	t.Helper()
	v, err := decodeExact(b)
	if err != nil {
		t.Fatalf("%v: %s", err, b)
	}
	return v
}

// storedKey returns the key of an object of the test data, from the path at which Calico stored it in etcd. It parses
// the paths of the test data alone; datastore/etcd has the rules.
func storedKey(path string) model.Key {
	part := strings.Split(path, "/")[1:]
	switch {
	case part[1] == "resources":
		for _, i := range model.Kinds() {
			if k := (model.Key{Kind: i.Kind, Name: part[len(part)-1]}); i.Plural == part[4] && i.Namespaced {
				k.Namespace = part[5]
				return k
			} else if i.Plural == part[4] {
				return k
			}
		}
	case part[3] == "config":
		return model.IPAMConfigKey
	case part[3] == "handle":
		return model.HandleKey(part[4])
	}
	last := part[len(part)-1]
	dash := strings.LastIndexByte(last, '-')
	cidr := netip.MustParsePrefix(last[:dash] + "/" + last[dash+1:])
	if part[3] == "assignment" {
		return model.BlockKey(cidr)
	}
	return model.AffinityKey(model.Affinity{Type: model.AffinityType(part[3]), Host: part[4], CIDR: cidr})
}

func TestNothingOfCalicosObjectsIsLost(t *testing.T) {
	for _, file := range []string{"objects.jsonl", "history.jsonl", "nodestatus.jsonl"} {
		for _, s := range jsonlines.Read[stored](t, "testdata/"+file) {
			k := storedKey(s.Key)
			if s.Op == "delete" {
				continue
			}
			o := Decode(k, []byte(s.Raw), 7)
			if o.Err != nil {
				t.Errorf("%s is quarantined: %v", s.Key, o.Err)
				continue
			}
			same, err := Encode(o)
			if err != nil || string(same) != s.Raw {
				t.Errorf("%s: %v\n%s\nbecame\n%s", s.Key, err, s.Raw, same)
			}
			if k.Kind == model.KindStagedKubernetesNetworkPolicy && !strings.Contains(s.Raw, "policyTypes") {
				continue // Calico stores only the directions that the user named; Manx stores all
			}
			fresh, err := Encode(model.NewObject(k, o.Value))
			if err != nil {
				t.Fatal(err)
			}
			if got, want := exact(t, fresh), withoutNewFields(exact(t, []byte(s.Raw))); !reflect.DeepEqual(
				withoutNewFields(got), want) {
				t.Errorf("%s: our types lose something of\n%s\nin\n%s", s.Key, s.Raw, fresh)
			}
		}
	}
}

// withoutNewFields removes the empty fields that the types of Calico's API module print.
func withoutNewFields(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for name, x := range v {
			if x = withoutNewFields(x); (name == "source" || name == "destination") &&
				reflect.DeepEqual(x, map[string]any{}) {
				delete(v, name)
			}
		}
	case []any:
		for _, x := range v {
			withoutNewFields(x)
		}
	}
	return v
}

// A value that was never decoded must encode to Calico's bytes, so that no tool sees a difference.
func TestFreshObjectsHaveCalicosBytes(t *testing.T) {
	for _, s := range jsonlines.Read[stored](t, "testdata/objects.jsonl") {
		k := storedKey(s.Key)
		if k.Kind == model.KindFelixConfiguration {
			continue // the API module's type, with other fields in another order
		}
		got, err := Encode(model.NewObject(k, Decode(k, []byte(s.Raw), 1).Value))
		if err != nil || string(got) != s.Raw {
			t.Errorf("%s: %v\n%s\nbecame\n%s", s.Key, err, s.Raw, got)
		}
	}
}

func TestSequenceNumbersStayExact(t *testing.T) {
	const number = 1<<63 + 12345 // no float64 and no int64 holds it
	raw := `{"cidr":"10.0.0.0/30","affinity":null,"allocations":[0,null,null,null],"unallocated":[1,2,3],"attributes":[{"handle_id":"h"}],` +
		`"sequenceNumber":9223372036854788153,"sequenceNumberForAllocation":{"0":9223372036854788152},"newer":9223372036854788151,"deleted":false}`
	o := Decode(model.Key{Kind: model.KindIPAMBlock, Name: "10.0.0.0/30"}, []byte(raw), 1)
	b := o.Value.(*model.Block)
	if o.Err != nil || b.SequenceNumber != number || b.SequenceNumberForAllocation["0"] != number-1 {
		t.Fatalf("%v: %+v", o.Err, b)
	}
	c := o.Clone()
	c.Value.(*model.Block).SequenceNumber++
	got, err := Encode(c)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"sequenceNumber":9223372036854788154,`, `"0":9223372036854788152`,
		`"newer":9223372036854788151`} {
		if !strings.Contains(string(got), want) {
			t.Errorf("%s is missing in %s", want, got)
		}
	}
	if o.Value.(*model.Block).SequenceNumber != number {
		t.Error("changing the clone changed the original")
	}
}

func TestUnknownFieldsSurviveARewrite(t *testing.T) {
	for _, c := range []struct {
		rule      string
		key       model.Key
		raw, want string
		change    func(any)
	}{
		{
			"at every level of an object", model.Key{Kind: model.KindNode, Name: "n"},
			`{"top":1,"metadata":{"name":"n","meta":[1]},"spec":{"bgp":{"ipv4Address":"10.0.0.1/24","deep":{"x":"<"}},"new":[{"a":1}]},"status":{}}`,
			`{"top":1,"metadata":{"name":"n","meta":[1]},"spec":{"bgp":{"ipv4Address":"10.0.0.2/24","deep":{"x":"<"}},"new":[{"a":1}]},"status":{}}`,
			func(v any) { v.(*model.Node).Spec.BGP.IPv4Address = "10.0.0.2/24" },
		},
		{
			"beside a section that appears", model.Key{Kind: model.KindNode, Name: "n"},
			`{"metadata":{"name":"n"},"spec":{"new":true},"status":{}}`,
			`{"metadata":{"name":"n"},"spec":{"new":true,"bgp":{"ipv4Address":"10.0.0.2"}},"status":{}}`,
			func(v any) { v.(*model.Node).Spec.BGP = &model.NodeBGPSpec{IPv4Address: "10.0.0.2"} },
		},
		{
			"but not in a section that is removed", model.Key{Kind: model.KindNode, Name: "n"},
			`{"metadata":{"name":"n"},"spec":{"bgp":{"ipv4Address":"10.0.0.2","new":1}},"status":{}}`,
			`{"metadata":{"name":"n"},"spec":{},"status":{}}`,
			func(v any) { v.(*model.Node).Spec.BGP = nil },
		},
		{
			"a known field that is cleared stays cleared", model.Key{Kind: model.KindBGPPeer, Name: "p"},
			`{"metadata":{"name":"p"},"spec":{"peerIP":"10.0.0.1","asNumber":64512,"new":1,"keepOriginalNextHop":true}}`,
			`{"metadata":{"name":"p"},"spec":{"peerIP":"10.0.0.1","asNumber":64512,"new":1}}`,
			func(v any) { v.(*model.BGPPeer).Spec.KeepOriginalNextHop = false },
		},
		{
			"a known field in other letter case is no unknown one", model.Key{Kind: model.KindBGPPeer, Name: "p"},
			`{"metadata":{"name":"p"},"spec":{"PeerIP":"10.0.0.1","asnumber":1}}`,
			`{"metadata":{"name":"p"},"spec":{"peerIP":"10.0.0.2","asNumber":1}}`,
			func(v any) { v.(*model.BGPPeer).Spec.PeerIP = "10.0.0.2"; v.(*model.BGPPeer).Spec.ASNumber = 1 },
		},
		{
			"a number that was written otherwise keeps its form when another field changes",
			model.Key{Kind: model.KindBGPPeer, Name: "p"},
			`{"metadata":{"name":"p"},"spec":{"peerIP":"10.0.0.1","asNumber":"1.5"}}`,
			`{"metadata":{"name":"p"},"spec":{"peerIP":"10.0.0.2","asNumber":"1.5"}}`,
			func(v any) { v.(*model.BGPPeer).Spec.PeerIP = "10.0.0.2" },
		},
		{
			"an explicit zero does not return over a value", model.Key{Kind: model.KindIPPool, Name: "p"},
			`{"metadata":{"name":"p"},"spec":{"cidr":"10.0.0.0/16","disabled":false,"natOutgoing":false,"new":1}}`,
			`{"metadata":{"name":"p"},"spec":{"cidr":"10.0.0.0/16","disabled":true,"natOutgoing":false,"new":1}}`,
			func(v any) { v.(*model.IPPool).Spec.Disabled = true },
		},
		{
			"empty parts that our types print are not added", model.Key{Kind: model.KindProfile, Name: "p"},
			`{"metadata":{"name":"p"},"spec":{"ingress":[{"action":"Allow"}],"new":1}}`,
			`{"metadata":{"name":"p"},"spec":{"ingress":[{"action":"Allow"}],"labelsToApply":{"a":"b"},"new":1}}`,
			func(v any) { setField(v, "LabelsToApply", map[string]string{"a": "b"}) },
		},
		{
			"in list elements that stay, wherever they move", model.Key{Kind: model.KindIPAMBlock, Name: "10.0.0.0/31"},
			`{"cidr":"10.0.0.0/31","affinity":null,"allocations":[0,1],"unallocated":[],"attributes":[{"handle_id":"a","new":1},{"handle_id":"b","new":2}],"sequenceNumber":1,"sequenceNumberForAllocation":{},"deleted":false}`,
			`{"cidr":"10.0.0.0/31","affinity":null,"allocations":[null,0],"unallocated":[0],"attributes":[{"handle_id":"b","new":2}],"sequenceNumber":2,"sequenceNumberForAllocation":{},"deleted":false}`,
			func(v any) {
				b := v.(*model.Block)
				b.Attributes, b.Allocations, b.Unallocated, b.SequenceNumber = b.Attributes[1:], []*int{nil, new(int)},
					[]int{0}, 2
			},
		},
		{
			"in a list element that changes in its place", model.Key{Kind: model.KindIPAMBlock, Name: "10.0.0.0/32"},
			`{"cidr":"10.0.0.0/32","affinity":null,"allocations":[0],"unallocated":[],"attributes":[{"handle_id":"a","secondary":{"node":"x"},"new":1}],"sequenceNumber":1,"sequenceNumberForAllocation":{},"deleted":false}`,
			`{"cidr":"10.0.0.0/32","affinity":null,"allocations":[0],"unallocated":[],"attributes":[{"handle_id":"a","secondary":{"node":"y"},"new":1}],"sequenceNumber":1,"sequenceNumberForAllocation":{},"deleted":false}`,
			func(v any) { v.(*model.Block).Attributes[0].Secondary["node"] = "y" },
		},
		{
			"but not in one that takes the place of another", model.Key{Kind: model.KindIPAMBlock, Name: "10.0.0.0/32"},
			`{"cidr":"10.0.0.0/32","affinity":null,"allocations":[0],"unallocated":[],"attributes":[{"handle_id":"a","secondary":{"node":"x"},"new":1}],"sequenceNumber":1,"sequenceNumberForAllocation":{},"deleted":false}`,
			`{"cidr":"10.0.0.0/32","affinity":null,"allocations":[0],"unallocated":[],"attributes":[{"handle_id":"b","secondary":{"node":"x"}}],"sequenceNumber":1,"sequenceNumberForAllocation":{},"deleted":false}`,
			func(v any) { b := "b"; v.(*model.Block).Attributes[0].HandleID = &b },
		},
		{
			"an empty entry of very old writers", model.Key{Kind: model.KindBlockAffinity, Name: "host/n/10.0.0.0/26"},
			``, `{"state":"confirmed","deleted":false}`,
			func(v any) { v.(*model.BlockAffinity).State = model.StateConfirmed },
		},
	} {
		t.Run(c.rule, func(t *testing.T) {
			o := Decode(c.key, []byte(c.raw), 3)
			if o.Err != nil {
				t.Fatal(o.Err)
			}
			next := o.Clone()
			c.change(next.Value)
			got, err := Encode(next)
			if err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(exact(t, got), exact(t, []byte(c.want))) {
				t.Errorf("\n%s\nbecame\n%s\nwant\n%s", c.raw, got, c.want)
			}
		})
	}
}

// setField sets a field of value.Spec.
func setField(value any, name string, x any) {
	reflect.ValueOf(value).Elem().FieldByName("Spec").FieldByName(name).Set(reflect.ValueOf(x))
}

func TestReplacesKeepsWhatAUserCannotKnow(t *testing.T) {
	key := model.ResourceKey(model.KindBGPPeer, "p")
	old := Decode(key,
		[]byte(
			`{"kind":"BGPPeer","apiVersion":"projectcalico.org/v3","metadata":{"name":"p","uid":"u-1","creationTimestamp":"2026-08-01T10:00:00Z"},`+
				`"spec":{"peerIP":"10.0.0.1","asNumber":1,"nextHopMode":"Self","new":1}}`), 5)
	o := model.NewObject(key, &model.BGPPeer{Spec: model.BGPPeerSpec{PeerIP: "10.0.0.1", ASNumber: 2}})
	o.Replaces(old)
	if err := PrepareUpdate(o); err != nil {
		t.Fatal(err)
	}
	got, err := Encode(o)
	if err != nil {
		t.Fatal(err)
	}
	want := `{"kind":"BGPPeer","apiVersion":"projectcalico.org/v3","metadata":{"name":"p","uid":"u-1","creationTimestamp":"2026-08-01T10:00:00Z"},"spec":{"peerIP":"10.0.0.1","asNumber":2,"new":1}}`
	if !reflect.DeepEqual(exact(t, got), exact(t, []byte(want))) {
		t.Errorf("got %s", got)
	}
}

func TestTheKeyDecidesOnNameAndRevision(t *testing.T) {
	o := Decode(model.Key{Kind: model.KindWorkloadEndpoint, Namespace: "ns", Name: "n1-k8s-p-eth0"},
		[]byte(
			`{"metadata":{"name":"other","namespace":"elsewhere","resourceVersion":"1"},"spec":{"interfaceName":"cali1"}}`), 42)
	m := o.Metadata()
	if o.Err != nil || m.GetName() != "n1-k8s-p-eth0" || m.GetNamespace() != "ns" || m.GetResourceVersion() != "42" {
		t.Errorf("%v: %+v", o.Err, m)
	}
}

func TestEncodedObjectsHaveNoRevision(t *testing.T) {
	o := Decode(model.ResourceKey(model.KindTier, "t"), []byte(`{"metadata":{"name":"t"},"spec":{"order":1}}`), 42).Clone()
	order := 2.0
	o.Value.(*model.Tier).Spec.Order = &order
	b, err := Encode(o)
	if err != nil || bytes.Contains(b, []byte("resourceVersion")) || !bytes.Contains(b, []byte(`"order":2`)) {
		t.Errorf("%s, %v", b, err)
	}
	if o.Metadata().GetResourceVersion() != "42" {
		t.Error("encoding changed the object")
	}
}

func TestQuarantine(t *testing.T) {
	block := func(allocations, unallocated string) string {
		return `{"cidr":"10.0.0.0/31","affinity":null,"allocations":` + allocations + `,"unallocated":` + unallocated +
			`,"attributes":[{"handle_id":"a"}]}`
	}
	for _, c := range []struct {
		rule string
		key  model.Key
		raw  string
		want string // part of the message; empty for an object that is used
	}{
		{"no JSON", model.ResourceKey(model.KindTier, "x"), `{`, "Tier x: unexpected end"},
		{"no object", model.ResourceKey(model.KindTier, "x"), `[]`, "Tier x: json: cannot unmarshal"},
		{"nothing", model.ResourceKey(model.KindTier, "x"), ``, "Tier x: unexpected end"},
		{"pool CIDR", model.ResourceKey(model.KindIPPool, "x"), `{"spec":{"cidr":"10.0.0.0/33"}}`,
			`spec.cidr = "10.0.0.0/33": must be a CIDR`},
		{"pool without CIDR", model.ResourceKey(model.KindIPPool, "x"), `{}`, `spec.cidr = "": is required`},
		{"pool with an unknown encapsulation", model.ResourceKey(model.KindIPPool, "x"),
			`{"spec":{"cidr":"10.0.0.0/16","ipipMode":"Sometimes"}}`,
			`spec.ipipMode = "Sometimes": must be one of Never`},
		{"pool with an unknown use is used", model.ResourceKey(model.KindIPPool, "x"),
			`{"spec":{"cidr":"10.0.0.0/16","allowedUses":["Workload","Newer"]}}`, ""},
		{"pool with an unknown assignment mode is used", model.ResourceKey(model.KindIPPool, "x"),
			`{"spec":{"cidr":"10.0.0.0/16","assignmentMode":"Newer"}}`, ""},
		{"pool selector", model.ResourceKey(model.KindIPPool, "x"), `{"spec":{"cidr":"10.0.0.0/16","nodeSelector":"a b"}}`,
			"spec.nodeSelector"},
		{"peer address", model.ResourceKey(model.KindBGPPeer, "x"), `{"spec":{"peerIP":"10.0.0.256"}}`, "spec.peerIP"},
		{"peer selector", model.ResourceKey(model.KindBGPPeer, "x"), `{"spec":{"peerSelector":"("}}`, "spec.peerSelector"},
		{"peer with an address and a selector is used", model.ResourceKey(model.KindBGPPeer, "x"),
			`{"spec":{"peerIP":"10.0.0.1","peerSelector":"all()"}}`, ""},
		{"node address", model.ResourceKey(model.KindNode, "x"), `{"spec":{"bgp":{"ipv4Address":"fd00::1/64"}}}`,
			"spec.bgp.ipv4Address"},
		{"node with a wrong tunnel MAC is used", model.ResourceKey(model.KindNode, "x"), `{"spec":{"vxlanTunnelMACAddr":"?"}}`, ""},
		{"endpoint address", model.Key{Kind: model.KindWorkloadEndpoint, Namespace: "ns", Name: "x"},
			`{"spec":{"interfaceName":"cali1","ipNetworks":["10.0.0.0/24"]}}`, "spec.ipNetworks[0]"},
		{"endpoint interface", model.Key{Kind: model.KindWorkloadEndpoint, Namespace: "ns", Name: "x"},
			`{"spec":{"interfaceName":"../x"}}`, "spec.interfaceName"},
		{"endpoint with an unexpected name is used",
			model.Key{Kind: model.KindWorkloadEndpoint, Namespace: "ns", Name: "x"},
			`{"spec":{"interfaceName":"cali1"}}`, ""},
		{"affinity state", model.Key{Kind: model.KindBlockAffinity, Name: "host/n/10.0.0.0/26"}, `{"state":"maybe"}`, "state"},
		{"empty affinity is confirmed", model.Key{Kind: model.KindBlockAffinity, Name: "host/n/10.0.0.0/26"}, "", ""},
		{"block of another range", model.Key{Kind: model.KindIPAMBlock, Name: "10.0.1.0/31"}, block(`[0,null]`, `[1]`),
			"as in the key"},
		{"block with too few allocations", model.Key{Kind: model.KindIPAMBlock, Name: "10.0.0.0/31"}, block(`[0]`, `[1]`),
			"must have 2 entries"},
		{"block with an allocation that points nowhere", model.Key{Kind: model.KindIPAMBlock, Name: "10.0.0.0/31"},
			block(`[1,null]`, `[1]`), "allocations[0]"},
		{"block whose free address is allocated", model.Key{Kind: model.KindIPAMBlock, Name: "10.0.0.0/31"},
			block(`[0,null]`, `[0]`), "is allocated"},
		{"block with an address free twice", model.Key{Kind: model.KindIPAMBlock, Name: "10.0.0.0/31"}, block(`[0,null]`, `[1,1]`),
			"is there twice"},
		{"block that lost an address is used", model.Key{Kind: model.KindIPAMBlock, Name: "10.0.0.0/31"}, block(`[0,null]`, `[]`),
			""},
		{"name that is not UTF-8", model.ResourceKey(model.KindTier, "x\xff"), `{}`,
			`"Tier x\xff": the key is not valid UTF-8`},
		{"namespace that is not UTF-8", model.Key{Kind: model.KindNetworkPolicy, Namespace: "ns\xff", Name: "x"}, `{}`,
			`"NetworkPolicy ns\xff/x": the key is not valid UTF-8`},
		{"name in another script is used", model.ResourceKey(model.KindTier, "ä"), `{}`, ""},
		{"kind that nobody knows", model.Key{Kind: "Foo", Name: "x"}, `{}`, "unknown kind"},
	} {
		t.Run(c.rule, func(t *testing.T) {
			o := Decode(c.key, []byte(c.raw), 1)
			switch {
			case c.want == "" && o.Err != nil:
				t.Errorf("quarantined: %v", o.Err)
			case c.want != "" && (o.Err == nil || !strings.Contains(o.Err.Error(), c.want)):
				t.Errorf("%v; want %q", o.Err, c.want)
			}
			if model.NewSet(o).Get(c.key) != nil != (c.want == "") {
				t.Error("a Set shows quarantined objects, or hides others")
			}
		})
	}
}

func BenchmarkDecodeBlock26(b *testing.B) {
	key, raw := blockOfH1(b)
	for b.Loop() {
		if o := Decode(key, raw, 1); o.Err != nil {
			b.Fatal(o.Err)
		}
	}
}

func BenchmarkEncodeChangedBlock26(b *testing.B) {
	key, raw := blockOfH1(b)
	o := Decode(key, raw, 1).Clone()
	for b.Loop() {
		o.Value.(*model.Block).SequenceNumber++
		if _, err := Encode(o); err != nil {
			b.Fatal(err)
		}
	}
}

func blockOfH1(b *testing.B) (model.Key, []byte) {
	for _, s := range jsonlines.Read[stored](b, "testdata/objects.jsonl") {
		if strings.HasSuffix(s.Key, "/assignment/ipv4/block/10.40.26.192-26") {
			k := storedKey(s.Key)
			return k, []byte(s.Raw)
		}
	}
	b.Fatal("the block is not in the test data")
	return model.Key{}, nil
}
