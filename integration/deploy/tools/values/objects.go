package main

import (
	"fmt"
	"os"
	"path/filepath"

	"sigs.k8s.io/yaml"

	"github.com/manxnet/manx/integration/deploy/tools/jsonschema"
)

// objects are the kinds that values may have, with the names of their definitions.
var objects = map[string]string{
	"BGPPeer": "bgppeers", "BGPConfiguration": "bgpconfigurations", "BGPFilter": "bgpfilters", "IPPool": "ippools",
}

// define adds the specs of the objects to the definitions of a schema, as the CustomResourceDefinitions in a folder
// have them: what the API server refuses, Helm refuses before.
func define(schema map[string]any, folder string) error {
	definitions, _ := schema["definitions"].(map[string]any)
	for kind, plural := range objects {
		text, err := os.ReadFile(filepath.Join(folder, plural+".yaml"))
		if err != nil {
			return err
		}
		var crd struct {
			Spec struct {
				Versions []struct {
					Schema struct {
						OpenAPI struct {
							Properties map[string]map[string]any `json:"properties"`
						} `json:"openAPIV3Schema"`
					} `json:"schema"`
				} `json:"versions"`
			} `json:"spec"`
		}
		if err := yaml.Unmarshal(text, &crd); err != nil {
			return fmt.Errorf("%s: %w", plural, err)
		}
		if len(crd.Spec.Versions) != 1 || crd.Spec.Versions[0].Schema.OpenAPI.Properties["spec"] == nil {
			return fmt.Errorf("%s: want one version with a spec", plural)
		}
		spec := crd.Spec.Versions[0].Schema.OpenAPI.Properties["spec"]
		if err := jsonschema.Strict(spec); err != nil {
			return fmt.Errorf("%s: %w", plural, err)
		}
		definitions[kind] = spec
	}
	return nil
}
