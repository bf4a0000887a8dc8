package model

import (
	"testing"
)

func TestKubernetesKindsAreNotStored(t *testing.T) {
	for _, kind := range []Kind{KindService, KindEndpointSlice} {
		for _, i := range Kinds() {
			if i.Kind == kind {
				t.Errorf("%s is among the kinds that a datastore keeps", kind)
			}
		}
	}
}

func BenchmarkLookup(b *testing.B) {
	for b.Loop() {
		if _, ok := Lookup(KindIPAMConfig); !ok {
			b.Fatal("unknown")
		}
	}
}
