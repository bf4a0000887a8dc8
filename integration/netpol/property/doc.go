// Package property tests policy with random policies and packets: the calculator's steps against a fresh start, Eval
// against a second implementation of the semantics, and the kernel against Eval.
package property
