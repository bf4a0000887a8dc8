package hostfirewall

import (
	"fmt"
	"strconv"
	"strings"
)

// longestName is the length to which a name or comment of another program is cut, in bytes.
const longestName = 80

// plainBytes are those of names that need no quotes.
const plainBytes = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./+*:@"

// quote returns a name that another program chose, for people: one with characters that a terminal or a log could take
// for something else comes as a quoted ASCII string. Long ones are cut.
func quote(name string) string {
	cut := ""
	if len(name) > longestName {
		name, cut = name[:longestName], "..."
	}
	if name != "" && strings.Trim(name, plainBytes) == "" {
		return name + cut
	}
	return strconv.QuoteToASCII(name) + cut
}

// title names a table with its family.
func (t *Table) title() string { return t.Family + " " + quote(t.Name) }

// text describes the place for people.
func (p place) text() string {
	if p.rule == nil {
		return "policy drop"
	}
	text := fmt.Sprintf("rule %d of chain %s, handle %d", p.rule.Number, quote(p.chain), p.rule.Handle)
	if p.rule.Comment != "" {
		c := p.rule.Comment
		if len(c) > longestName {
			c = c[:longestName] + "..."
		}
		text += ", " + strconv.QuoteToASCII(c)
	}
	if len(p.rule.Unread) > 0 {
		text += ", with conditions that manxd cannot read: " + quote(strings.Join(p.rule.Unread, ", "))
	}
	if p.rule.Verdict == Unreadable {
		text += ", whose statement manxd cannot read: " + quote(p.rule.Target)
	}
	return text
}

func texts(list []place) (out []string) {
	for _, p := range list {
		out = append(out, p.text())
	}
	return out
}
