package hoststate

import (
	"fmt"
	"testing"

	"github.com/manxnet/manx/datastore/model"
)

// Calico accepts addresses without a length; malformed ones are left out.
func TestEndpointAddressesMayLackALength(t *testing.T) {
	e := newEndpoint(&model.WorkloadEndpoint{Spec: model.WorkloadEndpointSpec{
		IPNetworks: []string{"10.0.0.7", "10.0.0.8/32", "nonsense", "fd00::7"}}})
	if got := fmt.Sprint(e.Networks); got != "[10.0.0.7/32 10.0.0.8/32 fd00::7/128]" {
		t.Errorf("%s", got)
	}
}
