// Package imports tests that the dependencies between Manx's packages follow the table in docs/architecture.md.
package imports
