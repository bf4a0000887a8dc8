package speaker

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	gobgp "github.com/osrg/gobgp/v4/pkg/packet/bgp"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/manxnet/manx/bgp"
)

// A session that fails is logged as a warning; one that an administrator of either side has ended is not.
func TestFailedSessionsAreWarnings(t *testing.T) {
	t.Parallel()
	core, logs := observer.New(zap.InfoLevel)
	s, d := testSpeaker(t, Config{Logger: zap.New(core)})
	const addr = "127.0.5.180"
	d.Sessions = []bgp.Session{passive(addr)}
	mustSet(t, s, d)
	for _, x := range []struct {
		what   string
		end    func(p *fakePeer)
		reason string
		level  zapcore.Level
	}{
		{"administrative shutdown by the peer", func(p *fakePeer) {
			p.send(gobgp.NewBGPNotificationMessage(gobgp.BGP_ERROR_CEASE,
				gobgp.BGP_ERROR_SUB_ADMINISTRATIVE_SHUTDOWN, nil))
		}, "administrative shutdown", zap.InfoLevel},
		{"reset here", func(*fakePeer) {
			if err := s.ResetSession(t.Context(), netip.MustParseAddr(addr), ResetHard); err != nil {
				t.Error(err)
			}
		}, "administrative reset", zap.InfoLevel},
		{"loss of the connection", func(p *fakePeer) { p.conn.Close() }, "lost", zap.WarnLevel},
	} {
		p := dialFake(t, addr, listenOf(d), fakeOptions{as: 64512, id: "10.99.5.180"})
		awaitSession(t, s, addr, "Established", established)
		logs.TakeAll()
		x.end(p)
		awaitLogged(t, logs, addr, x.what, x.reason, x.level)
	}
}

// awaitLogged waits for the line about a failed session, and checks its level.
func awaitLogged(t *testing.T, logs *observer.ObservedLogs, addr, what, reason string, level zapcore.Level) {
	t.Helper()
	var lines []string
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		lines = nil
		for _, e := range logs.FilterMessage("bgp session").All() {
			f := e.ContextMap()
			if f["key"] != addr || f["phase"] != "Failed" {
				continue
			}
			lines = append(lines, fmt.Sprint(e.Level, " ", f["reason"]))
			if strings.Contains(fmt.Sprint(f["reason"]), reason) {
				if e.Level != level {
					t.Errorf("%s: level %s, want %s", what, e.Level, level)
				}
				return
			}
		}
	}
	t.Errorf("%s: logged %q, no %q", what, lines, reason)
}
