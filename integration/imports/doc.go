// Package imports holds the test that keeps the dependencies between Manx's packages as docs/architecture.md draws
// them.
package imports
