package main_test

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc"

	manxv1 "github.com/manxnet/manx/proto/manx/v1"
)

// playedControllers returns the responses that a test sets.
type playedControllers struct {
	manxv1.UnimplementedControllersServer
	response *manxv1.ListReleasesResponse
}

func (p *playedControllers) ListReleases(context.Context, *manxv1.ListReleasesRequest,
) (*manxv1.ListReleasesResponse, error) {
	return p.response, nil
}

// controllers serves a daemon with this response. The daemon of nil has no such service.
func controllers(t *testing.T, response *manxv1.ListReleasesResponse) shell {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "d.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	g := grpc.NewServer()
	if response != nil {
		manxv1.RegisterControllersServer(g, &playedControllers{response: response})
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := g.Serve(l); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
			t.Error(err)
		}
	}()
	t.Cleanup(func() { g.Stop(); <-done })
	return shell{t, []string{"MANX_TEST_SOCKET=" + socket}}
}

func TestReleases(t *testing.T) {
	const at = 1772600767000 // 2026-03-04 05:06:07 UTC
	list := []*manxv1.Release{
		{AtUnixMs: at, Address: "10.65.0.7", Handle: "k8s-pod-network.0123", Node: "node-2", Namespace: "shop",
			Pod:    "web-0",
			Reason: "pod-gone", Text: "pod shop/web-0 does not exist", UnusedSinceUnixMs: at - 900_000},
		{AtUnixMs: at + 1000, Address: "10.65.1.0/26", Node: "node-3", Reason: "node-gone",
			Text: "node node-3 does not exist, and no address of the block is in use"},
	}
	leads := &manxv1.ListReleasesResponse{Node: "node-1", Leading: true, Leader: "node-1", SinceUnixMs: at,
		Releases: list}
	s := controllers(t, leads)
	for name, args := range map[string][]string{"ipam-releases": nil, "ipam-releases-json": {"-o", "json"}} {
		r := s.runWithDaemon(append([]string{"ipam", "releases"}, args...)...)
		if r.code != 0 || r.err != "" {
			t.Errorf("%s: exit code %d, %s", name, r.code, r.err)
		}
		golden(t, name, r.out)
	}
	s.runWithDaemon("ipam", "releases", "-o", "wide").want(t, 2, "", "wide")
	for text, response := range map[string]*manxv1.ListReleasesResponse{
		"node-1 runs the controllers of the cluster for": {Node: "node-1", Leading: true, Leader: "node-1",
			SinceUnixMs: at},
		"Nothing is released now: calico-kube-controllers run": {Node: "node-1", Leading: true, Leader: "node-1",
			Problem: "calico-kube-controllers run (deployment kube-system/calico-kube-controllers)"},
		"Node node-1 does not run the controllers of the cluster, node node-2 does: run the command there": {
			Node:   "node-1",
			Leader: "node-2"},
		"and no other node does now":                   {Node: "node-1"},
		"the datastore does not answer":                {Node: "node-1", Problem: "the datastore does not answer"},
		"The list is of the time when node node-1 did": {Node: "node-1", Leader: "node-2", Releases: list},
	} {
		r := controllers(t, response).runWithDaemon("ipam", "releases")
		if r.code != 0 || !strings.Contains(r.err, text) || (len(response.GetReleases()) > 0) != (r.out != "") {
			t.Errorf("%s: exit code %d, printed %q and %q", text, r.code, r.out, r.err)
		}
	}
	controllers(t, nil).runWithDaemon("ipam", "releases").want(t, 1, "", "takes no part in the controllers",
		"--controllers")
}
