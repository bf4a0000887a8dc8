package imports

import (
	"go/ast"
	"go/token"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// overlayNames are names of one overlay, its device or its settings.
var overlayNames = regexp.MustCompile(`^(DeviceIPIP|DeviceVXLAN.*|DeviceWireguard.*|ErrNoIPIP|IPIP(Enabled|MTU)?|` +
	`VXLAN(Enabled|Port|VNI|MTU.*)|Allow(IPIP|VXLAN)PacketsFromWorkloads)$`)

// overlayReaders read the list of overlays, and name none of them.
var overlayReaders = []string{"dataplane", "dataplane/device", "dataplane/driver", "dataplane/filter",
	"dataplane/hoststate", "dataplane/mtufile", "dataplane/neighbour", "dataplane/peering", "dataplane/policy",
	"dataplane/route", "dataplane/sysctl", "dataplane/vxlan", "dataplane/wireguard", "cmd/manxd"}

// TestOverlaysAreAList: another overlay is a line in the list of dataplane/overlay, and an edit of no other folder.
func TestOverlaysAreAList(t *testing.T) {
	listed := false
	eachFile(t, func(name string, set *token.FileSet, file *ast.File) {
		folder := name[:strings.LastIndex(name, "/")+1]
		reads := slices.Contains(overlayReaders, strings.TrimSuffix(folder, "/"))
		if !reads && folder != "dataplane/overlay/" {
			return
		}
		ast.Inspect(file, func(n ast.Node) bool {
			what := ""
			switch n := n.(type) {
			case *ast.SelectorExpr:
				if overlayNames.MatchString(n.Sel.Name) {
					what = n.Sel.Name
				}
			case *ast.BasicLit:
				text, _ := strconv.Unquote(n.Value)
				for _, d := range devices {
					if strings.Contains(text, d) {
						what = text
					}
				}
			}
			listed = listed || what == "DeviceIPIP" && !reads
			if reads && what != "" {
				t.Errorf("%s names %s: read the list of dataplane/overlay", set.Position(n.Pos()), what)
			}
			return true
		})
	})
	if !listed {
		t.Error("dataplane/overlay names no device: the test finds nothing")
	}
}
