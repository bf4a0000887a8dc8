// Package bench holds the benchmarks that run whole programs, Manx beside BIRD, in one run.
package bench
