package policy

import (
	"strings"
	"testing"

	"github.com/manxnet/manx/datastore/model"
)

// The segment size of forwarded connections is lowered on hosts alone whose administrator wants it.
func TestClampMSS(t *testing.T) {
	for _, on := range []bool{false, true} {
		c := New(Config{Node: testNode, ClampMSS: on})
		c.Update(model.Set{})
		chain := c.Table().Chain(clampMSS)
		if (chain != nil) != on || on && !strings.Contains(chain.Rules[0].String(), "maxseg size set rt mtu") {
			t.Errorf("with %t: %+v", on, chain)
		}
	}
}
