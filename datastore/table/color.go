package table

// Color is how a text stands out on a terminal.
type Color string

// The colours of ECMA-48 that show on light and on dark ground. plain has the same length as the others, so that the
// columns of a table stay aligned.
const (
	plain Color = "\x1b[39m"
	Good  Color = "\x1b[32m"
	Doubt Color = "\x1b[33m"
	Bad   Color = "\x1b[31m"
)

// Paint returns a text in a colour.
func (c Color) Paint(text string) string { return string(c) + text + "\x1b[0m" }
