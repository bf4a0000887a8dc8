// Package table prints objects and answers for people and for programs: tables, wide tables, YAML, JSON and names.
package table
