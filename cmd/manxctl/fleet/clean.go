package fleet

import (
	"io"
	"unicode"
	"unicode/utf8"
)

// Clean returns a writer that passes on printable characters, tabs and ends of lines, so that the text of a node cannot
// control the terminal: escape sequences, carriage returns and changes of the direction of text become spaces. JSON and
// YAML keep their meaning: they write such characters as escapes.
func Clean(w io.Writer) io.Writer { return &cleaner{to: w} }

type cleaner struct {
	to   io.Writer
	rest []byte // the begin of a character, at most 3 bytes
}

// Write implements io.Writer.
func (c *cleaner) Write(p []byte) (int, error) {
	in := append(c.rest, p...)
	out := make([]byte, 0, len(in))
	for len(in) > 0 && utf8.FullRune(in) {
		r, size := utf8.DecodeRune(in)
		if r != '\n' && r != '\t' && !unicode.IsGraphic(r) {
			r = ' '
		}
		out, in = utf8.AppendRune(out, r), in[size:]
	}
	c.rest = append([]byte(nil), in...)
	if _, err := c.to.Write(out); err != nil {
		return 0, err
	}
	return len(p), nil
}
