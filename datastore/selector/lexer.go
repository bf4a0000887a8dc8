package selector

import (
	"fmt"
	"strings"
)

// kind is the type of a token.
type kind int

const (
	tokEnd kind = iota
	tokLabel
	tokString
	tokHas    // "has(", glued as the language wants it
	tokAll    // "all("
	tokGlobal // "global("
	tokLeftParen
	tokRightParen
	tokLeftBrace
	tokRightBrace
	tokComma
	tokNot
	tokAnd
	tokOr
	tokEq
	tokNe
	tokContains
	tokStartsWith
	tokEndsWith
	tokIn
	tokNotIn
)

// token is one word of a selector. text is the label's name or the string's content.
type token struct {
	kind kind
	text string
	pos  int // offset in bytes
	end  int
}

// lexer splits a selector into tokens on demand. A word's type depends on the token before: "in" is a label unless it
// follows one.
type lexer struct {
	input string
	pos   int
	after kind // the kind of the token before
}

// maxLabel is the length that Calico allows for a label's name.
const maxLabel = 512

// symbols are tested in order, so a longer one comes before its prefix.
var symbols = []struct {
	text string
	kind kind
}{
	{"==", tokEq}, {"!=", tokNe}, {"&&", tokAnd}, {"||", tokOr}, {"!", tokNot},
	{"(", tokLeftParen}, {")", tokRightParen}, {"{", tokLeftBrace}, {"}", tokRightBrace}, {",", tokComma},
}

// functions are only recognised with their parenthesis glued to them.
var functions = []struct {
	text string
	kind kind
}{{"has(", tokHas}, {"all(", tokAll}, {"global(", tokGlobal}}

// wordOperators are only recognised behind a label, and only as whole words.
var wordOperators = []struct {
	text string
	kind kind
}{
	{"contains", tokContains},
	{"starts with", tokStartsWith}, {"startswith", tokStartsWith},
	{"ends with", tokEndsWith}, {"endswith", tokEndsWith},
	{"not in", tokNotIn}, {"notin", tokNotIn}, {"in", tokIn},
}

func (l *lexer) next() (token, error) {
	for l.pos < len(l.input) && (l.input[l.pos] == ' ' || l.input[l.pos] == '\t') {
		l.pos++
	}
	t, err := l.scan(l.input[l.pos:])
	if err != nil {
		return token{}, err
	}
	t.pos = l.pos
	l.pos += t.end
	t.end = l.pos
	l.after = t.kind
	return t, nil
}

// scan returns the token at the start of rest; its end is its length.
func (l *lexer) scan(rest string) (token, error) {
	if rest == "" {
		return token{kind: tokEnd}, nil
	}
	if rest[0] == '"' || rest[0] == '\'' {
		n := strings.IndexByte(rest[1:], rest[0])
		if n < 0 {
			return token{}, l.failf("this string has no closing quote %c", rest[0])
		}
		return token{kind: tokString, text: rest[1 : n+1], end: n + 2}, nil
	}
	for _, s := range symbols {
		if strings.HasPrefix(rest, s.text) {
			return token{kind: s.kind, end: len(s.text)}, nil
		}
	}
	n := labelLength(rest)
	if l.after == tokLabel {
		return l.scanOperator(rest, n)
	}
	if n == 0 {
		return token{}, l.failf("unexpected character %q", firstRune(rest))
	}
	for _, f := range functions {
		if strings.HasPrefix(rest, f.text) {
			return token{kind: f.kind, end: len(f.text)}, nil
		}
	}
	if n > maxLabel {
		return token{}, l.failf("this label name has %d characters: at most %d are allowed", n, maxLabel)
	}
	return token{kind: tokLabel, text: rest[:n], end: n}, nil
}

func (l *lexer) scanOperator(rest string, n int) (token, error) {
	for _, w := range wordOperators {
		if strings.HasPrefix(rest, w.text) && labelLength(rest[len(w.text):]) == 0 {
			return token{kind: w.kind, end: len(w.text)}, nil
		}
	}
	if n == 0 {
		return token{}, l.failf("unexpected character %q: expected %s", firstRune(rest), operators)
	}
	return token{}, l.failf("unexpected %q: expected %s", shorten(rest[:n]), operators)
}

// labelLength returns the length of the label's name at the start of s.
func labelLength(s string) int {
	for i := range len(s) {
		c := s[i]
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '_', c == '.', c == '/', c == '-':
		default:
			return i
		}
	}
	return len(s)
}

func firstRune(s string) string {
	for _, r := range s {
		return string(r)
	}
	return ""
}

// shorten truncates a long selector in a message.
func shorten(s string) string {
	if len(s) > 40 {
		return s[:40] + "..."
	}
	return s
}

func (l *lexer) failf(format string, args ...any) error {
	return &syntaxError{Position: l.pos + 1, Reason: fmt.Sprintf(format, args...)}
}
