// Package flowlog records which packets policy dropped or logged, and by which rule. It sums up repetitions, passes the
// records to subscribers, and writes them as lines.
package flowlog
