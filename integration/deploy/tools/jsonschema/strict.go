// Package jsonschema turns schemas of CustomResourceDefinitions into JSON schemas (draft 7), which editors and Helm
// read.
package jsonschema

import (
	"fmt"
	"regexp"
	"strings"
)

// Strict turns the schema of a definition into one in which unknown fields are errors, unless the API server keeps
// them. Keywords that only API servers know go.
func Strict(schema map[string]any) error {
	keeps := schema["x-kubernetes-preserve-unknown-fields"] == true
	if of, ok := schema["type"].(string); ok && schema["nullable"] == true {
		schema["type"] = []any{of, "null"}
	}
	for name := range schema {
		if strings.HasPrefix(name, "x-kubernetes-") || name == "format" || name == "default" || name == "nullable" {
			delete(schema, name)
		}
	}
	if text, ok := schema["pattern"].(string); ok {
		pattern, err := portable(text)
		if err != nil {
			return err
		}
		schema["pattern"] = pattern
	}
	if properties, ok := schema["properties"].(map[string]any); ok {
		for name, of := range properties {
			if err := Strict(of.(map[string]any)); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
		}
		if !keeps {
			schema["additionalProperties"] = false
		}
	}
	for _, below := range []string{"items", "additionalProperties"} {
		if of, ok := schema[below].(map[string]any); ok {
			if err := Strict(of); err != nil {
				return err
			}
		}
	}
	return nil
}

var letters = regexp.MustCompile(`[A-Za-z]`)

// portable is a pattern of Go that JavaScript, too, understands: it has no (?i) within a pattern.
func portable(pattern string) (string, error) {
	text, anyCase := strings.CutPrefix(pattern, "^(?i)")
	if strings.Contains(text, "(?") || anyCase && strings.ContainsAny(text, `\[`) {
		return "", fmt.Errorf("JavaScript has no pattern %s", pattern)
	}
	if !anyCase {
		return pattern, nil
	}
	return "^" + letters.ReplaceAllStringFunc(text, func(l string) string {
		return "[" + strings.ToUpper(l) + strings.ToLower(l) + "]"
	}), nil
}
