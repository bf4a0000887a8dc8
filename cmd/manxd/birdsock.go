package main

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"github.com/manxnet/manx/bgp"
	"github.com/manxnet/manx/bgp/birdsock"
)

// serveBird answers on the control sockets of both of BIRD's daemons. Trouble with them concerns nothing else.
func serveBird(ctx context.Context, tasks *errgroup.Group, path string, started time.Time, f *follower, log *zap.Logger) {
	if path == "" {
		return
	}
	source := birdsock.Source{
		Version: version, Started: started, Sessions: f.speaker.Sessions, Session: f.speaker.Session, Table: f.speaker.Table,
		Desired: func() (bgp.Desired, time.Time) {
			if at := f.changed.Load(); at != nil {
				return f.Desired(), *at
			}
			return f.Desired(), time.Time{}
		},
	}
	for i, path := range []string{path, birdSocket6(path)} {
		l, err := birdsock.Listen(path)
		if err != nil {
			log.Error("--bird-socket is not served", zap.Error(err))
			continue
		}
		s := &birdsock.Server{Source: source, IPv6: i == 1, Log: log}
		tasks.Go(func() error {
			if err := s.Serve(ctx, l); err != nil && !errors.Is(err, context.Canceled) {
				log.Error("--bird-socket is no longer served", zap.String("path", path), zap.Error(err))
			}
			return nil
		})
	}
}

// birdSocket6 is the path for IPv6: bird6.ctl for bird.ctl.
func birdSocket6(path string) string {
	folder, name := filepath.Split(path)
	if rest, ok := strings.CutPrefix(name, "bird"); ok {
		return folder + "bird6" + rest
	}
	return path + "6"
}
