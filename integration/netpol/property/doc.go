// Package property holds policy against itself at random: the calculator's steps against a fresh start, Eval against
// the semantics written down once more, and the kernel against Eval.
package property
