package archive

import (
	"testing"

	"github.com/manxnet/manx/datastore/userinfo"
)

// TestCutHidesPairs: no place of the cut leaves a part of a password.
func TestCutHidesPairs(t *testing.T) {
	const text = "begin https://root:hunter2@host end"
	for most := range len(text) + 1 {
		want := map[bool]string{true: "begin " + leftOut, false: "begin https://(hidden)@host " + leftOut}[most < 32]
		switch {
		case most < len("begin "):
			want = leftOut
		case most == len(text):
			want = "begin https://(hidden)@host end"
		}
		if got := string(userinfo.Hide(cut([]byte(text), most))); got != want {
			t.Errorf("at %d: %q, want %q", most, got, want)
		}
	}
}
