package locrib

import (
	"fmt"
	"net/netip"
	"testing"
)

// Two peers that name one next hop, such as two route reflectors, are one way for the kernel.
func TestNextHopsOfSeveralPeers(t *testing.T) {
	path := func(nextHop, peer string) Path { return Path{netip.MustParseAddr(nextHop), netip.MustParseAddr(peer)} }
	r := Route{Paths: []Path{path("192.0.2.2", "192.0.2.8"), path("192.0.2.2", "192.0.2.9"),
		path("192.0.2.3", "192.0.2.8")}}
	if got := fmt.Sprint(r.AppendNextHops(nil)); got != "[192.0.2.2 192.0.2.3]" {
		t.Errorf("%s", got)
	}
}
