// Package selector parses, prints and evaluates Calico's label selectors.
package selector
