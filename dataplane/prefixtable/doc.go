// Package prefixtable keeps rows by IP prefix, up to a million, in memory that the garbage collector need not scan, and
// values that many rows share.
package prefixtable
