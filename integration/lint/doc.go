// Package lint holds checks of the source text that no common linter has: exported names that nobody uses, functions
// with many parameters, lines that are too long.
package lint
