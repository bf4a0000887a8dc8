package main

import (
	"context"
	"path/filepath"
	"strings"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"github.com/manxnet/manx/bgp/birdsock"
	"github.com/manxnet/manx/daemon/deps"
	"github.com/manxnet/manx/daemon/envflag"
	"github.com/manxnet/manx/daemon/part"
)

// birdOptions configure the socket that answers as BIRD does.
type birdOptions struct{ socket string }

// Flags implements group.
func (o *birdOptions) Flags(s envflag.Set) {
	s.String(&o.socket, "bird-socket", "", "path of a socket that answers BIRD's show commands, such as "+
		"/var/run/calico/bird.ctl (IPv6: bird6.ctl beside it); empty: off", "MANX_BIRD_SOCKET")
}

// Check implements group.
func (o *birdOptions) Check() error { return nil }

// birdSocket serves the control sockets of both of BIRD's daemons.
type birdSocket struct {
	path   string // for IPv4
	source birdsock.Source
	log    *zap.Logger
}

// newBirdSocket returns nil if it is not configured.
func newBirdSocket(d deps.Deps, o birdOptions, b *bgpPart) part.Part {
	if o.socket == "" {
		return nil
	}
	return &birdSocket{path: o.socket, log: d.Log.Named("bird-socket"), source: birdsock.Source{
		Version: version, Started: time.Now(), Sessions: b.speaker.Sessions, Session: b.speaker.Session,
		Table: b.speaker.Table, Desired: b.Decided}}
}

func (b *birdSocket) Name() string { return "bird-socket" }

// Run serves the sockets that can be opened: an entry in the way may belong to another program.
func (b *birdSocket) Run(ctx context.Context) error {
	tasks, ctx := errgroup.WithContext(ctx)
	for i, path := range []string{b.path, birdSocket6(b.path)} {
		l, err := birdsock.Listen(path)
		if err != nil {
			b.log.Error("--bird-socket is not served", zap.Error(err))
			continue
		}
		s := &birdsock.Server{Source: b.source, IPv6: i == 1, Log: b.log}
		tasks.Go(func() error { return s.Serve(ctx, l) })
	}
	return tasks.Wait()
}

// birdSocket6 returns the path for IPv6: bird6.ctl for bird.ctl.
func birdSocket6(path string) string {
	folder, name := filepath.Split(path)
	if rest, ok := strings.CutPrefix(name, "bird"); ok {
		return folder + "bird6" + rest
	}
	return path + "6"
}
