package nftables

import (
	"strings"
	"unicode/utf8"

	"github.com/google/nftables/userdata"

	"github.com/manxnet/manx/dataplane/ruleset"
)

// maxComment is nft's limit for a comment, in bytes.
const maxComment = 127

const idMark = "#"

// ruleUserdata is the comment as nft keeps it with a rule: the rule's comment, and its ID at the end.
func ruleUserdata(r ruleset.Rule) []byte {
	return userdata.AppendString(nil, userdata.TypeComment, ruleComment(r.Comment, r.ID()))
}

func ruleComment(comment, id string) string {
	suffix := idMark + id
	if comment == "" {
		return suffix
	}
	return shorten(strings.Map(commentRune, comment), maxComment-len(suffix)-1) + " " + suffix
}

// commentRune replaces characters that nft could not read back.
func commentRune(r rune) rune {
	if r < ' ' || r == '"' || r == utf8.RuneError {
		return '?'
	}
	return r
}

// shorten leaves out the middle of s, so that the kind of policy and the number of the rule stay.
func shorten(s string, size int) string {
	const gap = "..."
	if len(s) <= size {
		return s
	}
	head := (size - len(gap)) / 2
	tail := len(s) - (size - len(gap) - head)
	for head > 0 && !utf8.RuneStart(s[head]) {
		head--
	}
	for tail < len(s) && !utf8.RuneStart(s[tail]) {
		tail++
	}
	return s[:head] + gap + s[tail:]
}

// ruleID returns the ID that is kept with a rule, empty if there is none.
func ruleID(data []byte) string {
	_, id := splitComment(commentOf(data))
	return id
}

// splitComment undoes ruleComment.
func splitComment(all string) (comment, id string) {
	i := strings.LastIndex(all, idMark)
	if i < 0 {
		return all, ""
	}
	return strings.TrimSuffix(all[:i], " "), all[i+len(idMark):]
}

// commentOf is the comment that nft keeps with a rule.
func commentOf(data []byte) string {
	for len(data) >= 2 && len(data) >= 2+int(data[1]) {
		value := data[2 : 2+int(data[1])]
		if userdata.Type(data[0]) == userdata.TypeComment {
			return text(value)
		}
		data = data[2+len(value):]
	}
	return ""
}
