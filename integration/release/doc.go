// Package release tests the released programs: they can be rebuilt byte for byte, the list of their modules and
// licences is complete, and the check for known vulnerabilities reports its outcome.
package release
