package model

import (
	"fmt"
	"testing"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
)

func TestNewObjectRefusesAForeignType(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("an API type that lacks fields was taken")
		}
	}()
	NewObject(ResourceKey(KindBGPPeer, "p"), &v3.BGPPeer{})
}

func TestMessagesNameFieldValueAndRule(t *testing.T) {
	err := &InvalidError{Key: ResourceKey(KindBGPPeer, "p"),
		Fields: []FieldError{{"spec.peerIP", "x", "must be an IP address"}, {"spec.asNumber", 0, "is required"}}}
	const want = `BGPPeer p is invalid: spec.peerIP = "x": must be an IP address; spec.asNumber = "0": is required`
	if got := fmt.Sprint(err); got != want {
		t.Errorf("got %s", got)
	}
}
