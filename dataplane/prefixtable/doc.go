// Package prefixtable keeps rows by IP prefix, a million of them if need be, in memory that the garbage collector does
// not have to look at, and values that many rows share.
package prefixtable
