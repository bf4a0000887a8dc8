// Package userinfo hides the names and passwords that endpoints have before their host.
package userinfo

import "regexp"

// pair is what a URL has before its host, and USER:PASSWORD@ without a URL. It ends at the last "@", since a password
// may have one, and at no comma or quote of a list, for the same reason: rather a host too many is hidden. A quote of
// JSON ends it unless it is escaped.
var pair = regexp.MustCompile(`(://)(?:\\"|[^\s"/])*@|[^\s"/:@]+:(?:\\"|[^\s"/])*@`)

// Hide returns a text without users and passwords before hosts. No match extends over white space.
func Hide(text []byte) []byte { return pair.ReplaceAll(text, []byte("${1}(hidden)@")) }
