package model

import (
	"testing"
)

func TestOldAndNewKeysOfPolicies(t *testing.T) {
	web := Key{Kind: KindGlobalNetworkPolicy, Name: "web"}
	old, ok := OldPolicyKey(web)
	if !ok || old.Name != "default.web" {
		t.Errorf("%v, %v", old, ok)
	}
	if k, ok := NewPolicyKey(old); !ok || k != web {
		t.Errorf("%v, %v", k, ok)
	}
	if _, ok := NewPolicyKey(web); ok {
		t.Error("web is no old spelling")
	}
	for _, kind := range []Kind{KindNetworkSet, KindStagedKubernetesNetworkPolicy, KindTier} {
		if _, ok := OldPolicyKey(Key{Kind: kind, Name: "web"}); ok {
			t.Errorf("%s never had another spelling", kind)
		}
	}
}
