// Package driver makes a target of an agent from the objects that a host should have, a list of those that it has, and
// the way to change one: it follows the host's state and its interfaces, compares, repeats and reports.
package driver
