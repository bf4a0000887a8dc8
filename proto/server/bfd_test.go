package server

import (
	"testing"

	"github.com/manxnet/manx/bgp/bfd"
)

func TestBFDReasonSaysWhatIsDropped(t *testing.T) {
	for want, b := range map[string]bfd.Status{
		"the remote answers": {Reason: "the remote answers"},
		"port taken":         {Reason: "no packet has come yet", Error: "port taken"},
		"no packet has come yet; packets dropped: 3 with too low a TTL (the last had 64)": {
			Reason: "no packet has come yet", Drops: bfd.Drops{TTL: 3, LastTTL: 64}},
		"the remote answers; packets dropped: 5 too many, 2 that said it is down without naming the session": {
			Reason: "the remote answers", Drops: bfd.Drops{Rate: 5, Unconfirmed: 2}},
	} {
		if got := bfdReason(&b); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
