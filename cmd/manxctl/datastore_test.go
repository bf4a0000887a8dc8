package main_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestExportAndImport: an export of Calico's objects and records, stored in an empty datastore, is the same export.
func TestExportAndImport(t *testing.T) {
	t.Parallel()
	from, server := newShell(t)
	loadUpstream(t, server)
	from.run("datastore", "export").want(t, 1, "", "the datastore is not locked")
	from.must("datastore", "lock")
	// rr-1 is called rr-one.example.test in Kubernetes
	from.must("patch", "node", "h2", "--type=merge", "-p",
		"spec: {orchRefs: [{orchestrator: k8s, nodeName: rr-one.example.test}]}")
	from.run("datastore", "export").want(t, 1, "", "nodes h2 and rr-1 would both be node rr-one.example.test")
	from.must("patch", "node", "h2", "--type=merge", "-p",
		"spec: {orchRefs: [{orchestrator: k8s, nodeName: h2.example.test}]}")
	from.must("patch", "node", "rr-1", "--type=merge", "-p", "spec: {orchRefs: null}")
	renamed := func(table string) (words []string) { // as the node h2 is called in Kubernetes
		for word := range strings.FieldsSeq(table) {
			before, after, _ := strings.Cut(word, "h2")
			if (before == "" || strings.HasSuffix(before, "/") || strings.HasSuffix(before, ":") ||
				strings.HasSuffix(before, "node.") || strings.HasSuffix(before, "tunnel-addr-")) &&
				(after == "" || after[0] == '/' || after[0] == ',') && strings.Contains(word, "h2") {
				word = before + "h2.example.test" + after
			}
			words = append(words, word)
		}
		return words
	}
	text := from.must("datastore", "export")
	for _, part := range []string{"\n===\n{\n  \"kind\": \"ClusterInformation\"", "\n===\n{\n  \"block_affinities\": [",
		`"Key": "/calico/ipam/v2/assignment/ipv4/block/10.42.0.0-29"`} {
		if !strings.Contains(text, part) {
			t.Errorf("the export lacks %q:\n%.2000s", part, text)
		}
	}
	if strings.Contains(text, "kind: WorkloadEndpoint") || strings.Contains(text, "kind: Profile") {
		t.Error("the export has objects that follow from Kubernetes'")
	}
	file := filepath.Join(t.TempDir(), "export.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	from.must("patch", "ippool", "by-hand", "-p", "spec: {disabled: true}")
	from.run("datastore", "import", "-f", file).want(t, 1, "", "the datastore is not empty: it has IPPool by-hand")

	to, _ := newShell(t)
	if r := to.run("datastore", "migrate", "import", "-f", file); r.code != 0 || !strings.Contains(r.out, "Stored ") {
		t.Fatalf("%+v", r)
	}
	objects, _, _ := strings.Cut(text, "\n===\n")
	again, _, _ := strings.Cut(to.must("datastore", "export"), "\n===\n")
	if again != objects {
		t.Errorf("the imported objects are\n%.3000s\nwant\n%.3000s", again, objects)
	}
	for _, kind := range []string{"ipamblocks", "blockaffinities", "ipamhandles", "ipamconfigs", "clusterinfo", "nodes",
		"bgppeers", "hostendpoints", "felixconfigs", "bgpconfigs"} {
		is, was := strings.Fields(to.must("get", kind)), renamed(from.must("get", kind))
		slices.Sort(is) // objects have another order
		slices.Sort(was)
		if !slices.Equal(is, was) {
			t.Errorf("%s are\n%v, want\n%v", kind, is, was)
		}
	}
	for path, want := range map[string]string{"bgppeer g-node-to-selector": "h2.example.test",
		"hostendpoint h2-by-pattern-eth0-auto-hep": "h2.example.test"} {
		words := strings.Fields(path)
		if got := to.must("get", words[0], words[1], "-o", "jsonpath={.spec.node}"); strings.TrimSpace(got) != want {
			t.Errorf("%s names node %s, want %s", path, got, want)
		}
	}
	if left := regexp.MustCompile(`.*(addr-|host:|host/|node": "|node: )h2["/\n].*`).FindString(text); left != "" {
		t.Errorf("the export has the old name: %s", left)
	}
	to.run("datastore", "import").want(t, 2, "", "import needs -f")
	to.pipe("kind: x", "datastore", "import", "-f", "-").want(t, 1, "", "want three parts")
}
