// Package document reads objects from the text of users, YAML or JSON, and finds the line of each field.
package document
