package kubernetes

import (
	"errors"
	"net/http"
	"testing"

	"github.com/manxnet/manx/datastore"
)

// The denial of an admission policy whose parameters the API server does not know yet is temporary; others are not.
func TestPolicyBeforeItsParameters(t *testing.T) {
	const denied = `ippools.projectcalico.org "p" is forbidden: ValidatingAdmissionPolicy 'manx-pools' `
	for text, temporary := range map[string]bool{
		"no second pool": false,
		"failed to configure policy: failed to find resource referenced by paramKind: 'projectcalico.org/v3, " +
			"Kind=IPPool'": true,
		"failed to configure binding: paramKind kind `projectcalico.org/v3, Kind=IPPool` not yet synced to use for " +
			"admission": true,
	} {
		err := fromStatus(http.StatusUnprocessableEntity, errors.New(denied+"denied request: "+text))
		if errors.Is(err, datastore.ErrUnavailable) != temporary {
			t.Errorf("%v: temporary should be %t", err, temporary)
		}
	}
}
