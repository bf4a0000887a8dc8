package conversion

import (
	"testing"

	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/manxnet/manx/datastore/model"
)

func TestWhatIsMadeOfAnObjectHasAUIDOfItsOwn(t *testing.T) {
	const of, want = "0f3ac7de-9b21-4c55-8f10-2b6d1a9e7c04", "f05ce37b-d984-4caa-8f08-d4b658793e20"
	if got := DerivedUID(want); got != of {
		t.Errorf("back: %s", got)
	}
	for _, odd := range []types.UID{"", "u1", "0f3ac7de", "not-a-uid-of-the-length-of-a-real-one"} {
		if got := DerivedUID(odd); got != odd {
			t.Errorf("%q: %q", odd, got)
		}
	}
	np := &networkingv1.NetworkPolicy{}
	np.UID = of
	p, _, err := NetworkPolicy(np)
	if err != nil || p.UID != want {
		t.Errorf("policy: %s %v", p.UID, err)
	}
	ns := &model.Namespace{}
	ns.UID = of
	if p := Namespace(ns); p.UID != want {
		t.Errorf("profile: %s", p.UID)
	}
	pod := parsePod(t, `{}`)
	pod.UID = of
	if w, _, _ := Pod(pod, "cali"); w.UID != of {
		t.Errorf("an endpoint has its pod's: %s", w.UID)
	}
}
