package route

import "testing"

func TestEndpointAddressesMayLackALength(t *testing.T) {
	if got := hostPrefixes([]string{"10.0.0.7", "10.0.0.8/32", "nonsense",
		"fd00::7"}); got != "10.0.0.7/32 10.0.0.8/32 fd00::7/128" {
		t.Errorf("%q", got)
	}
}
