// Package bench has the benchmarks of whole programs; Manx and BIRD are measured in the same run.
package bench
