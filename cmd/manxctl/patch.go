package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"sigs.k8s.io/yaml"

	"github.com/manxnet/manx/datastore/model"
)

// The values of patch --type.
const (
	patchStrategic = "strategic"
	patchMerge     = "merge"
	patchJSON      = "json"
)

func (c *cli) patchCommand() *cobra.Command {
	var ns namespaces
	var text, kind string
	cmd := &cobra.Command{
		Use:   "patch KIND NAME -p PATCH",
		Short: "Change fields of an object",
		Long: `Change fields of an object. PATCH is JSON or YAML.

  --type strategic  fields of the patch replace those of the object, null removes a field, and lists of Kubernetes'
                    types are merged by their key (the default, as in kubectl and calicoctl)
  --type merge      as strategic, and every list is replaced (RFC 7386)
  --type json       a list of operations (RFC 6902)

The result is checked as by apply. If another program writes the object meanwhile, the patch is applied to its version.`,
		Example: "  manxctl patch bgppeer tor-1 -p '{\"spec\": {\"asNumber\": 65000}}'\n" +
			"  manxctl patch bgppeer tor-1 --type json " +
			"-p '[{\"op\": \"replace\", \"path\": \"/spec/asNumber\", \"value\": 65000}]'",
		RunE: func(cmd *cobra.Command, args []string) error {
			ns.context = c.namespace
			t, err := oneTarget(cmd, args, ns)
			if err != nil {
				return err
			}
			patch, err := parsePatch(kind, text)
			if err != nil {
				return err
			}
			change := func(o *model.Object) error {
				was, err := documentJSON(o)
				if err != nil {
					return err
				}
				next, err := patch(was, o.Value)
				if err != nil {
					return fmt.Errorf("the patch does not fit: %w", err)
				}
				return setDocument(o, next)
			}
			return c.modify(cmd.Context(), t, ns, modification{done: "patched", warn: true, change: change})
		},
		ValidArgsFunction: c.completeObjects,
	}
	f := cmd.Flags()
	f.StringVarP(&text, "patch", "p", "", "the patch, JSON or YAML")
	f.StringVarP(&kind, "type", "t", patchStrategic, "strategic, merge or json")
	f.StringVarP(&ns.name, "namespace", "n", "", "namespace of namespaced kinds (\"default\" if not given)")
	_ = cmd.RegisterFlagCompletionFunc("type", cobra.FixedCompletions([]string{patchStrategic, patchMerge, patchJSON},
		cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

// patcher applies a patch to the JSON of a value.
type patcher func(document []byte, value any) ([]byte, error)

func parsePatch(kind, text string) (patcher, error) {
	if strings.TrimSpace(text) == "" {
		return nil, usagef("patch needs -p PATCH")
	}
	patch, err := yaml.YAMLToJSON([]byte(text))
	if err != nil {
		return nil, usagef("-p: the patch is neither JSON nor YAML: %v", err)
	}
	list := strings.HasPrefix(string(patch), "[")
	switch {
	case kind == patchJSON && !list:
		return nil, usagef("-p: --type json wants a list of operations such as [{\"op\": \"replace\", ...}]; an " +
			"object is for --type strategic or merge")
	case kind == patchJSON:
		operations, err := jsonpatch.DecodePatch(patch)
		if err != nil {
			return nil, usagef("-p: %v", err)
		}
		return func(document []byte, _ any) ([]byte, error) { return operations.Apply(document) }, nil
	case kind != patchStrategic && kind != patchMerge:
		return nil, usagef("--type %q: want strategic, merge or json", kind)
	case !strings.HasPrefix(string(patch), "{"):
		return nil, usagef("-p: want an object such as {\"spec\": {...}}; a list of operations is for --type json")
	case kind == patchMerge:
		return func(document []byte, _ any) ([]byte, error) { return jsonpatch.MergePatch(document, patch) }, nil
	}
	return func(document []byte, value any) ([]byte, error) {
		return strategicpatch.StrategicMergePatch(document, patch, value)
	}, nil
}
