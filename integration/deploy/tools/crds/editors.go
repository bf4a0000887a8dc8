package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

	"github.com/manxnet/manx/integration/deploy/tools/jsonschema"
)

// draft is that of which editors and kubeconform know all.
const draft = "http://json-schema.org/draft-07/schema#"

// objectsOfOthers are kinds of users' documents that have no definition: Kubernetes keeps them in objects of its own.
var objectsOfOthers = []string{"Node", "Profile", "WorkloadEndpoint"}

// editors writes the JSON schemas of kinds, by the names by which kubeconform looks for them, and one for all kinds,
// all.json. Documents of other groups have no rules there, because they may be in the same file.
func editors(folder string, definitions []*apiextensions.CustomResourceDefinition) error {
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	files, version := map[string]string{}, "" // by kind
	for _, d := range definitions {
		version = d.Spec.Group + "/" + d.Spec.Versions[0].Name
		schema, err := editorSchema(d, version)
		if err != nil {
			return err
		}
		kind := d.Spec.Names.Kind
		files[kind] = strings.ToLower(kind) + "_" + d.Spec.Versions[0].Name + ".json"
		if err := writeJSON(filepath.Join(folder, files[kind]), schema); err != nil {
			return err
		}
	}
	return writeJSON(filepath.Join(folder, "all.json"), allKinds(version, files))
}

// editorSchema is the schema of a definition with the version and the kind of its objects.
func editorSchema(definition *apiextensions.CustomResourceDefinition, version string) (map[string]any, error) {
	raw, err := json.Marshal(definition.Spec.Versions[0].Schema.OpenAPIV3Schema)
	if err != nil {
		return nil, err
	}
	var schema map[string]any
	if err := json.Unmarshal(raw, &schema); err != nil {
		return nil, err
	}
	if err := jsonschema.Strict(schema); err != nil {
		return nil, fmt.Errorf("%s: %w", definition.Name, err)
	}
	texts := map[string]any{"type": "object", "additionalProperties": map[string]any{"type": "string"}}
	metadata := map[string]any{"name": map[string]any{"type": "string"}, "labels": texts, "annotations": texts}
	if definition.Spec.Scope == apiextensions.NamespaceScoped {
		metadata["namespace"] = map[string]any{"type": "string"}
	}
	properties := schema["properties"].(map[string]any)
	properties["apiVersion"] = map[string]any{"const": version}
	properties["kind"] = map[string]any{"const": definition.Spec.Names.Kind}
	properties["metadata"] = map[string]any{"type": "object", "required": []string{"name"}, "properties": metadata}
	schema["required"], schema["$schema"] = []string{"apiVersion", "kind", "metadata"}, draft
	return schema, nil
}

// allKinds is the schema that leads a document to that of its kind.
func allKinds(version string, files map[string]string) map[string]any {
	var known []string
	var rules []any
	is := func(kind any) map[string]any {
		return map[string]any{"required": []string{"kind"}, "properties": map[string]any{"kind": kind}}
	}
	for _, kind := range slices.Sorted(maps.Keys(files)) {
		known = append(known, kind, kind+"List")
		rules = append(rules, map[string]any{"if": is(map[string]any{"const": kind}),
			"then": map[string]any{"$ref": files[kind]}})
	}
	items := map[string]any{"items": map[string]any{"$ref": "#"}}
	rules = append(rules, is(map[string]any{"enum": append(known, objectsOfOthers...)}), map[string]any{
		"if":   is(map[string]any{"pattern": "List$"}),
		"then": map[string]any{"properties": map[string]any{"items": items}}})
	group, _, _ := strings.Cut(version, "/")
	of := func(rule map[string]any) map[string]any {
		return map[string]any{"required": []string{"apiVersion"}, "properties": map[string]any{"apiVersion": rule}}
	}
	return map[string]any{"$schema": draft, "type": "object", "required": []string{"apiVersion", "kind"},
		"if":   of(map[string]any{"pattern": "^" + strings.ReplaceAll(group, ".", `\.`) + "(/|$)"}),
		"then": map[string]any{"allOf": append([]any{of(map[string]any{"const": version})}, rules...)}}
}

func writeJSON(path string, schema map[string]any) error {
	raw, err := json.MarshalIndent(schema, "", " ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(raw, '\n'), 0o644)
}
