package model

import (
	"reflect"
	"testing"
)

// fuzzKind decodes anything as an object of a kind. Whatever comes in, nothing panics; what is not quarantined can be
// written again, unchanged and changed, without becoming another object.
func fuzzKind(f *testing.F, kind Kind) {
	info, _ := Lookup(kind)
	keys := map[Kind]Key{
		KindIPAMBlock:        {Kind: kind, Name: "10.0.0.0/30"},
		KindBlockAffinity:    {Kind: kind, Name: "host/n/10.0.0.0/26"},
		KindWorkloadEndpoint: {Kind: kind, Namespace: "ns", Name: "n-k8s-p-eth0"},
	}
	key, ok := keys[kind]
	if !ok {
		key = Key{Kind: kind, Name: "default"}
		if info.Namespaced {
			key.Namespace = "ns"
		}
	}
	for _, file := range []string{"objects.jsonl", "history.jsonl"} {
		for _, s := range readLines[stored](f, file) {
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
		if b, ok := o.Value.(*Block); ok {
			CheckBlock(b)
		}
		same, err := Encode(o)
		if err != nil {
			return // a time beyond the year 9999, for instance, cannot be written
		}
		if again := Decode(key, same, 1); !reflect.DeepEqual(again.Value, o.Value) {
			t.Fatalf("%s\nbecame\n%s\n%+v\n%+v", raw, same, o.Value, again.Value)
		}
		if next := o.Clone(); PrepareUpdate(next) == nil {
			stays(t, next)
		}
		if fresh := NewObject(key, o.Clone().Value); PrepareCreate(fresh, testTime) == nil {
			value := stays(t, fresh)
			if value == nil {
				return
			}
			Default(info.Kind, value)
			if errs := Validate(key, value); len(errs) > 0 {
				t.Fatalf("a valid object became invalid: %v\n%s", errs, raw)
			}
		}
	})
}

// stays checks that what was accepted can be read back. It gives nil for what cannot be written.
func stays(t *testing.T, o *Object) any {
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

func FuzzDecodeNode(f *testing.F)               { fuzzKind(f, KindNode) }
func FuzzDecodeIPPool(f *testing.F)             { fuzzKind(f, KindIPPool) }
func FuzzDecodeIPReservation(f *testing.F)      { fuzzKind(f, KindIPReservation) }
func FuzzDecodeBGPConfiguration(f *testing.F)   { fuzzKind(f, KindBGPConfiguration) }
func FuzzDecodeBGPPeer(f *testing.F)            { fuzzKind(f, KindBGPPeer) }
func FuzzDecodeClusterInformation(f *testing.F) { fuzzKind(f, KindClusterInformation) }
func FuzzDecodeFelixConfiguration(f *testing.F) { fuzzKind(f, KindFelixConfiguration) }
func FuzzDecodeIPAMConfiguration(f *testing.F)  { fuzzKind(f, KindIPAMConfiguration) }
func FuzzDecodeProfile(f *testing.F)            { fuzzKind(f, KindProfile) }
func FuzzDecodeTier(f *testing.F)               { fuzzKind(f, KindTier) }
func FuzzDecodeWorkloadEndpoint(f *testing.F)   { fuzzKind(f, KindWorkloadEndpoint) }
func FuzzDecodeBlock(f *testing.F)              { fuzzKind(f, KindIPAMBlock) }
func FuzzDecodeBlockAffinity(f *testing.F)      { fuzzKind(f, KindBlockAffinity) }
func FuzzDecodeHandle(f *testing.F)             { fuzzKind(f, KindIPAMHandle) }
func FuzzDecodeIPAMConfig(f *testing.F)         { fuzzKind(f, KindIPAMConfig) }

func FuzzDecodeNetworkPolicy(f *testing.F)             { fuzzKind(f, KindNetworkPolicy) }
func FuzzDecodeGlobalNetworkPolicy(f *testing.F)       { fuzzKind(f, KindGlobalNetworkPolicy) }
func FuzzDecodeStagedNetworkPolicy(f *testing.F)       { fuzzKind(f, KindStagedNetworkPolicy) }
func FuzzDecodeStagedGlobalNetworkPolicy(f *testing.F) { fuzzKind(f, KindStagedGlobalNetworkPolicy) }
func FuzzDecodeStagedKubernetesNetworkPolicy(f *testing.F) {
	fuzzKind(f, KindStagedKubernetesNetworkPolicy)
}
func FuzzDecodeNetworkSet(f *testing.F)       { fuzzKind(f, KindNetworkSet) }
func FuzzDecodeGlobalNetworkSet(f *testing.F) { fuzzKind(f, KindGlobalNetworkSet) }
func FuzzDecodeHostEndpoint(f *testing.F)     { fuzzKind(f, KindHostEndpoint) }
