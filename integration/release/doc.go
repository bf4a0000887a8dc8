// Package release holds the tests of what is handed out: programs that anybody can build again byte for byte, the list
// of their modules with licences, and the look into the database of vulnerabilities.
package release
