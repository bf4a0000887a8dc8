package server

import (
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/manxnet/manx/bgp"
	"github.com/manxnet/manx/bgp/speaker"
)

// stuckLog is a log whose writer blocks at a message, as a full pipe does, until the gate is closed.
type stuckLog struct {
	zapcore.LevelEnabler
	at      string
	reached chan struct{}
	gate    chan struct{}
}

func (l stuckLog) With([]zapcore.Field) zapcore.Core { return l }

func (l stuckLog) Check(e zapcore.Entry, c *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	return c.AddCore(e, l)
}

func (l stuckLog) Write(e zapcore.Entry, _ []zapcore.Field) error {
	if e.Message == l.at {
		close(l.reached)
		<-l.gate
	}
	return nil
}

func (l stuckLog) Sync() error { return nil }

// GoBGP's loop hangs while it writes its log. Nothing else in the process waits for it: its sessions and routes are
// those of before.
func TestLivezFailsWhenTheSpeakerHangs(t *testing.T) {
	log := stuckLog{zapcore.DebugLevel, "Add a peer configuration", make(chan struct{}), make(chan struct{})}
	sp := speaker.New(speaker.Config{Logger: zap.New(log)})
	defer sp.Close()
	s := New(Config{Log: zap.NewNop()})
	s.BGP.answered.longest, s.liveness = time.Second, time.Second
	s.BGP.Show(BGPSource{Speaker: sp})
	livez := func() (int, string) {
		w := httptest.NewRecorder()
		s.webHandler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/livez", nil))
		return w.Code, w.Body.String()
	}
	desired := bgp.Desired{Global: bgp.Global{LocalAS: 64512, RouterID: netip.MustParseAddr("192.0.2.1")}}
	if err := sp.Set(t.Context(), desired); err != nil {
		t.Fatal(err)
	}
	if code, body := livez(); code != http.StatusOK {
		t.Fatalf("before: %d %s", code, body)
	}
	desired.Sessions = []bgp.Session{{Address: netip.MustParseAddr("127.0.9.9"), Port: 179, Type: bgp.SessionGlobal,
		LocalAS: 64512, PeerAS: 64513, HoldSeconds: 240, PasswordFrom: "none"}}
	set := make(chan error, 1)
	go func() { set <- sp.Set(t.Context(), desired) }()
	select {
	case <-log.reached:
	case err := <-set:
		t.Fatalf("the log was not reached: %v", err)
	}
	if code, body := livez(); code != http.StatusOK {
		t.Errorf("at first: %d %s", code, body)
	}
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(50 * time.Millisecond) { // it must fail within seconds
		code, body := livez()
		if code == http.StatusServiceUnavailable && strings.Contains(body, "a part of manxd has not answered") {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("while the speaker hangs: %d %s", code, body)
		}
	}
	close(log.gate)
	if err := <-set; err != nil {
		t.Error(err)
	}
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(50 * time.Millisecond) { // until a late answer has come
		if code, body := livez(); code == http.StatusOK {
			break
		} else if time.Now().After(end) {
			t.Fatalf("afterwards: %d %s", code, body)
		}
	}
}
