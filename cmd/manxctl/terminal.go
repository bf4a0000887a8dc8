package main

import (
	"io"
	"os"

	"golang.org/x/term"
)

// isTerminal reports whether a person reads what is written.
func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd())) // its mode is not enough: /dev/null is a character device, too
}
