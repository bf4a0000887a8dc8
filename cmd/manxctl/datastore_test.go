package main_test

import (
	"os"
	"path/filepath"
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
	for l := range strings.Lines(from.must("get", "nodes", "-o",
		`jsonpath={range .items[*]}{.metadata.name} {.spec.orchRefs[*].nodeName}{"\n"}{end}`)) {
		if words := strings.Fields(l); len(words) == 2 && words[0] != words[1] {
			from.run("datastore", "export").want(t, 1, "", "node "+words[0]+" is called "+words[1]+" in Kubernetes")
			from.must("patch", "node", words[0], "--type=merge", "-p", "spec: {orchRefs: null}")
		}
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
	for _, kind := range []string{"ipamblocks", "blockaffinities", "ipamhandles", "ipamconfigs", "clusterinfo"} {
		if is, was := to.must("get", kind), from.must("get", kind); is != was {
			t.Errorf("%s are\n%swant\n%s", kind, is, was)
		}
	}
	to.run("datastore", "import").want(t, 2, "", "import needs -f")
	to.pipe("kind: x", "datastore", "import", "-f", "-").want(t, 1, "", "want three parts")
}
