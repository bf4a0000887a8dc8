package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/manxnet/manx/datastore/model"
)

func (c *cli) labelCommand() *cobra.Command {
	var ns namespaces
	var overwrite, remove bool
	cmd := &cobra.Command{
		Use:   "label KIND NAME KEY=VALUE... | KIND NAME KEY... --remove",
		Short: "Set or remove labels of an object",
		Long: `Set or remove labels of an object. A label that has another value already is kept, and an error, unless --overwrite
is set. KEY- removes a label, too. With the Kubernetes API as the datastore, the labels that the Kubernetes node has
itself are changed with kubectl.`,
		Example: "  manxctl label node node-1 rack=1 --overwrite\n  manxctl label node node-1 rack --remove\n" +
			"  manxctl label networkpolicy web -n shop team=blue --overwrite",
		RunE: func(cmd *cobra.Command, args []string) error {
			ns.context = c.namespace
			at := min(len(args), 2)
			if len(args) > 0 && strings.Contains(args[0], "/") {
				at = 1 // KIND/NAME
			}
			t, err := oneTarget(cmd, args[:at], ns)
			if err != nil {
				return err
			}
			set, gone, err := parseLabels(args[at:], remove)
			if err != nil {
				return err
			}
			return c.modify(cmd.Context(), t, ns, modification{done: "labeled", change: func(o *model.Object) error {
				labels, err := relabeled(o.Metadata().GetLabels(), set, gone, overwrite)
				o.Metadata().SetLabels(labels)
				return err
			}})
		},
		ValidArgsFunction: c.completeObjects,
	}
	f := cmd.Flags()
	f.StringVarP(&ns.name, "namespace", "n", "", "namespace of namespaced kinds (\"default\" if not given)")
	f.BoolVar(&overwrite, "overwrite", false, "replace the value of a label")
	f.BoolVar(&remove, "remove", false, "remove the labels of these keys")
	return cmd
}

// parseLabels parses KEY=VALUE, KEY- and with remove KEY.
func parseLabels(args []string, remove bool) (set map[string]string, gone []string, err error) {
	set = map[string]string{}
	for _, a := range args {
		key, value, pair := strings.Cut(a, "=")
		switch {
		case remove && pair:
			return nil, nil, usagef("%q: --remove takes the key alone: %s", a, key)
		case remove:
			gone = append(gone, a)
		case pair:
			set[key] = value
		case strings.HasSuffix(a, "-"):
			gone = append(gone, strings.TrimSuffix(a, "-"))
		default:
			return nil, nil, usagef("%q: want KEY=VALUE, or --remove to remove the label", a)
		}
	}
	if len(args) == 0 {
		return nil, nil, usagef("name a label: KEY=VALUE")
	}
	return set, gone, nil
}

// relabeled returns labels with the changes.
func relabeled(
	labels, set map[string]string, gone []string, overwrite bool,
) (map[string]string, error) {
	next := maps.Clone(labels)
	if next == nil {
		next = map[string]string{}
	}
	for _, key := range slices.Sorted(maps.Keys(set)) {
		if was, ok := labels[key]; ok && was != set[key] && !overwrite {
			return labels, fmt.Errorf("label %s is %q already: --overwrite replaces it", key, was)
		}
		next[key] = set[key]
	}
	for _, key := range gone {
		if _, ok := labels[key]; !ok {
			return labels, fmt.Errorf("there is no label %s to remove", key)
		}
		delete(next, key)
	}
	return next, nil
}
