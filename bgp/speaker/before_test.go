package speaker

import (
	"context"
	"log/slog"
	"testing"

	"github.com/osrg/gobgp/v4/api"
	"github.com/osrg/gobgp/v4/pkg/server"

	"github.com/manxnet/manx/integration/ports"
)

// nodeOfBefore is a node with an earlier Manx, in which GoBGP listens and connects itself.
func nodeOfBefore(t *testing.T, addr string, manxPort uint16, passive bool) (port uint16) {
	t.Helper()
	port = ports.Free(t, addr)
	srv := server.NewBgpServer(server.LoggerOption(slog.New(slog.DiscardHandler), new(slog.LevelVar)))
	go srv.Serve()
	t.Cleanup(func() { srv.Stop() })
	ctx := context.Background()
	if err := srv.StartBgp(ctx, &api.StartBgpRequest{Global: &api.Global{Asn: 64512, RouterId: "10.99.8.1",
		ListenPort: int32(port), ListenAddresses: []string{addr}, Families: []uint32{0, 1}}}); err != nil {
		t.Fatal(err)
	}
	session := Config{}.withDefaults().peerConfig(active("127.0.0.1", manxPort))
	session.Transport.LocalAddress, session.Transport.PassiveMode = addr, passive
	if err := srv.AddPeer(ctx, &api.AddPeerRequest{Peer: session}); err != nil {
		t.Fatal(err)
	}
	return port
}

// A node with an earlier Manx and this one have a session, whichever of them connects, and again after it was lost.
func TestNodeOfBefore(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, addr string
		weConnect  bool
	}{{"the earlier one connects", "127.0.1.180", false}, {"this one connects", "127.0.1.181", true}} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s, d := testSpeaker(t, Config{})
			session := active(c.addr, nodeOfBefore(t, c.addr, d.Global.ListenPort, c.weConnect))
			session.Passive = !c.weConnect
			d.Sessions = append(d.Sessions, session)
			mustSet(t, s, d)
			awaitSession(t, s, c.addr, "Established", established)
			if err := s.ResetSession(t.Context(), ip(c.addr), ResetHard); err != nil {
				t.Fatal(err)
			}
			awaitSession(t, s, c.addr, "Established again", func(st SessionStatus) bool {
				return established(st) && st.Flaps > 0
			})
		})
	}
}
