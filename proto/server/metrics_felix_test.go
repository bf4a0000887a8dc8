package server

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/manxnet/manx/dataplane"
	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/model"
)

// The figures of policy have Felix' names, and metrics that are switched off are left out.
func TestMetricsWithNamesOfFelix(t *testing.T) {
	r, p := withPolicy(t)
	p.status = dataplane.PolicyStatus{Policies: 3, Selectors: 5}
	p.status.FailedTransactions = 7
	r.server.Add(collectors.NewGoCollector())
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.server.ServeFelixMetrics(ctx, l, "go_", "process_") }()
	answer, err := http.Get("http://" + l.Addr().String() + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	text := "\n" + string(body)
	for _, want := range []string{"felix_active_local_policies 3", "felix_active_local_selectors 5",
		"felix_int_dataplane_failures 7", "manx_policy_failed_transactions_total 7"} {
		if !strings.Contains(text, "\n"+want+"\n") {
			t.Errorf("%q is missing in %s", want, text)
		}
	}
	if strings.Contains(text, "\ngo_") {
		t.Errorf("metrics of Go are there: %s", text)
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestResyncStateOfFelix(t *testing.T) {
	lost := datastore.Status{LastError: errors.New("gone")}
	again := datastore.Status{InSync: true, LastError: lost.LastError}
	for _, c := range []struct {
		status    datastore.Status
		connected bool
		want      float64
	}{{datastore.Status{}, false, 1}, {datastore.Status{}, true, 2}, {lost, true, 1}, {again, true, 3}} {
		if got := resyncState(c.status, c.connected); got != c.want {
			t.Errorf("%+v, connected %t: %v, want %v", c.status, c.connected, got, c.want)
		}
	}
}

// Kinds that nothing here reads have no figure, and all kinds of policies are one.
func TestClusterSizesOfFelix(t *testing.T) {
	got := clusterSizes([]datastore.KindStatus{{Kind: model.KindNode, Objects: 2},
		{Kind: model.KindNetworkPolicy, Objects: 3}, {Kind: model.KindKubernetesNetworkPolicy, Objects: 4},
		{Kind: model.KindNamespace, Objects: 5}, {Kind: model.KindServiceAccount, Objects: 6},
		{Kind: model.KindIPPool, Objects: 7}})
	if len(got) != 3 || got[felixHosts] != 2 || got[felixClusterPolicies] != 7 || got[felixProfiles] != 11 {
		t.Errorf("got %v", got)
	}
}
