package main_test

import (
	"encoding/json"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"

	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/ipam"
)

// TestIPAMCommands: the records are checked, and what no object uses is released; pools are split; settings change.
func TestIPAMCommands(t *testing.T) {
	t.Parallel()
	s, server := newShell(t)
	store := server.Store(t)
	s.run("datastore", "lock").want(t, 1, "", "no manxd or calico/node has started in this cluster yet")
	info := &v3.ClusterInformation{Spec: v3.ClusterInformationSpec{ClusterGUID: "abc", ClusterType: "k8s,bgp"}}
	if _, err := store.Create(t.Context(), model.NewObject(model.ResourceKey(model.KindClusterInformation, "default"),
		info)); err != nil {
		t.Fatal(err)
	}
	s.mustPipe(resource("Node", "name: n1", "bgp: {ipv4Address: 10.0.0.1/24, ipv4IPIPTunnelAddr: 10.99.0.63}")+
		resource("Node", "name: n2", "bgp: {ipv4Address: 10.0.0.2/24}")+
		resource("Node", "name: node-1", "bgp: {ipv4Address: 10.0.0.3/24}")+
		resource("IPPool", "name: pods", "cidr: 10.99.0.0/24, blockSize: 26"), "create", "-f", "-")
	s.run("ipam", "check").want(t, 0, "Checking IPAM for inconsistencies...\n"+
		"Found 0 IPAM blocks with 0 addresses, and 1 enabled pools.\n"+
		"Found 0 addresses of workloads, 1 of tunnels of nodes and 0 of services.\n"+
		"Found 0 addresses that are assigned, and that no object uses.\n"+
		"Found 1 addresses that are used and not assigned, in an enabled pool.\n"+
		"Found 0 addresses that are used, in no enabled pool.\nFound 0 addresses in two places.\n"+
		"Found 0 addresses that are assigned to one pod and used by another.\n"+
		"Found 0 pods with another address than their endpoint.\nFound 0 handles without addresses.\n"+
		"Found 0 handles that blocks name, and that do not exist.\n"+
		"Found 0 handles that count other addresses than blocks have.\n"+
		"Found 0 blocks and affinities that contradict each other.\n"+
		"Found 0 blocks and endpoints of nodes that do not exist.\n"+
		"Found 0 routes of this node's kernel to addresses that nobody has.\nCheck complete; found 1 problems.\n")

	a := ipam.New(store, nil, nil)
	assign := func(address, handle, node string, attrs map[string]string) {
		t.Helper()
		attrs["node"] = node
		if err := a.AssignIP(t.Context(), ipam.AddressRequest{Address: netip.MustParseAddr(address), Host: node,
			Handle: handle, Attrs: attrs}); err != nil {
			t.Fatal(err)
		}
	}
	assign("10.99.0.63", "ipip-tunnel-addr-n1", "n1", map[string]string{"type": "ipipTunnelAddress"})
	assign("10.99.0.1", "used", "n1", map[string]string{"namespace": "shop", "pod": "web"})
	assign("10.99.0.2", "leaked", "n1", map[string]string{"namespace": "shop", "pod": "gone",
		"timestamp": "2026-11-20T01:02:03Z"})
	assign("10.99.0.3", "borrowed", "n2", map[string]string{"namespace": "shop", "pod": "guest"})
	if _, err := store.Create(t.Context(), model.NewObject(model.HandleKey("idle"), &model.Handle{})); err != nil {
		t.Fatal(err)
	}
	for _, x := range [][]string{{"10.99.0.1/32", "web", "cali1"}, {"10.7.7.7/32", "other", "cali2"}} {
		s.mustPipe(strings.NewReplacer("10.0.0.1/32", x[0], "NS", "shop", "POD", x[1], "cali1", x[2]).Replace(endpoint),
			"create", "-f", "-")
	}

	s.run("ipam", "show", "--show-blocks").want(t, 0, ""+
		"GROUPING   CIDR           IPS TOTAL   IPS IN USE   IPS RESERVED   IPS FREE    OWNER\n"+
		"IP Pool    10.99.0.0/24   256         4 (2%)       0              252 (98%)   -\n"+
		"Block      10.99.0.0/26   64          4 (6%)       0              60 (94%)    host:n1\n")
	s.run("ipam", "show", "--show-borrowed").want(t, 0, ""+
		"IP          BORROWING-NODE   BLOCK          BLOCK OWNER   TYPE   ALLOCATED-TO\n"+
		"10.99.0.3   n2               10.99.0.0/26   n1            pod    pod shop/guest\n")
	s.run("ipam", "show", "--show-configuration").want(t, 0, "PROPERTY             VALUE\nStrictAffinity       false\n"+
		"AutoAllocateBlocks   true\nMaxBlocksPerHost     0\n")
	s.run("ipam", "show", "--show-blocks", "--ip", "10.99.0.1").want(t, 2, "", "use one of --ip, --show-blocks")

	report := filepath.Join(t.TempDir(), "report.json")
	r := s.run("ipam", "check", "--show-problem-ips", "--exit-code", "-o", report)
	for _, line := range []string{"Found 2 addresses that are assigned, and that no object uses.\n" +
		"  10.99.0.2: handle leaked, pod shop/gone, node n1, since 2026-11-20T01:02:03Z (no endpoint of the pod has " +
		"an address; age ",
		"\n  10.99.0.3: handle borrowed, pod shop/guest, node n2 (no endpoint of the pod has an address; age " +
			"unknown)\n",
		"Found 1 addresses that are used, in no enabled pool.\n  10.7.7.7: WorkloadEndpoint shop/",
		"Found 1 handles without addresses.\n  idle (age unknown)\n", "Check complete; found 4 problems.\n"} {
		if r.code != 4 || !strings.Contains(r.out, line) {
			t.Errorf("exit code %d, want 4, and\n%s\nin\n%s%s", r.code, line, r.out, r.err)
		}
	}
	if all := s.must("ipam", "check", "--show-all-ips"); !strings.Contains(all,
		"  10.99.0.1: handle used, pod shop/web, node n1, used by WorkloadEndpoint shop/") {
		t.Errorf("all addresses:\n%s", all)
	}

	s.run("ipam", "release", "--ip", "10.99.0.1").want(t, 1, "", "10.99.0.1 is used by WorkloadEndpoint shop/")
	s.run("ipam", "release", "--ip", "10.99.0.3").want(t, 0, "Successfully released IP address 10.99.0.3\n")
	s.run("ipam", "release", "--ip", "10.99.0.3").want(t, 1, "", "10.99.0.3 is not assigned")
	s.run("ipam", "release").want(t, 2, "", "use either --ip ADDRESS or --from-report FILE")
	s.run("ipam", "release", "--from-report", report).want(t, 1, "", "the datastore is not locked")
	foreign := filepath.Join(t.TempDir(), "foreign.json")
	change(t, report, foreign, func(m map[string]any) { m["clusterGUID"] = "other" })
	s.run("ipam", "release", "--force", "--from-report", foreign).want(t, 1, "", "a report is of another cluster")
	s.run("datastore", "lock").want(t, 0, "Datastore locked.\n")
	s.run("datastore", "migrate", "lock").want(t, 0, "Datastore locked.\n")
	s.run("ipam", "release", "--from-report", report).want(t, 1, "",
		"no report was made since the datastore was locked")
	second := filepath.Join(t.TempDir(), "second.json")
	s.must("ipam", "check", "-o", second)
	older := filepath.Join(t.TempDir(), "older.json")
	change(t, second, older, func(m map[string]any) { m["allocations"] = map[string]any{} })
	s.run("ipam", "release", "--from-report", second, "--from-report", older).want(t, 0,
		"Released 0 addresses and 1 handles; 1 unused addresses are not in all reports\n")
	s.run("ipam", "release", "--from-report", second, "--from-report", report).want(t, 0,
		"Released 1 addresses and 0 handles; 0 unused addresses are not in all reports\n")
	if out := s.must("ipam", "check"); !strings.Contains(out, "found 1 problems") { // 10.7.7.7 is no pool's
		t.Errorf("after the release:\n%s", out)
	}

	s.run("ipam", "split", "3", "--name", "pods").want(t, 2, "", "want a power of two")
	s.run("ipam", "split", "8", "--name", "pods").want(t, 1, "", "10.99.0.0/24 has room for 4 blocks of /26")
	s.run("ipam", "split", "2", "--cidr", "10.98.0.0/24").want(t, 1, "", "there is no such pool")
	s.run("ipam", "split", "2", "--cidr", "10.99.0.0/24").want(t, 0, "ippool/split-pods-0 created (10.99.0.0/25)\n"+
		"ippool/split-pods-1 created (10.99.0.128/25)\nippool/pods deleted\n")
	s.run("get", "ippools", "-o", "custom-columns=NAME,CIDR,DISABLED", "--no-headers").want(t, 0,
		"split-pods-0   10.99.0.0/25     false\nsplit-pods-1   10.99.0.128/25   false\n")
	s.run("datastore", "unlock").want(t, 0, "Datastore unlocked.\n")
	s.run("ipam", "split", "2", "--name", "split-pods-0").want(t, 1, "", "the datastore is not locked")

	s.run("ipam", "configure").want(t, 2, "", "name a setting")
	s.run("ipam", "configure", "--strictaffinity=maybe").want(t, 2, "", "want true or false")
	s.run("ipam", "configure", "--strictaffinity=true", "--max-blocks-per-host", "4").want(t, 0,
		"Successfully set StrictAffinity to: true\nSuccessfully set MaxBlocksPerHost to: 4\n")
	s.run("ipam", "configure", "--kubevirt-ip-persistence=Disabled", "--ip-cooldown-seconds=30").want(t, 0,
		"Successfully set KubeVirtVMAddressPersistence to: Disabled\nSuccessfully set IPCooldownSeconds to: 30\n")
	s.run("ipam", "show", "--show-configuration", "-o", "json").want(t, 0, "{\n  \"strict_affinity\": true,\n"+
		"  \"auto_allocate_blocks\": true,\n  \"maxBlocksPerHost\": 4,\n  \"kubeVirtVMAddressPersistence\": "+
		"\"Disabled\",\n  \"ipCooldownSeconds\": 30\n}\n")
}

