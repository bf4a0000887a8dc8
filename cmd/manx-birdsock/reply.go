package main

import (
	"bufio"
	"fmt"
)

// reply writes an answer: lines that begin with a code of four digits and "-", or with a space if the code is that of
// the line before, and one with a code and a space to end it.
type reply struct {
	w    *bufio.Writer
	last int
}

func (r *reply) line(code int, format string, args ...any) {
	if code == r.last {
		_, _ = r.w.WriteString(" ")
	} else {
		_, _ = fmt.Fprintf(r.w, "%04d-", code)
		r.last = code
	}
	_, _ = fmt.Fprintf(r.w, format+"\n", args...)
}

func (r *reply) end(code int, text string) { _, _ = fmt.Fprintf(r.w, "%04d %s\n", code, text) }
