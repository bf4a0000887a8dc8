// Package password reads the MD5 passwords of BGP sessions (RFC 2385) from a folder and keeps the last good ones.
package password
