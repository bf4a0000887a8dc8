// Package table prints objects and query results for people and for programs: tables, wide tables, YAML, JSON and
// names.
package table
