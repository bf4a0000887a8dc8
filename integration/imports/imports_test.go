package imports

import (
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"path"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/manxnet/manx/"

// allowed lists, for each package or tree of packages ("x/..."), the packages of Manx that it may import. The first row
// that matches counts. Packages outside the table may not exist.
var allowed = []struct {
	pkg     string
	imports []string
}{
	{"retry", nil},
	{"datastore/selector", nil},
	{"datastore/safefile", nil},
	{"datastore/userinfo", nil},
	{"datastore/model", nil},
	{"datastore/document", []string{"datastore/model"}},
	{"datastore/manifest", []string{"datastore/document", "datastore/model", "datastore/kubernetes/form"}},
	{"datastore/felixconfig", []string{"datastore/model", "datastore/selector", "datastore/validation"}},
	{"datastore/settings", []string{"datastore/felixconfig", "datastore/model", "datastore/userinfo"}},
	{"datastore/validation", []string{"datastore/model", "datastore/selector"}},
	{"datastore/validation/validationtest", []string{"datastore/model"}},
	{"datastore/codec", []string{"datastore/model", "datastore/validation"}},
	{"datastore/ippool", []string{"datastore/model"}},
	{"datastore/floating", []string{"datastore/ippool", "datastore/model"}},
	{"datastore/ownership", []string{"datastore/model"}},
	{"datastore/livemigration", []string{"datastore/model"}},
	{"datastore", []string{"datastore/model", "datastore/selector"}},
	{"datastore/election", []string{"datastore"}},
	{"datastore/etcd/etcdtest", []string{"datastore/etcd/...", "integration/ports"}},
	{"datastore/etcd/...", []string{"datastore", "datastore/codec", "datastore/election", "datastore/model",
		"datastore/safefile", "datastore/etcd/..."}},
	{"datastore/kubernetes", []string{"datastore", "datastore/codec", "datastore/conversion", "datastore/election",
		"datastore/kubernetes/form", "datastore/model"}},
	{"datastore/connect", []string{"datastore", "datastore/model", "datastore/safefile", "datastore/etcd",
		"datastore/kubernetes"}},
	{"datastore/laststate", []string{"datastore/codec", "datastore/model", "datastore/safefile"}},
	{"datastore/storetest", []string{"datastore", "datastore/model"}},
	{"datastore/conversion", []string{"datastore/model", "datastore/selector", "datastore/validation"}},
	{"datastore/kubernetes/form", []string{"datastore/codec", "datastore/conversion", "datastore/model"}},
	{"datastore/nodestatus", []string{"datastore", "datastore/model"}},
	{"datastore/node", []string{"datastore", "datastore/ippool", "datastore/model", "datastore/safefile",
		"datastore/selector", "ipam"}},
	{"ipam", []string{"datastore/model", "datastore/selector"}},
	{"controllers/calicotest", []string{"controllers/...", "datastore", "datastore/codec", "datastore/etcd",
		"datastore/model"}},
	{"controllers/memory", []string{"datastore", "datastore/codec", "datastore/model"}},
	{"controllers/ipamaudit", []string{"datastore", "datastore/model", "ipam/check", "retry"}},
	{"controllers/kubeapi", []string{"controllers/caliconode", "controllers/migration", "datastore",
		"datastore/kubernetes/form", "datastore/model"}},
	{"controllers/migration", []string{"datastore/kubernetes/form", "datastore/model", "retry"}},
	{"controllers/...", []string{"controllers/...", "datastore", "datastore/conversion", "datastore/model",
		"datastore/selector", "datastore/validation", "ipam"}},
	{"ipam/check", []string{"datastore/model", "ipam"}},
	{"ipam/placement", []string{"datastore/model", "ipam"}},
	{"ipam/hostlocal", []string{"datastore/model", "datastore/safefile", "ipam"}},
	{"ipam/warm", []string{"datastore", "datastore/model"}},
	{"bgp", []string{"datastore/felixconfig", "datastore/floating", "datastore/ippool", "datastore/livemigration",
		"datastore/model", "datastore/ownership", "datastore/selector"}},
	{"bgp/bfd", nil},
	{"bgp/password", nil},
	{"bgp/fib", []string{"bgp", "dataplane/locrib", "dataplane/prefixtable", "datastore/ownership"}},
	{"bgp/gobgppolicy", []string{"bgp"}},
	{"bgp/wire/message", nil},
	{"bgp/wire", []string{"bgp/wire/message"}},
	{"bgp/gobgpinside", []string{"bgp/wire"}},
	{"bgp/session", []string{"bgp", "bgp/bfd", "bgp/wire", "bgp/wire/message"}},
	{"bgp/...", []string{"datastore/model", "datastore/ownership", "datastore/safefile", "datastore/selector",
		"dataplane/locrib", "dataplane/prefixtable", "bgp", "bgp/..."}},
	{"dataplane/locrib", nil},
	{"dataplane/prefixtable", nil},
	{"dataplane/reconcile", nil},
	{"dataplane/reconcile/reconciletest", []string{"dataplane/reconcile"}},
	{"dataplane/ruleset", nil},
	{"dataplane/kernel/netlink", nil},
	{"dataplane/kernel/nettest", []string{"integration/namespace"}},
	{"dataplane/kernel/device", nil},
	{"dataplane/kernel", []string{"dataplane/kernel/device", "dataplane/kernel/netlink"}},
	{"dataplane/kernel/tc", []string{"dataplane/kernel", "dataplane/kernel/device", "dataplane/kernel/netlink"}},
	{"dataplane/kernel/conntrack", []string{"dataplane/kernel/netlink"}},
	{"dataplane/kernel/sockdiag", []string{"dataplane/kernel/netlink"}},
	{"dataplane/kernel/echo", nil},
	{"dataplane/kernel/checksum", nil},
	{"dataplane/kernel/nflog", []string{"dataplane/kernel/netlink"}},
	{"dataplane/kernel/announce", []string{"dataplane/kernel/netlink"}},
	{"dataplane/hostfirewall", nil},
	{"dataplane/kernel/nftables", []string{"dataplane/hostfirewall", "dataplane/kernel/netlink",
		"dataplane/kernel/nflog", "dataplane/ruleset"}},
	{"dataplane/kernel/wireguard", []string{"dataplane/kernel", "dataplane/kernel/device", "dataplane/kernel/netlink",
		"dataplane/kernel/nettest"}},
	{"dataplane/kernel/kerneltest", []string{"dataplane/kernel/...", "dataplane/ruleset"}},
	{"dataplane/vtep", []string{"datastore/model"}},
	{"dataplane/cryptokey", []string{"dataplane/kernel/wireguard", "datastore/model"}},
	{"dataplane/overlay", []string{"dataplane/vtep", "datastore/felixconfig", "datastore/ippool", "datastore/model"}},
	{"dataplane/hoststate", []string{"dataplane/cryptokey", "dataplane/kernel", "dataplane/overlay",
		"dataplane/reconcile", "dataplane/vtep", "datastore/felixconfig", "datastore/floating", "datastore/ippool",
		"datastore/model", "datastore/ownership"}},
	{"dataplane/nft", []string{"dataplane/reconcile", "dataplane/kernel/nftables", "dataplane/ruleset"}},
	{"dataplane/forget", []string{"dataplane/kernel/conntrack", "dataplane/reconcile"}},
	{"dataplane/owners", []string{"dataplane/forget", "dataplane/hoststate", "dataplane/kernel",
		"dataplane/kernel/conntrack", "dataplane/reconcile", "datastore/ippool", "datastore/model",
		"datastore/safefile"}},
	{"dataplane/filter", []string{"dataplane/forget", "dataplane/hoststate", "dataplane/kernel",
		"dataplane/kernel/conntrack", "dataplane/kernel/nftables", "dataplane/nft", "dataplane/overlay",
		"dataplane/policy", "dataplane/reconcile", "dataplane/ruleset", "datastore/model"}},
	{"dataplane/flowlog", nil},
	{"dataplane/flowtrace", []string{"dataplane/kernel/nflog", "dataplane/kernel/nftables",
		"dataplane/policy/explain", "dataplane/ruleset"}},
	{"dataplane/policy/labels", []string{"datastore/selector"}},
	{"dataplane/policy/...", []string{"dataplane/overlay", "dataplane/ruleset", "dataplane/policy/...",
		"datastore/conversion", "datastore/felixconfig", "datastore/floating", "datastore/ippool",
		"datastore/model", "datastore/ownership", "datastore/selector"}},
	{"dataplane/policy", []string{"dataplane/overlay", "dataplane/ruleset", "dataplane/policy/...",
		"datastore/conversion", "datastore/felixconfig", "datastore/ippool", "datastore/model",
		"datastore/ownership", "datastore/selector"}},
	{"dataplane/driver", []string{"dataplane/hoststate", "dataplane/kernel", "dataplane/reconcile"}},
	{"dataplane/device", []string{"dataplane/driver", "dataplane/hoststate", "dataplane/kernel", "dataplane/overlay",
		"dataplane/reconcile", "datastore/model"}},
	{"dataplane/vxlan", []string{"dataplane/driver", "dataplane/hoststate", "dataplane/kernel", "dataplane/overlay",
		"dataplane/reconcile", "dataplane/vtep", "datastore/model"}},
	{"dataplane/wireguard", []string{"dataplane/cryptokey", "dataplane/driver", "dataplane/hoststate",
		"dataplane/kernel", "dataplane/kernel/wireguard", "dataplane/overlay", "dataplane/reconcile",
		"datastore/ippool", "datastore/model"}},
	{"dataplane/sysctl", []string{"dataplane/driver", "dataplane/hoststate", "dataplane/kernel",
		"dataplane/reconcile", "datastore/model"}},
	{"dataplane/peering", []string{"dataplane/driver", "dataplane/hoststate", "dataplane/kernel",
		"dataplane/reconcile"}},
	{"dataplane/mtufile", []string{"dataplane/driver", "dataplane/hoststate", "dataplane/kernel", "dataplane/overlay",
		"dataplane/reconcile", "datastore/safefile"}},
	{"dataplane/pathmtu", []string{"dataplane/hoststate", "dataplane/kernel", "dataplane/overlay",
		"dataplane/reconcile", "dataplane/route", "datastore/model"}},
	{"dataplane/offload", []string{"dataplane/hoststate", "dataplane/kernel", "dataplane/overlay",
		"dataplane/reconcile", "dataplane/route", "dataplane/vtep", "datastore/model"}},
	{"dataplane/endpointstatus", []string{"dataplane/hoststate", "dataplane/kernel", "dataplane/reconcile",
		"datastore/model", "datastore/safefile"}},
	{"dataplane/neighbour", []string{"dataplane/hoststate", "dataplane/kernel", "dataplane/overlay",
		"dataplane/reconcile"}},
	{"dataplane/proxyneighbour", []string{"dataplane/driver", "dataplane/hoststate", "dataplane/kernel",
		"dataplane/reconcile", "datastore/ippool", "datastore/model"}},
	{"dataplane/netnslock", nil},
	{"dataplane/podnet", []string{"dataplane/kernel/conntrack", "dataplane/kernel/device"}},
	{"dataplane/shape", []string{"dataplane/driver", "dataplane/hoststate", "dataplane/reconcile",
		"dataplane/kernel", "dataplane/kernel/tc"}},
	{"dataplane/targettest", []string{"dataplane/driver", "dataplane/hoststate", "dataplane/kernel",
		"dataplane/reconcile", "datastore/model"}},
	{"dataplane/moves", []string{"dataplane/hoststate", "dataplane/kernel", "dataplane/kernel/announce",
		"dataplane/reconcile", "datastore/livemigration", "datastore/model"}},
	{"dataplane/route", []string{"dataplane/hoststate", "dataplane/locrib", "dataplane/prefixtable",
		"dataplane/reconcile", "dataplane/reconcile/reconciletest", "dataplane/kernel", "dataplane/kernel/conntrack",
		"dataplane/overlay", "dataplane/vtep", "datastore/ippool", "datastore/livemigration", "datastore/model",
		"datastore/ownership", "datastore/selector"}},
	{"dataplane", []string{"dataplane/...", "datastore/livemigration", "datastore/model", "datastore/safefile",
		"datastore/selector", "datastore/felixconfig"}},
	{"proto/...", []string{"proto/...", "bgp", "bgp/...", "dataplane/...", "datastore/...", "dataplane", "datastore"}},
	{"cni", []string{"dataplane/podnet", "datastore/safefile"}},
	{"cni/engine", []string{"cni", "datastore", "datastore/conversion", "datastore/model", "datastore/safefile",
		"ipam"}},
	{"cni/kubeapi", []string{"datastore", "datastore/model"}},
	{"cni/server", []string{"cni", "datastore/safefile"}},
	{"cni/install", []string{"datastore/safefile"}},
	{"datastore/table", []string{"datastore/codec", "datastore/model"}},
	{"plan", []string{"bgp", "dataplane/overlay", "dataplane/policy", "dataplane/policy/explain", "dataplane/ruleset",
		"datastore/..."}},
	{"daemon/part", []string{"datastore", "datastore/model", "proto/server"}},
	{"daemon/awscheck", []string{"daemon/deps", "daemon/part", "datastore", "datastore/felixconfig", "datastore/model",
		"proto/server", "retry"}},
	{"daemon/placements", []string{"controllers/memory", "daemon/deps", "daemon/part", "dataplane/overlay",
		"dataplane/route", "datastore", "datastore/felixconfig",
		"datastore/ippool", "datastore/model", "ipam/placement", "retry"}},
	{"daemon/besidecalico", []string{"daemon/kubewatch", "controllers/caliconode", "proto/server"}},
	{"daemon/publickeys", []string{"controllers/memory", "daemon/bus", "daemon/deps", "daemon/part",
		"dataplane/kernel/kerneltest", "dataplane/wireguard", "datastore",
		"datastore/model", "retry"}},
	{"daemon/bus", []string{"bgp", "dataplane/endpointstatus", "dataplane/kernel", "datastore", "datastore/model"}},
	{"daemon/deps", []string{"daemon/bus", "daemon/kubenode", "dataplane/kernel", "datastore", "proto/server",
		"datastore/felixconfig"}},
	{"daemon/machines", []string{"daemon/deps", "datastore", "datastore/connect", "datastore/livemigration",
		"datastore/model", "ipam", "ipam/hostlocal"}},
	{"daemon/claims", []string{"daemon/deps", "daemon/part", "datastore", "datastore/connect", "datastore/model",
		"ipam", "proto/server"}},
	{"daemon/connected", []string{"bgp", "daemon/deps", "dataplane/kernel"}},
	{"daemon/hostservers", []string{"daemon/deps", "datastore", "datastore/etcd", "datastore/ippool",
		"datastore/model"}},
	{"daemon/lastrun", []string{"bgp", "controllers/caliconode", "daemon/bus", "daemon/deps", "daemon/part",
		"datastore", "datastore/laststate", "datastore/model", "datastore/safefile", "proto/server"}},
	{"daemon/bgpstatus", []string{"bgp", "bgp/speaker", "daemon/deps", "dataplane/kernel", "dataplane/locrib",
		"datastore/model", "datastore/nodestatus", "proto/server"}},
	{"daemon/calicosettings", []string{"daemon/deps", "daemon/part", "datastore", "datastore/model",
		"datastore/settings", "proto/server", "retry"}},
	{"daemon/listen", []string{"daemon/deps", "daemon/part", "datastore/felixconfig", "datastore/model",
		"proto/server"}},
	{"daemon/kubereport", []string{"bgp/speaker", "daemon/deps", "daemon/kubenode", "daemon/part", "dataplane",
		"dataplane/reconcile", "datastore/model", "ipam", "proto/server"}},
	{"daemon/plugins", []string{"cni", "cni/engine", "cni/kubeapi", "cni/server", "daemon/bus", "daemon/deps",
		"daemon/part", "dataplane/endpointstatus", "dataplane/podnet", "datastore/felixconfig", "datastore/model",
		"datastore/safefile", "ipam", "ipam/warm", "proto/server"}},
	{"daemon/nobgp", []string{"daemon/deps", "daemon/part", "datastore", "datastore/ippool", "datastore/model",
		"datastore/node", "datastore/selector", "proto/server"}},
	{"daemon/envflag", nil},
	{"daemon/footprint", nil},
	{"daemon/restarts", nil},
	{"daemon/kubenode", []string{"bgp", "bgp/speaker", "ipam"}},
	{"daemon/distribution", []string{"datastore/node"}},
	{"daemon/firewalls", []string{"dataplane/hostfirewall", "dataplane/kernel/nftables", "proto/server"}},
	{"daemon/overuse", []string{"dataplane/kernel/conntrack", "dataplane/policy", "proto/server"}},
	{"daemon/kubewatch", nil},
	{"daemon/bgpsecrets", []string{"bgp/password", "daemon/kubewatch", "datastore/safefile"}},
	{"daemon/follow", []string{"bgp", "dataplane", "dataplane/hoststate", "dataplane/locrib", "dataplane/reconcile",
		"dataplane/route", "datastore", "datastore/livemigration", "datastore/model"}},
	{"cmd/manx-cni", []string{"cni", "datastore/safefile"}},
	{"cmd/manx-cni-direct", []string{"cni", "cni/...", "dataplane/endpointstatus", "dataplane/kernel/nftables",
		"dataplane/podnet", "proto/manx/v1", "datastore/...", "datastore", "controllers/caliconode", "ipam/hostlocal"}},
	{"cmd/manxctl/...", []string{"proto/manx/v1", "proto/explanation", "datastore/...", "datastore", "ipam",
		"ipam/check", "ipam/hostlocal", "bgp", "dataplane/policy", "dataplane/policy/explain", "dataplane/ruleset",
		"cmd/manxctl/...", "plan"}},
	{"cmd/manx-birdsock", []string{"bgp", "datastore/safefile", "proto/manx/v1"}},
	{"cmd/manx-supervise", []string{"daemon/restarts"}},
	{"cmd/manxd", []string{"..."}},
	{"docs/examples/...", []string{"proto/manx/v1"}},
	{"integration/namespace", []string{"integration/peers"}},
	{"integration/jsonlines", nil},
	{"integration/peers", nil},
	{"integration/ports", nil},
	{"integration/untar", nil},
	{"integration/...", []string{"..."}},
}

// everyone lists the packages that every other one may import.
var everyone = []string{"retry"}

// owners of libraries that only one part of the tree may touch.
var owners = []struct {
	library string
	owners  []string
}{
	{"github.com/vishvananda/netlink", []string{"dataplane/kernel", "dataplane/kernel/device", "dataplane/kernel/tc",
		"dataplane/podnet"}},
	{"golang.zx2c4.com/wireguard/wgctrl", []string{"dataplane/kernel/wireguard"}},
	{"github.com/safchain/ethtool", []string{"dataplane/kernel"}},
	{"github.com/google/nftables", []string{"dataplane/kernel/announce", "dataplane/kernel/nftables",
		"dataplane/kernel/wireguard"}},
	{"github.com/osrg/gobgp/", []string{"bgp/speaker", "bgp/fib", "bgp/gobgppolicy", "bgp/session",
		"bgp/gobgpinside", "bgp/gobgpapi", "bgp/wire",
		"bgp/wire/message"}}, // package bgp decides without it, also offline
}

// unlinked lists programs, and libraries that they must not link, not even indirectly: manxctl plans without GoBGP.
var unlinked = map[string]string{"cmd/manxctl": "github.com/osrg/gobgp/"}

func TestUnlinked(t *testing.T) {
	for program, library := range unlinked {
		out, err := exec.Command("go", "list", "-deps", module+program).Output()
		if err != nil {
			t.Fatal(err)
		}
		deps := strings.Fields(string(out))
		if !slices.Contains(deps, module+"bgp") {
			t.Errorf("%s does not link bgp: is the list complete?", program)
		}
		for _, d := range deps {
			if strings.HasPrefix(d, library) {
				t.Errorf("%s links %s", program, d)
			}
		}
	}
}

// pluginLinks is all that the CNI plugin links beside the standard library: a runtime starts it twice for each pod, and
// linked packages are initialized each time.
var pluginLinks = []string{module + "cmd/manx-cni", module + "cni", module + "dataplane/podnet",
	module + "dataplane/kernel/conntrack", module + "datastore/safefile",
	module + "dataplane/kernel/device", module + "dataplane/kernel/netlink",
	"github.com/containernetworking/cni/pkg/...", "github.com/vishvananda/netlink",
	"github.com/vishvananda/netlink/nl", "github.com/vishvananda/netns", "golang.org/x/sys/unix"}

func TestThePluginIsThin(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", "-f", "{{if not .Standard}}{{.ImportPath}}{{end}}",
		module+"cmd/manx-cni").Output()
	if err != nil {
		t.Fatal(err)
	}
	deps := strings.Fields(string(out))
	if !slices.Contains(deps, module+"cni") {
		t.Errorf("the list is not complete: %q", deps)
	}
	for _, d := range deps {
		if !slices.ContainsFunc(pluginLinks, func(row string) bool { return matches(row, d) }) {
			t.Errorf("manx-cni links %s, which makes it slower to start", d)
		}
	}
	out, err = exec.Command("go", "list", "-deps", module+"cmd/manx-cni").Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, heavy := range []string{"net/http", "crypto/tls"} {
		if slices.Contains(strings.Fields(string(out)), heavy) {
			t.Errorf("manx-cni links %s, which makes it slower to start", heavy)
		}
	}
}

