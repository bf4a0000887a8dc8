package ruleset

import (
	"net/netip"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// String renders the element as nft would have it in a set of its type.
func (e Element) String() string {
	switch {
	case !e.Prefix.IsValid():
		return rangeText(uint32(e.Low), uint32(e.High))
	case e.Protocol != 0 || e.Low != 0:
		return e.endpoint()
	}
	return prefixText(e.Prefix)
}

func (e Element) endpoint() string {
	return prefixText(e.Prefix) + " . " + protocolName(uint32(e.Protocol)) + " . " + strconv.Itoa(int(e.Low))
}

// text is String for a type that is known.
func (e Element) text(t SetType) string {
	if t == Endpoints4 || t == Endpoints6 {
		return e.endpoint()
	}
	return e.String()
}

func prefixText(p netip.Prefix) string {
	if p.IsSingleIP() {
		return p.Addr().String()
	}
	return p.String()
}

func rangeText(low, high uint32) string {
	if high <= low {
		return strconv.FormatUint(uint64(low), 10)
	}
	return strconv.FormatUint(uint64(low), 10) + "-" + strconv.FormatUint(uint64(high), 10)
}

// printable returns a name as it is if nft takes it as one, and in quotes if not.
func printable(name string) string {
	for i, c := range name {
		letter := c < utf8.RuneSelf && unicode.IsLetter(c)
		if !letter && (i == 0 || !strings.ContainsRune("0123456789/-_.", c)) {
			return strconv.QuoteToGraphic(name)
		}
	}
	if name == "" {
		return `""`
	}
	return name
}

// quoted puts text in quotes. nft has no escape for a quote inside, and a character that is not graphic could hide
// text.
func quoted(text string) string { return `"` + clean(text) + `"` }

func clean(text string) string {
	return strings.Map(func(c rune) rune {
		switch {
		case c == '"':
			return '\''
		case c == ' ' || unicode.IsGraphic(c) && !unicode.IsSpace(c):
			return c
		}
		return '?'
	}, strings.ToValidUTF8(text, "?"))
}

// maxComment is nft's limit for the comment of a rule; a longer one is rendered as a comment for people only.
const maxComment = 128

func commentText(text string) string {
	if len(text) > maxComment {
		return "# " + clean(text)
	}
	return "comment " + quoted(text)
}

// thousands renders 99000 as 99,000.
func thousands(n int) string {
	text := strconv.Itoa(n)
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}
