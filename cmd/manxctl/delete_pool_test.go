package main_test

import (
	"net/netip"
	"strings"
	"testing"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"

	"github.com/manxnet/manx/ipam"
)

// TestDeletePool: the blocks of a pool that is deleted have no owner any more, empty ones are gone, and a new pool in
// the range keeps the size of those that are left.
func TestDeletePool(t *testing.T) {
	t.Parallel()
	s, server := newShell(t)
	pool := resource("IPPool", "name: pods", "cidr: 10.99.0.0/26, blockSize: 28")
	s.mustPipe(pool+resource("IPPool", "name: other", "cidr: 10.98.0.0/26, blockSize: 28")+
		resource("Node", "name: n1", "bgp: {ipv4Address: 10.0.0.1/24}")+
		resource("Node", "name: n2", "bgp: {ipv4Address: 10.0.0.2/24}"), "create", "-f", "-")
	a := ipam.New(server.Store(t), nil, nil)
	for i, x := range []struct{ host, pool string }{{"n1", "10.99.0.0/26"}, {"n2", "10.99.0.0/26"},
		{"n2", "10.98.0.0/26"}} {
		_, err := a.AutoAssign(t.Context(), ipam.Request{Host: x.host, Handle: "h" + string(rune('0'+i)), Num4: 1,
			Use: v3.IPPoolAllowedUseWorkload, Pools4: []netip.Prefix{netip.MustParsePrefix(x.pool)}})
		if err != nil {
			t.Fatal(err)
		}
	}
	if _, err := a.ReleaseByHandle(t.Context(), "h1"); err != nil {
		t.Fatal(err)
	}
	s.run("delete", "pool", "nowhere", "pods").want(t, 1, "ippool/pods deleted\n",
		"delete IPPool nowhere: does not exist")
	left := tableLines(s.must("get", "ipamblocks", "--no-headers"))
	if len(left) != 2 || !strings.HasPrefix(left[0], "10.98.0.") || !strings.Contains(left[0], "host:n2") ||
		!strings.HasPrefix(left[1], "10.99.0.") || strings.Contains(left[1], "host:") {
		t.Errorf("the blocks are %q", left)
	}
	if aff := s.must("get", "blockaffinities", "--no-headers"); strings.Contains(aff, "10.99.0.") {
		t.Errorf("the affinities are\n%s", aff)
	}
	for _, verb := range []string{"create", "apply"} {
		s.pipe(strings.Replace(pool, "28", "27", 1), verb, "-f", "-").want(t, 1, "",
			`IPPool pods is invalid: spec.blockSize = "27": must be 28: an earlier pool left block 10.99.0.`)
	}
	s.pipe(pool, "create", "-f", "-").want(t, 0, "ippool/pods created\n")
}
