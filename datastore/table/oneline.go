package table

import (
	"fmt"
	"io"
	"strings"
	"unicode"
)

// OneLine keeps text of other writers, for instance from the datastore, from breaking a line or controlling the
// terminal: characters that are not printed become spaces.
func OneLine(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsGraphic(r) {
			return r
		}
		return ' '
	}, s)
}

// Fprintf is fmt.Fprintf with each argument of type string in OneLine.
func Fprintf(w io.Writer, format string, args ...any) {
	for i, a := range args {
		if s, ok := a.(string); ok {
			args[i] = OneLine(s)
		}
	}
	fmt.Fprintf(w, format, args...) //nolint:errcheck // w is a buffer
}
