// Package lint holds checks of the source text that no common linter has: unused exported names, functions with many
// parameters, lines that are too long.
package lint
