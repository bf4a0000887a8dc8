package session

import (
	"net/netip"
	"testing"
	"time"

	"github.com/manxnet/manx/bgp"
	"github.com/manxnet/manx/bgp/wire/message"
)

func TestAGuessDoesNotReplaceWhatANotificationSaid(t *testing.T) {
	now := time.Now()
	e := &entry{session: bgp.Session{Address: netip.MustParseAddr("10.0.0.2"), LocalAS: 64512}}
	words := receivedWords(e, message.Notification{Code: 2, Sub: 2})
	e.fail(DirectionReceived, words, now)
	e.guess(DirectionLocal, "closed without a word", now.Add(5*time.Second))
	if e.failure.words != words {
		t.Errorf("%q", e.failure.words)
	}
	e.guess(DirectionLocal, "closed without a word", now.Add(2*time.Minute))
	if e.failure.words != "closed without a word" {
		t.Errorf("an old NOTIFICATION is still shown: %q", e.failure.words)
	}
	e.fail(DirectionLocal, "connection refused", now)
	e.guess(DirectionLocal, "closed without a word", now.Add(time.Second))
	if e.failure.words != "closed without a word" {
		t.Errorf("%q", e.failure.words)
	}
}
