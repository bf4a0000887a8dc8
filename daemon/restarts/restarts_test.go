package restarts

import (
	"testing"
	"time"
)

func TestRecord(t *testing.T) {
	for _, r := range []Record{{},
		{Count: 3, Last: time.UnixMilli(1764122400123), Reason: "SIGSEGV", Report: true},
		{Count: 1, Last: time.UnixMilli(1), Reason: "exit code 1"}} {
		if got, err := Parse(r.String()); err != nil || got != r {
			t.Errorf("%q is %+v, %v; want %+v", r, got, err, r)
		}
	}
	for _, text := range []string{"", "x", "-1", "0 1 true SIGSEGV", "1", "1 2 true", "1 2 true ", "1 x true SIGSEGV",
		"1 2 x SIGSEGV"} {
		if got, err := Parse(text); err == nil {
			t.Errorf("%q is %+v", text, got)
		}
	}
}
