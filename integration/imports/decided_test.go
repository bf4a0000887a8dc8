package imports

import (
	"go/ast"
	"go/token"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// decided lists fields of Calico's objects that are interpreted in one place. Other files may name them to write them,
// print them, or report a wrong one.
var decided = []struct {
	fields  []string
	by      string
	besides []string
}{
	{[]string{"IPv4Address", "IPv6Address"}, "model.NodeBGPSpec.Address", []string{
		"datastore/model/", "datastore/validation/", "datastore/node/register.go", "proto/server/node.go",
		"datastore/table/columns.go", "datastore/kubernetes/form/node.go",
		"bgp/cluster.go", // only for the text of a notice
	}},
	{[]string{"IPIPMode", "VXLANMode"}, "ippool.Parse", []string{
		"datastore/model/", "datastore/validation/", "datastore/ippool/", "datastore/node/pools.go",
		"datastore/table/",
	}},
	{[]string{"Applicable"}, "felixconfig.Merge", []string{
		"bgp/elevated.go",           // which names the object with the wrong value
		"datastore/settings/set.go", // which names the object with the setting
	}},
}

// devices are Calico's, which package model names for all others.
var devices = []string{"tunl0", "vxlan.calico", "vxlan-v6.calico", "wireguard.cali", "wg-v6.cali"}

// TestDecidedOnce: two places that interpret the same field disagree sooner or later.
func TestDecidedOnce(t *testing.T) {
	used := map[string]bool{}
	eachFile(t, func(name string, set *token.FileSet, file *ast.File) {
		if strings.HasPrefix(name, "integration/") {
			return
		}
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.SelectorExpr:
				for _, d := range decided {
					if !slices.Contains(d.fields, n.Sel.Name) {
						continue
					}
					i := slices.IndexFunc(d.besides, func(b string) bool {
						return name == b || strings.HasSuffix(b, "/") && strings.HasPrefix(name, b)
					})
					if i < 0 {
						t.Errorf("%s reads %s: use %s", set.Position(n.Pos()), n.Sel.Name, d.by)
					} else {
						used[d.by+d.besides[i]] = true
					}
				}
			case *ast.BasicLit:
				text, err := strconv.Unquote(n.Value)
				if err == nil && slices.Contains(devices, text) && name != "datastore/model/devices.go" {
					t.Errorf("%s: use the constant of package model for %q", set.Position(n.Pos()), text)
				}
			}
			return true
		})
	})
	for _, d := range decided {
		for _, b := range d.besides {
			if !used[d.by+b] && !strings.HasSuffix(b, "/") {
				t.Errorf("%s names none of %v any more: take it off the list", b, d.fields)
			}
		}
	}
}
