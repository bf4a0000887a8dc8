package gobgpapi

import (
	"net/netip"
	"testing"

	v3 "github.com/osrg/gobgp/v3/api"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/manxnet/manx/bgp"
)

// A listing in pages whose speaker restarts between two pages ends with Unavailable, not with the pages of another
// speaker.
func TestListingEndsWhereTheSpeakerRestarts(t *testing.T) {
	s := newIdleService(t)
	s.tables.page = 100
	fill(t, s, 0, 300)
	b, err := s.server()
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	err = s.tables.each(t.Context(), b, listRequest(&v3.ListPathRequest{}), func(destination) error {
		if n++; n == 50 {
			return s.speaker.Set(t.Context(), bgp.Desired{Global: bgp.Global{LocalAS: 64512,
				RouterID: netip.MustParseAddr("192.0.2.2")}})
		}
		return nil
	})
	if status.Code(err) != codes.Unavailable || n != 100 {
		t.Errorf("%d destinations, then %v; want the 100 of a page, then Unavailable", n, err)
	}
}
