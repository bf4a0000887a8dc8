// Package manifest reads resource files strictly: YAML or JSON, many documents, lists, folders, errors with line numbers.
package manifest
