package table

import (
	"fmt"
	"strings"
)

// Format is an output format.
type Format string

// The formats of -o. "ps" and "yml" are accepted as calicoctl's names of table and yaml.
const (
	Table Format = "table"
	Wide  Format = "wide"
	YAML  Format = "yaml"
	JSON  Format = "json"
	Name  Format = "name"
)

// ParseFormat returns the format of a word; the empty word is a table. allowed lists those of the command; none allows
// all.
func ParseFormat(word string, allowed ...Format) (Format, error) {
	if len(allowed) == 0 {
		allowed = []Format{Table, Wide, YAML, JSON, Name}
	}
	f := Format(word)
	switch word {
	case "", "ps":
		f = Table
	case "yml":
		f = YAML
	}
	names := make([]string, len(allowed))
	for i, a := range allowed {
		if a == f {
			return f, nil
		}
		names[i] = string(a)
	}
	return "", fmt.Errorf("output format %q is not known here: use one of %s", word, strings.Join(names, ", "))
}
