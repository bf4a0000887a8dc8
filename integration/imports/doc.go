// Package imports tests the dependencies of Manx: those between its packages follow the table in docs/architecture.md,
// and each library has its reason in docs/decisions.
package imports
