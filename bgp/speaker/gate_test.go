package speaker

import (
	"context"
	"errors"
	"io"
	"net"
	"testing"
	"time"
)

// A connection that nobody takes any more, because GoBGP stops, is closed: the peer does not wait for its hold timer.
func TestConnectionsOfAStoppingServer(t *testing.T) {
	s, _ := testSpeaker(t, Config{})
	conns := make(chan net.Conn, 10)
	s.setRun(&speakerRun{sp: s, conns: conns})
	t.Cleanup(func() { s.setRun(nil) })
	ctx, stop := context.WithCancel(t.Context())
	stop()
	for range 20 { // the channel and the context are ready at once, and either may be chosen
		ours, theirs := net.Pipe()
		_ = theirs.SetReadDeadline(time.Now().Add(10 * time.Second))
		s.handOver(ctx, ours)
		if _, err := theirs.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
			t.Fatalf("the connection is open: %v", err)
		}
		if len(conns) > 0 {
			t.Fatal("a connection waits for ever")
		}
	}
}
