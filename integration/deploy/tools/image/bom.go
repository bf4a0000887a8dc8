package main

import (
	"encoding/json"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

const bomSuffix = ".cdx.json"

// bom is a list of components in CycloneDX; components themselves are kept as they are.
type bom struct {
	Format      string `json:"bomFormat"`
	SpecVersion string `json:"specVersion"`
	Version     int    `json:"version"`
	Metadata    struct {
		Component map[string]any `json:"component"`
	} `json:"metadata"`
	Components   []map[string]any `json:"components"`
	Dependencies []dependency     `json:"dependencies"`
}

type dependency struct {
	Ref       string   `json:"ref"`
	DependsOn []string `json:"dependsOn,omitempty"`
}

// writeBOM joins the lists of an architecture's programs to one of its image. It writes nothing if there are none.
func (s settings) writeBOM(to, arch string, digest v1.Hash) error {
	lists, err := filepath.Glob(filepath.Join(s.programs, arch, "*"+bomSuffix))
	if err != nil || len(lists) == 0 {
		return err
	}
	ref := "pkg:oci/manx@" + digest.String() + "?arch=" + arch
	joined := bom{Format: "CycloneDX", Version: 1}
	joined.Metadata.Component = map[string]any{"type": "container", "name": s.name, "version": s.version,
		"bom-ref": ref, "purl": ref}
	components, dependencies := map[string]map[string]any{}, map[string][]string{}
	for _, list := range lists {
		raw, err := os.ReadFile(list)
		if err != nil {
			return err
		}
		var b bom
		if err := json.Unmarshal(raw, &b); err != nil {
			return err
		}
		joined.SpecVersion = b.SpecVersion
		for _, c := range append(b.Components, b.Metadata.Component) {
			components[c["bom-ref"].(string)] = c
		}
		for _, d := range b.Dependencies {
			dependencies[d.Ref] = union(dependencies[d.Ref], d.DependsOn)
		}
		dependencies[ref] = union(dependencies[ref], []string{b.Metadata.Component["bom-ref"].(string)})
	}
	for _, name := range slices.Sorted(maps.Keys(components)) {
		joined.Components = append(joined.Components, components[name])
	}
	for _, name := range slices.Sorted(maps.Keys(dependencies)) {
		joined.Dependencies = append(joined.Dependencies, dependency{name, dependencies[name]})
	}
	text, err := json.MarshalIndent(joined, "", "  ")
	if err != nil {
		return err
	}
	if err := os.Remove(to); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return os.WriteFile(to, append(text, '\n'), 0o644)
}

func union(a, b []string) []string {
	all := slices.Concat(a, b)
	slices.Sort(all)
	return slices.Compact(all)
}
