package speaker

import (
	"fmt"
	"testing"

	gobgp "github.com/osrg/gobgp/v4/pkg/packet/bgp"
)

// Listings show extended communities, of every type.
func TestExtendedCommunitiesAreListed(t *testing.T) {
	t.Parallel()
	s, d := testSpeaker(t, Config{})
	session := passive("127.0.10.1")
	d.Sessions = append(d.Sessions, session)
	mustSet(t, s, d)
	p := dialFake(t, "127.0.10.1", listenOf(d), fakeOptions{as: 64512, id: "10.99.10.1"})
	awaitSession(t, s, "127.0.10.1", "Established", established)
	var list []gobgp.ExtendedCommunityInterface
	for _, octets := range [][]byte{{0, 2, 0xfc, 0, 0, 0, 0, 100}, {1, 3, 192, 0, 2, 1, 0, 7},
		{2, 2, 0, 1, 0, 0, 0, 9}, {3, 0x0c, 0, 0, 0, 0, 0, 8}, {0x41, 3, 192, 0, 2, 1, 0, 7}} {
		c, err := gobgp.ParseExtended(octets)
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, c)
	}
	u := update("10.0.0.2", 0, 100, pfx("192.0.2.0/24"))
	body := u.Body.(*gobgp.BGPUpdate)
	body.PathAttributes = append(body.PathAttributes, gobgp.NewPathAttributeExtendedCommunities(list))
	p.send(u)
	awaitRoutes(t, s, routeTable{}, "the route", func() bool { return s.fib.Knows(pfx("192.0.2.0/24")) })
	const want = "[rt:64512:100 ro:192.0.2.1:7 rt:65536:9 0x030c000000000008 0x4103c00002010007]"
	received, err := s.ReceivedFrom(session.Address)
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for r := range received {
		if n++; fmt.Sprint(r.Extended) != want {
			t.Errorf("received %v\nwant     %s", r.Extended, want)
		}
	}
	if n != 1 {
		t.Errorf("%d routes", n)
	}
}
