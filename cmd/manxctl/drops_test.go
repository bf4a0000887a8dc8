package main_test

import (
	"context"
	"path/filepath"
	"testing"

	"go.uber.org/zap"

	"github.com/manxnet/manx/proto/server"
)

// A daemon without a flow log, or one that takes no part in the controllers, cannot serve these commands: they end with
// the remedy and the exit code of an error.
func TestCommandsThatTheDaemonIsNotConfiguredFor(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "manxd.sock")
	l, err := server.Listen(socket)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- server.New(server.Config{Node: "node-1", Log: zap.NewNop()}).Serve(ctx, l) }()
	defer func() { cancel(); <-ended }()
	s := shell{t: t}
	for _, format := range []string{"table", "json"} {
		s.pipe("", "--socket="+socket, "drops", "-o", format).want(t, 1, "",
			"Error: manxd records no dropped packets: start it with --flow-log=stream (or a file)")
		s.pipe("", "--socket="+socket, "ipam", "releases", "-o", format).want(t, 1, "",
			"Error: manxd on this node takes no part in the controllers of the cluster: --controllers is off")
	}
}
