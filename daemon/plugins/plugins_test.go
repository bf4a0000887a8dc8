package plugins

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/zap"

	"github.com/manxnet/manx/cni"
	"github.com/manxnet/manx/cni/engine"
	"github.com/manxnet/manx/daemon/bus"
	"github.com/manxnet/manx/daemon/deps"
	"github.com/manxnet/manx/dataplane/endpointstatus"
	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/model"
)

type emptyStore struct{ datastore.Backend }

func (emptyStore) Keeps(model.Kind) bool { return false }

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// A container waits for the status of the agents in this process, which no file has; one of an earlier container of the
// same name does not end the wait. Files are read only in a folder that the network configuration names.
func TestContainersWaitInMemory(t *testing.T) {
	d := deps.Deps{Node: deps.Node{Name: "n1", RunDir: t.TempDir()}, Store: emptyStore{},
		Tables: datastore.NewTables(zap.NewNop(), "n1"), Log: zap.NewNop(), Bus: new(bus.Bus)}
	p := New(d, Config{StatusDir: func(string) string { return "" }})
	mac := net.HardwareAddr{2, 0, 0, 0, 0, 10}
	w := engine.Container{MAC: mac, Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.1")}, Endpoint: model.Key{
		Kind: model.KindWorkloadEndpoint, Namespace: "shop", Name: "n1-k8s-web-eth0"}}
	publish := func(mac string) {
		d.Bus.Connected.Publish(map[model.Key]endpointstatus.Status{w.Endpoint: {MAC: mac,
			IPv4Nets: []string{"10.0.0.1/32"}}})
	}
	wait, err := p.engine.Connected(&cni.Config{}, w)
	must(t, err)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := wait(ended); err == nil || !strings.Contains(err.Error(), "have not programmed") {
		t.Errorf("before a status: %v", err)
	}
	publish("02:00:00:00:00:0b")
	if err := wait(ended); !errors.Is(err, endpointstatus.ErrOtherContainer) {
		t.Errorf("with the status of another container: %v", err)
	}
	go publish(mac.String())
	must(t, wait(t.Context()))
	other := t.TempDir()
	wait, err = p.engine.Connected(&cni.Config{EndpointStatusDir: other}, w)
	must(t, err)
	if err := wait(ended); err == nil || !strings.Contains(err.Error(), other) {
		t.Errorf("with a folder of another agent: %v", err)
	}
	for folder, want := range map[string]bool{other: true, filepath.Join(other, "none"): false} {
		if got := p.engine.Agent(&cni.Config{EndpointStatusDir: folder}); got != want {
			t.Errorf("without status files of this daemon, an agent reports to %s: %v", folder, got)
		}
	}
	w.Endpoint.Name = "n1-k8s-..-eth0"
	if _, err := p.engine.Connected(&cni.Config{}, w); err == nil {
		t.Error("a workload without a possible file is waited for")
	}
}
