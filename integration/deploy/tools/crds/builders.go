package main

import (
	"encoding/json"

	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
)

func value(v any) apiextensions.JSON {
	raw, err := json.Marshal(v)
	if err != nil {
		panic(err) // the rules are constants
	}
	return apiextensions.JSON{Raw: raw}
}

func enum(values ...any) func(*apiextensions.JSONSchemaProps) {
	return func(s *apiextensions.JSONSchemaProps) {
		s.Enum = nil
		for _, v := range values {
			s.Enum = append(s.Enum, value(v))
		}
	}
}

func def(v any) func(*apiextensions.JSONSchemaProps) {
	return func(s *apiextensions.JSONSchemaProps) { j := value(v); s.Default = &j }
}

func pattern(p string) func(*apiextensions.JSONSchemaProps) {
	return func(s *apiextensions.JSONSchemaProps) { s.Pattern = p }
}

func between(low, high float64) func(*apiextensions.JSONSchemaProps) {
	return func(s *apiextensions.JSONSchemaProps) { s.Minimum, s.Maximum = &low, &high }
}

func atMost(n int64) func(*apiextensions.JSONSchemaProps) {
	return func(s *apiextensions.JSONSchemaProps) { s.MaxItems = &n }
}

func atLeast(n int64) func(*apiextensions.JSONSchemaProps) {
	return func(s *apiextensions.JSONSchemaProps) { s.MinItems = &n }
}

func atLeastNumber(low float64) func(*apiextensions.JSONSchemaProps) {
	return func(s *apiextensions.JSONSchemaProps) { s.Minimum = &low }
}

func longest(n int64) func(*apiextensions.JSONSchemaProps) {
	return func(s *apiextensions.JSONSchemaProps) { s.MaxLength = &n }
}

// cel is a rule in the Common Expression Language.
func cel(message, rule string) func(*apiextensions.JSONSchemaProps) {
	return func(s *apiextensions.JSONSchemaProps) {
		s.XValidations = append(s.XValidations, apiextensions.ValidationRule{Rule: rule, Message: message})
	}
}

// on is true if a field is there and not an empty value.
func on(field, nothing string) string {
	return "has(self." + field + ") && self." + field + " != '" + nothing + "'"
}

func both(a, b func(*apiextensions.JSONSchemaProps)) func(*apiextensions.JSONSchemaProps) {
	return func(s *apiextensions.JSONSchemaProps) { a(s); b(s) }
}

// needs makes a field required.
func needs(field string) func(*apiextensions.JSONSchemaProps) {
	return func(s *apiextensions.JSONSchemaProps) { s.Required = append(s.Required, field) }
}