// TestOneDoorIntoGoBGP: what GoBGP does not export is known to one package.
func TestOneDoorIntoGoBGP(t *testing.T) {
	const door = "bgp/gobgpinside"
	for _, p := range packages(t) {
		pkg := strings.TrimPrefix(p.ImportPath, module)
		if pkg == door || !slices.ContainsFunc(p.Imports, func(i string) bool {
			return strings.HasPrefix(i, "github.com/osrg/gobgp/")
		}) {
			continue
		}
		for _, tool := range []string{"unsafe", "reflect", "github.com/eapache/channels"} {
			if slices.Contains(p.Imports, tool) {
				t.Errorf("%s uses GoBGP and imports %s: that is left to %s", pkg, tool, door)
			}
		}
	}
}

type listed struct {
	ImportPath   string
	Name         string
	Doc          string // the first sentence of the comment
	Imports      []string
	TestImports  []string
	XTestImports []string
}

func packages(t *testing.T) []listed {
	t.Helper()
	cmd := exec.Command("go", "list", "-json=ImportPath,Name,Doc,Imports,TestImports,XTestImports", module+"...")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var pkgs []listed
	for d := json.NewDecoder(out); ; {
		var p listed
		err := d.Decode(&p)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		pkgs = append(pkgs, p)
	}
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	if len(pkgs) < 10 {
		t.Fatalf("only %d packages listed", len(pkgs))
	}
	return pkgs
}

