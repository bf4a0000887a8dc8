package table

import (
	"strings"
	"testing"
)

// TestFprintfKeepsTerminalsSafe has control characters of ASCII, of C1, and a change of the direction of writing.
func TestFprintfKeepsTerminalsSafe(t *testing.T) {
	var b strings.Builder
	Fprintf(&b, "%s: %d %s\n", "a\x1b[2J\u009b2J\u202eb", 7, "é\r\nß")
	if have, want := b.String(), "a [2J 2J b: 7 é  ß\n"; have != want {
		t.Errorf("have %q, want %q", have, want)
	}
}
