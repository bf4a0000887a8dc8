package codec

import (
	"reflect"
	"testing"

	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/datastore/validation"
	"github.com/manxnet/manx/integration/jsonlines"
)

// fuzzKind decodes any input as an object of a kind. No input causes a panic. An object that is not quarantined can be
// written again, unchanged and changed, and stays the same object.
func fuzzKind(f *testing.F, kind model.Kind) {
	info, _ := model.Lookup(kind)
	keys := map[model.Kind]model.Key{
		model.KindIPAMBlock:        {Kind: kind, Name: "10.0.0.0/30"},
		model.KindBlockAffinity:    {Kind: kind, Name: "host/n/10.0.0.0/26"},
		model.KindWorkloadEndpoint: {Kind: kind, Namespace: "ns", Name: "n-k8s-p-eth0"},
	}
	key, ok := keys[kind]
	if !ok {
		key = model.Key{Kind: kind, Name: "default"}
		if info.Namespaced {
			key.Namespace = "ns"
		}
	}
	for _, file := range []string{"objects.jsonl", "history.jsonl"} {
		for _, s := range jsonlines.Read[stored](f, "testdata/"+file) {
			if k := storedKey(s.Key); k.Kind == kind {
				f.Add([]byte(s.Raw))
			}
		}
	}
	for _, s := range []string{``, `null`, `{}`, `[]`, `{"spec":null,"metadata":null}`,
		`{"metadata":{"labels":{"":""}},"spec":{}}`,
		`{"cidr":"10.0.0.0/30","allocations":[0,null,null,null],"unallocated":[1,2,3],"attributes":[null]}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		o := Decode(key, raw, 1)
		if o.Err != nil {
			if o.Value == nil {
				return
			}
			_ = o.Err.Error()
		}
		if b, ok := o.Value.(*model.Block); ok {
			validation.CheckBlock(b)
		}
		same, err := Encode(o)
		if err != nil {
			return // a time beyond the year 9999, for instance, cannot be written
		}
		if again := Decode(key, same, 1); !reflect.DeepEqual(again.Value, o.Value) {
			t.Fatalf("%s\nbecame\n%s\n%+v\n%+v", raw, same, o.Value, again.Value)
		}
		if next := o.Clone(); PrepareUpdate(next) == nil {
			checkRoundTrip(t, next)
		}
		if fresh := model.NewObject(key, o.Clone().Value); PrepareCreate(fresh, testTime) == nil {
			value := checkRoundTrip(t, fresh)
			if value == nil {
				return
			}
			validation.Default(info.Kind, value)
			if errs := validation.Validate(key, value); len(errs) > 0 {
				t.Fatalf("a valid object became invalid: %v\n%s", errs, raw)
			}
		}
	})
}

// checkRoundTrip checks that an accepted object can be written and read back, and returns its value: nil if it cannot
// be written.
func checkRoundTrip(t *testing.T, o *model.Object) any {
	b, err := Encode(o)
	if err != nil {
		return nil
	}
	again := Decode(o.Key, b, 1)
	if again.Err != nil {
		t.Fatalf("a valid object is quarantined: %v\n%s", again.Err, b)
	}
	return again.Value
}

func FuzzDecodeNode(f *testing.F)               { fuzzKind(f, model.KindNode) }
func FuzzDecodeIPPool(f *testing.F)             { fuzzKind(f, model.KindIPPool) }
func FuzzDecodeIPReservation(f *testing.F)      { fuzzKind(f, model.KindIPReservation) }
func FuzzDecodeBGPConfiguration(f *testing.F)   { fuzzKind(f, model.KindBGPConfiguration) }
func FuzzDecodeBGPPeer(f *testing.F)            { fuzzKind(f, model.KindBGPPeer) }
func FuzzDecodeClusterInformation(f *testing.F) { fuzzKind(f, model.KindClusterInformation) }
func FuzzDecodeFelixConfiguration(f *testing.F) { fuzzKind(f, model.KindFelixConfiguration) }
func FuzzDecodeIPAMConfiguration(f *testing.F)  { fuzzKind(f, model.KindIPAMConfiguration) }
func FuzzDecodeProfile(f *testing.F)            { fuzzKind(f, model.KindProfile) }
func FuzzDecodeTier(f *testing.F)               { fuzzKind(f, model.KindTier) }
func FuzzDecodeWorkloadEndpoint(f *testing.F)   { fuzzKind(f, model.KindWorkloadEndpoint) }
func FuzzDecodeBlock(f *testing.F)              { fuzzKind(f, model.KindIPAMBlock) }
func FuzzDecodeBlockAffinity(f *testing.F)      { fuzzKind(f, model.KindBlockAffinity) }
func FuzzDecodeHandle(f *testing.F)             { fuzzKind(f, model.KindIPAMHandle) }
func FuzzDecodeIPAMConfig(f *testing.F)         { fuzzKind(f, model.KindIPAMConfig) }

func FuzzDecodeNetworkPolicy(f *testing.F)       { fuzzKind(f, model.KindNetworkPolicy) }
func FuzzDecodeGlobalNetworkPolicy(f *testing.F) { fuzzKind(f, model.KindGlobalNetworkPolicy) }
func FuzzDecodeStagedNetworkPolicy(f *testing.F) { fuzzKind(f, model.KindStagedNetworkPolicy) }
func FuzzDecodeStagedGlobalNetworkPolicy(f *testing.F) {
	fuzzKind(f, model.KindStagedGlobalNetworkPolicy)
}
func FuzzDecodeStagedKubernetesNetworkPolicy(f *testing.F) {
	fuzzKind(f, model.KindStagedKubernetesNetworkPolicy)
}
func FuzzDecodeNetworkSet(f *testing.F)       { fuzzKind(f, model.KindNetworkSet) }
func FuzzDecodeGlobalNetworkSet(f *testing.F) { fuzzKind(f, model.KindGlobalNetworkSet) }
func FuzzDecodeHostEndpoint(f *testing.F)     { fuzzKind(f, model.KindHostEndpoint) }