// matches reports whether a package is covered by a row: its exact path, or "tree/...".
func matches(row, pkg string) bool {
	if row == "..." {
		return true
	}
	tree, ok := strings.CutSuffix(row, "/...")
	return row == pkg || ok && (pkg == tree || strings.HasPrefix(pkg, tree+"/"))
}

// TestPackagesSayWhatTheyHold: each package has a sentence that go doc shows.
func TestPackagesSayWhatTheyHold(t *testing.T) {
	for _, p := range packages(t) {
		begins := "Package " + p.Name + " "
		if p.Name == "main" {
			begins = "Command " + path.Base(p.ImportPath) + " "
		}
		if !strings.HasPrefix(p.Doc, begins) {
			t.Errorf("the comment of %s is %q, want one that begins with %q", p.ImportPath, p.Doc, begins)
		}
	}
}

func TestImportTable(t *testing.T) {
	for _, p := range packages(t) {
		pkg := strings.TrimPrefix(p.ImportPath, module)
		i := slices.IndexFunc(allowed, func(r struct {
			pkg     string
			imports []string
		}) bool {
			return matches(r.pkg, pkg)
		})
		if i < 0 {
			t.Errorf("package %s has no row in the import table", pkg)
			continue
		}
		for _, imp := range p.Imports {
			ours, ok := strings.CutPrefix(imp, module)
			may := append(everyone, allowed[i].imports...)
			if ok && !slices.ContainsFunc(may, func(row string) bool { return matches(row, ours) }) {
				t.Errorf("%s may not import %s", pkg, ours)
			}
			for _, o := range owners {
				if strings.HasPrefix(imp, o.library) && !slices.Contains(o.owners, pkg) {
					t.Errorf("%s may not import %s: that is left to %s", pkg, imp, strings.Join(o.owners, " and "))
				}
			}
		}
	}
}
