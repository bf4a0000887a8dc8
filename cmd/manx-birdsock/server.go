package main

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/status"

	"github.com/manxnet/manx/datastore/safefile"
	manxv1 "github.com/manxnet/manx/proto/manx/v1"
)

// server answers for one address family, as BIRD 1.6 had a daemon for each.
type server struct {
	manx    manxv1.ManxClient
	version string
	ipv6    bool
	now     func() time.Time
	reading chan struct{} // of length 1: one client reads the table at a time
}

const (
	// idle is how long a client may send nothing.
	idle = 5 * time.Minute
	// patience is for an answer of manxd, which may have a million routes.
	patience = time.Minute
)

// listen opens a control socket for the user and the group of this process. It replaces a socket that no process
// serves. It returns an error if a BIRD serves the socket, or if the path exists and is no socket.
func listen(path string) (net.Listener, error) {
	l, err := safefile.Listen(path, 0o660)
	if err != nil {
		return nil, fmt.Errorf("%w (if BIRD has it, stop BIRD first)", err)
	}
	return l, nil
}

// serve answers clients until ctx ends; then the socket is removed.
func (s *server) serve(ctx context.Context, l net.Listener) error {
	defer l.Close()
	stop := context.AfterFunc(ctx, func() { _ = l.Close() })
	defer stop()
	for {
		c, err := l.Accept()
		if ctx.Err() != nil {
			if err == nil {
				_ = c.Close()
			}
			return ctx.Err()
		}
		if err != nil {
			return err
		}
		go s.client(ctx, c)
	}
}

// client answers one question a line.
func (s *server) client(ctx context.Context, c net.Conn) {
	defer c.Close()
	stop := context.AfterFunc(ctx, func() { _ = c.Close() })
	defer stop()
	if _, err := fmt.Fprintf(c, "0001 BIRD %s ready.\n", s.bird()); err != nil {
		return
	}
	lines := bufio.NewScanner(c)
	for {
		_ = c.SetDeadline(time.Now().Add(idle))
		if !lines.Scan() {
			return
		}
		out := &reply{w: bufio.NewWriter(c)}
		s.answer(ctx, lines.Text(), out)
		if out.w.Flush() != nil {
			return
		}
	}
}

// bird has a number that tools for BIRD 1.6 know, and names the program that answers.
func (s *server) bird() string { return "1.6.8 (Manx " + s.version + ")" }

// answer finds the command. Only reading is possible.
func (s *server) answer(ctx context.Context, line string, out *reply) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	words := strings.Fields(strings.ReplaceAll(line, `"`, " "))
	var err error
	switch {
	case len(words) == 0:
		out.end(9001, "syntax error")
	case words[0] == "restrict":
		out.end(16, "Access restricted")
	case words[0] == "echo":
		out.end(0, "")
	case slices.Contains([]string{"configure", "down", "enable", "disable", "restart", "reload", "debug", "mrtdump"},
		words[0]):
		out.end(8007, "Access denied")
	case words[0] != "show" || len(words) == 1:
		out.end(9001, "syntax error")
	case words[1] == "status" && len(words) == 2:
		err = s.showStatus(ctx, out)
	case words[1] == "protocols":
		err = s.showProtocols(ctx, words[2:], out)
	case words[1] == "route":
		err = s.showRoute(ctx, words[2:], out)
	default:
		out.end(9001, "syntax error: manx-birdsock answers show status, show protocols and show route")
	}
	if err != nil {
		out.end(8000, oneLine(status.Convert(err).Message()))
	}
}

// showStatus shows no reconfiguration: manxd has none, since each change of the datastore takes effect at once.
func (s *server) showStatus(ctx context.Context, out *reply) error {
	now, err := s.manx.GetStatus(ctx, &manxv1.GetStatusRequest{})
	if err != nil {
		return err
	}
	started := stamp(time.UnixMilli(now.GetStartedUnixMs()))
	out.line(1000, "BIRD "+s.bird())
	out.line(1011, "Router ID is %s", now.GetRouterId())
	out.line(1011, "Current server time is %s", stamp(s.now()))
	out.line(1011, "Last reboot on %s", started)
	out.line(1011, "Last reconfiguration on %s", started)
	out.end(13, "Daemon is up and running")
	return nil
}

func stamp(t time.Time) string { return t.Format(time.DateTime) }

// since is short, as scripts expect it: a time of today, or a date.
func (s *server) since(ms int64) string {
	t := time.UnixMilli(ms)
	if s.now().Sub(t) < 20*time.Hour {
		return t.Format(time.TimeOnly)
	}
	return t.Format(time.DateOnly)
}
