package main

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"github.com/manxnet/manx/daemon/restarts"
	"github.com/manxnet/manx/datastore/kubernetes/form"
	"github.com/manxnet/manx/integration/kubernetes/apiserver"
)

// startsAgain runs the controllers of a cluster while its objects are migrated: they end to be started again, and those
// that start then use the new group.
func startsAgain(t *testing.T, server *apiserver.Server) {
	const group, version = "migration.projectcalico.org", "v1beta1"
	path := "/apis/" + group + "/" + version + "/datastoremigrations"
	for _, g := range []form.Group{form.V1, form.V3} {
		server.InstallCRDs(t, g, "clusterinformations")
		server.Request(t, http.MethodPost, "/apis/"+string(g)+"/clusterinformations", map[string]any{
			"apiVersion": string(g), "kind": "ClusterInformation", "metadata": map[string]any{"name": "default"}})
	}
	server.Define(t, form.Resource{Group: group, Version: version, Plural: "datastoremigrations",
		Kind: "DatastoreMigration"})
	server.Request(t, http.MethodPost, path, map[string]any{"apiVersion": group + "/" + version,
		"kind": "DatastoreMigration", "metadata": map[string]any{"name": "v1-to-v3"},
		"status": map[string]any{"phase": "Migrating"}})
	var o options
	fs := pflag.NewFlagSet("manxd", pflag.ContinueOnError)
	o.flags(fs)
	must(t, fs.Parse([]string{"--node-name=n1", "--run-dir=" + t.TempDir(), "--datastore=kubernetes",
		"--kubeconfig=" + server.Kubeconfig(t, apiserver.Admin)}))
	must(t, o.check())
	o.datastore.kube.MigrationInterval = 10 * time.Millisecond
	run := func(ctx context.Context) error { return runControllers(ctx, o, nil) }
	ended := make(chan error, 1)
	go func() { ended <- run(t.Context()) }()
	select {
	case err := <-ended:
		t.Fatalf("while objects are copied: %v", err)
	case <-time.After(time.Second): // nothing shows that a process stays
	}
	server.Request(t, http.MethodPatch, path+"/v1-to-v3", map[string]any{
		"status": map[string]any{"phase": "Converged"}})
	err := <-ended
	if err == nil || !strings.Contains(err.Error(), "starting again: the DatastoreMigration v1-to-v3 is Converged") ||
		exitCode(err) != restarts.Again {
		t.Errorf("when they are copied: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if err := run(ctx); err != nil {
		t.Errorf("started again: %v", err)
	}
}
