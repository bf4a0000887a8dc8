package document

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
)

// splitJSON splits consecutive JSON values without a separator, the output of some tools. It returns d itself for
// anything else.
func (d document) splitJSON() []document {
	var parts []document
	values := json.NewDecoder(bytes.NewReader(d.text))
	for begin := 0; ; {
		var v json.RawMessage
		err := values.Decode(&v)
		if errors.Is(err, io.EOF) && len(parts) > 1 {
			return parts
		}
		if err != nil {
			return []document{d}
		}
		end := int(values.InputOffset())
		space := len(d.text[begin:end]) - len(bytes.TrimLeft(d.text[begin:end], " \t\r\n"))
		line := d.line + bytes.Count(d.text[:begin+space], []byte("\n"))
		parts = append(parts, document{number: d.number + len(parts), line: line, text: v})
		begin = end
	}
}
