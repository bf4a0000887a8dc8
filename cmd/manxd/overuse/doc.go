// Package overuse keeps one workload from taking all of what its host's kernel has for everybody: the table of
// connections. It also reports workloads that send too many fragments, which rules bound.
package overuse
