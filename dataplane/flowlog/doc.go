// Package flowlog records which packets policy dropped or logged, and by which rule, without recording the same over
// and over.
package flowlog
