package main

import (
	"bytes"
	_ "embed"
	"fmt"
	"maps"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
)

//go:embed sentences.yaml
var sentencesFile []byte

// sentences are those of some kinds, in the order of the file.
type sentences struct {
	kinds string // separated by spaces, or "*" for all that have the fields
	list  []sentence
}

// sentence is about the fields that a path leads to; the path has the form of a rule's, but begins at the object.
type sentence struct{ path, text string }

// everyKind marks the sentences about fields that most kinds have.
const everyKind = "*"

func readSentences() ([]sentences, error) {
	var file yaml.Node
	if err := yaml.NewDecoder(bytes.NewReader(sentencesFile)).Decode(&file); err != nil {
		return nil, err
	}
	var all []sentences
	for kinds, of := range pairs(file.Content[0]) {
		s := sentences{kinds: kinds.Value}
		for path, text := range pairs(of) {
			s.list = append(s.list, sentence{path.Value, strings.TrimSpace(text.Value)})
		}
		all = append(all, s)
	}
	return all, nil
}

// pairs visits a mapping in the order of the file.
func pairs(m *yaml.Node) func(func(key, value *yaml.Node) bool) {
	return func(yield func(key, value *yaml.Node) bool) {
		for i := 0; i+1 < len(m.Content); i += 2 {
			if !yield(m.Content[i], m.Content[i+1]) {
				return
			}
		}
	}
}

// describe sets the descriptions of a kind's schema. An error names fields with no sentence or two, and sentences about
// no field.
func describe(kind string, schema *apiextensions.JSONSchemaProps, all []sentences) error {
	var faults []string
	for _, s := range all {
		if s.kinds != everyKind && !contains(s.kinds, kind) {
			continue
		}
		for _, about := range s.list {
			for _, path := range expand(about.path) {
				found := at(schema, path, func(p *apiextensions.JSONSchemaProps) {
					if p.Description != "" {
						faults = append(faults, path+" has two sentences")
					}
					p.Description = about.text
				})
				if !found && s.kinds != everyKind {
					faults = append(faults, path+" is no field")
				}
			}
		}
	}
	if schema.Description == "" {
		faults = append(faults, "the kind has no sentence")
	}
	if faults = append(faults, undescribed("", schema)...); len(faults) > 0 {
		return fmt.Errorf("sentences.yaml: %s", strings.Join(faults, "; "))
	}
	return nil
}

// undescribed returns the paths of fields without a sentence. The API server describes the fields of each object.
func undescribed(path string, s *apiextensions.JSONSchemaProps) (list []string) {
	for _, name := range slices.Sorted(maps.Keys(s.Properties)) {
		field := s.Properties[name]
		if path == "" && (name == "apiVersion" || name == "kind" || name == "metadata") {
			continue
		}
		if field.Description == "" {
			list = append(list, path+name+" has no sentence")
		}
		list = append(list, undescribed(path+name+".", &field)...)
		if field.Items != nil {
			list = append(list, undescribed(path+name+"[].", field.Items.Schema)...)
		}
	}
	return list
}
