package main_test

import (
	"context"
	"path/filepath"
	"testing"

	"go.uber.org/zap"

	"github.com/manxnet/manx/proto/server"
)

// hung is a part of the daemon that answers until the channel is set.
type hung struct{ stuck chan chan struct{} }

func (h hung) Checks() []server.Check {
	select {
	case forever := <-h.stuck:
		<-forever
	default:
	}
	return nil
}

// A node that is not ready is alive; a daemon of which a part hangs is not.
func TestHealth(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(t.TempDir(), "manxd.sock")
	s := shell{t, []string{"MANX_TEST_SOCKET=" + socket}}
	s.runWithDaemon("health", "--live").want(t, 4, "", "manxd cannot be reached at "+socket)
	s.runWithDaemon("health", "--live", "--ready").want(t, 2, "", "exclude each other")
	srv := server.New(server.Config{Node: "node-1", Log: zap.NewNop()})
	part := hung{make(chan chan struct{}, 1)}
	srv.Add(part)
	l, err := server.Listen(socket)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- srv.Serve(ctx, l) }()
	forever := make(chan struct{})
	defer func() { close(forever); cancel(); <-done }()
	for _, ready := range [][]string{{"health"}, {"health", "--ready"}} {
		s.runWithDaemon(ready...).want(t, 4, "",
			"Error: not ready\ndatastore: not connected yet: manxd is starting\n")
	}
	s.runWithDaemon("health", "--live").want(t, 0, "ok\n")
	part.stuck <- forever
	s.runWithDaemon("health", "--live").want(t, 4, "", "no answer within 5s")
}
