// Package release tests the released programs: anybody can build them again byte for byte, the list of their modules
// and licences is complete, and the check for known vulnerabilities reports its outcome.
package release
