package model

import (
	"fmt"
	"testing"
)

// Calico accepts addresses without a length; malformed ones are left out.
func TestEndpointAddressesMayLackALength(t *testing.T) {
	o := NewObject(Key{Kind: KindWorkloadEndpoint, Namespace: "shop", Name: "n1-k8s-web-eth0"},
		&WorkloadEndpoint{Spec: WorkloadEndpointSpec{
			IPNetworks: []string{"10.0.0.7", "10.0.0.8/32", "nonsense", "fd00::7", "::ffff:10.0.0.9", "fe80::1%eth0"}}})
	if got := fmt.Sprint(o.Workload().Networks); got != "[10.0.0.7/32 10.0.0.8/32 fd00::7/128 10.0.0.9/32]" {
		t.Errorf("%s", got)
	}
}