// TestIPAMRepair: the plan is shown, and done only with a lock and after a yes; then nothing is left to do. What is in
// use, too young or not a pod's alone stays.
func TestIPAMRepair(t *testing.T) {
	t.Parallel()
	s, server := newShell(t)
	store := server.Store(t)
	info := &v3.ClusterInformation{Spec: v3.ClusterInformationSpec{ClusterGUID: "abc"}}
	if _, err := store.Create(t.Context(), model.NewObject(model.ResourceKey(model.KindClusterInformation, "default"),
		info)); err != nil {
		t.Fatal(err)
	}
	s.mustPipe(resource("Node", "name: node-1", "bgp: {ipv4Address: 10.0.0.1/24}")+
		resource("IPPool", "name: pods", "cidr: 10.99.0.0/24, blockSize: 26"), "create", "-f", "-")
	s.run("ipam", "repair").want(t, 0, "Found 0 steps to do, and 0 problems that stay.\n")
	a := ipam.New(store, nil, nil)
	for address, attrs := range map[string]map[string]string{
		"10.99.0.1": {"pod": "web", "timestamp": "2026-01-02 03:04:05.678 +0000 UTC"}, // used
		"10.99.0.2": {"pod": "gone", "timestamp": "2026-01-02 03:04:05.678 +0000 UTC"},
		"10.99.0.3": {"pod": "young", "timestamp": time.Now().UTC().String()},
		"10.99.0.4": {"pod": "odd", "timestamp": "yesterday"},
		"10.99.0.5": {"type": "vxlanTunnelAddress", "timestamp": "2026-01-02T03:04:05Z"},
	} {
		attrs["node"], attrs["namespace"] = "node-1", "shop"
		if err := a.AssignIP(t.Context(), ipam.AddressRequest{Address: netip.MustParseAddr(address), Host: "node-1",
			Handle: "h-" + address, Attrs: attrs}); err != nil {
			t.Fatal(err)
		}
	}
	s.mustPipe(strings.NewReplacer("10.0.0.1/32", "10.99.0.1/32", "NS", "shop", "POD", "web").Replace(endpoint),
		"create", "-f", "-")
	if _, err := store.Create(t.Context(), model.NewObject(model.HandleKey("idle"), &model.Handle{})); err != nil {
		t.Fatal(err)
	}
	plan := s.run("ipam", "repair", "--yes")
	for _, want := range []string{"Found 2 steps to do, and 3 problems that stay.\n",
		"  release address 10.99.0.2\n    because: 10.99.0.2: handle h-10.99.0.2, pod shop/gone, node node-1",
		"  correct the counts of handle idle\n    because: idle (age unknown)\n",
		"pod shop/young", "it is younger than the grace period of 15m0s",
		"its age is unknown: manxctl ipam release --ip 10.99.0.4", "it is not known that it was a pod's alone"} {
		if plan.code != 1 || !strings.Contains(plan.out, want) || !strings.Contains(plan.err, "is not locked") {
			t.Errorf("exit code %d, want 1, and %q in\n%s%s", plan.code, want, plan.out, plan.err)
		}
	}
	s.must("datastore", "lock")
	s.run("ipam", "repair").want(t, 4, plan.out, "Nothing was changed.")
	s.run("ipam", "repair", "--grace", "1s", "--yes").want(t, 2, "", "want 1m or more")
	if r := s.pipe("y\n", "ipam", "repair"); r.code != 0 || r.out != plan.out+"Did 2 of 2 steps.\n" {
		t.Errorf("exit code %d\n%s%s", r.code, r.out, r.err)
	}
	if r := s.run("ipam", "repair", "--yes"); r.code != 0 || !strings.HasPrefix(r.out, "Found 0 steps to do, and 3") {
		t.Errorf("again: exit code %d\n%s%s", r.code, r.out, r.err)
	}
	got := s.must("ipam", "check", "-o", "json")
	for _, want := range []string{`"addresses": 4`, `"problem": "leaked-address"`, `"subject": "10.99.0.3"`,
		`"evidence": "no endpoint of the pod has an address"`} {
		if !strings.Contains(got, want) || strings.Contains(got, "10.99.0.2") {
			t.Errorf("%s is not in, or 10.99.0.2 is in\n%s", want, got)
		}
	}
}

