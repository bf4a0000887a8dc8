// Package lint has checks of the source text that common linters lack: unused exported names, functions with many
// parameters, lines that are too long.
package lint
