package main_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"

	"github.com/manxnet/manx/datastore/model"
)

// TestIPAMUpgrade: nothing is written before the confirmation, while the datastore is locked, or for an unknown node.
// The second run does the rest.
func TestIPAMUpgrade(t *testing.T) {
	t.Parallel()
	s, server := newShell(t)
	s.mustPipe(resource("Node", "name: n1", "bgp: {ipv4Address: 10.0.0.1/24}")+
		resource("IPPool", "name: pods", "cidr: 10.99.0.0/24, blockSize: 26"), "create", "-f", "-")
	folder := filepath.Join(t.TempDir(), "cbr0")
	upgrade := []string{"ipam", "upgrade", "cbr0", "--node", "n1", "--folder", folder}
	asks := "Do these 1 steps? [y/N] "
	s.run(upgrade...).want(t, 0, "There are no addresses of host-local in "+folder+": nothing to upgrade.\n")
	s.run("ipam", "upgrade", "../cbr0").want(t, 2, "", "want the name of a folder in /var/lib/cni/networks")
	plugin := filepath.Join(t.TempDir(), "kubectl-manx")
	if err := errors.Join(os.Mkdir(folder, 0o755), os.Symlink(binary, plugin)); err != nil {
		t.Fatal(err)
	}
	s.program(plugin, "", "ipam", "upgrade").want(t, 2, "", "the files of host-local are on the node")
	for _, name := range []string{"10.99.0.2", "10.5.0.1"} {
		if err := os.WriteFile(filepath.Join(folder, name), []byte("c1\r\neth0"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s.run("ipam", "upgrade", "--folder", filepath.Join(filepath.Dir(folder), "k8s-pod-network")).want(t, 0,
		"There are no addresses of host-local in "+filepath.Dir(folder)+"/k8s-pod-network: nothing to upgrade. "+
			"Other networks have some: cbr0.\n")
	s.run("ipam", "upgrade", "--node", "n9", "--folder", folder).want(t, 1, "", "node n9: ",
		"name this node with --node")
	stays := "  keep \"10.5.0.1\": container c1 has it, and it lies in no enabled pool: create or enable an IPPool " +
		"that contains it, and run this again\n"
	plan := "Found 1 steps to do, and 1 entries that stay.\n  assign 10.99.0.2 to handle k8s-pod-network.c1\n" +
		"    because: container c1 has it\n" + stays
	s.pipe("n\n", upgrade...).want(t, 4, plan, asks, "Nothing was changed.")
	no := false
	if _, err := server.Store(t).Create(t.Context(), model.NewObject(model.ResourceKey(model.KindClusterInformation,
		"default"), &v3.ClusterInformation{Spec: v3.ClusterInformationSpec{DatastoreReady: &no}})); err != nil {
		t.Fatal(err)
	}
	s.pipe("y\n", upgrade...).want(t, 1, "", "the datastore is locked")
	s.must("datastore", "unlock")
	s.pipe("y\n", upgrade...).want(t, 4, plan+"Did 1 of 1 steps.\n", asks)
	s.run(append(upgrade, "--yes")...).want(t, 4, "Found 0 steps to do, and 1 entries that stay.\n"+stays)
	if err := os.Remove(filepath.Join(folder, "10.5.0.1")); err != nil {
		t.Fatal(err)
	}
	s.run(append(upgrade, "--yes")...).want(t, 0, "There are no addresses of host-local in "+folder+
		": nothing to upgrade.\n")
}
