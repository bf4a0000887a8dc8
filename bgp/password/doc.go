// Package password reads the MD5 passwords of BGP sessions (RFC 2385) from a folder, keeps the last good ones, and
// watches the folder.
package password
