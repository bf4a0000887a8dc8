// Package flowlog tells which packets policy dropped or logged, and by which rule, without telling the same over and
// over.
package flowlog
