// Package flowlog records which packets policy dropped or logged, and by which rule. Repetitions are summed up.
package flowlog