// TestIPAMCheckOfTheKernel: a route of the node to an address that nobody has is a contradiction.
func TestIPAMCheckOfTheKernel(t *testing.T) {
	t.Parallel()
	s, _ := newShell(t)
	daemon, _ := newPlayedDaemon(t)
	s.mustPipe(resource("IPPool", "name: pods", "cidr: 10.65.0.0/16"), "create", "-f", "-")
	socket := strings.TrimPrefix(daemon.env[0], "MANX_TEST_SOCKET=")
	r := s.run("ipam", "check", "--kernel", "--show-problem-ips", "--socket", socket)
	want := "Found 1 routes of this node's kernel to addresses that nobody has.\n  10.65.0.1: route 10.65.0.1/32 dev " +
		"cali9 proto 80 scope link metric 1024 (it is not assigned, and no object uses it; age unknown)\n"
	if r.code != 0 || !strings.Contains(r.out, want) {
		t.Errorf("exit code %d, want 0, and %s in\n%s%s", r.code, want, r.out, r.err)
	}
}

// change copies a JSON file with a change.
func change(t *testing.T, from, to string, edit func(map[string]any)) {
	t.Helper()
	text, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	var m map[string]any
	d := json.NewDecoder(strings.NewReader(string(text)))
	d.UseNumber()
	if err := d.Decode(&m); err != nil {
		t.Fatal(err)
	}
	edit(m)
	if text, err = json.Marshal(m); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(to, text, 0o600); err != nil {
		t.Fatal(err)
	}
}
