// Package selector parses, composes, prints and evaluates Calico's label selectors.
package selector
