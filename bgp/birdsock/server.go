package birdsock

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/manxnet/manx/bgp"
	"github.com/manxnet/manx/bgp/speaker"
	"github.com/manxnet/manx/datastore/safefile"
)

// Source provides the data of the answers. No function may be nil but InterfaceOf.
type Source struct {
	Version  string
	Started  time.Time
	Desired  func() (bgp.Desired, time.Time) // and since when
	Sessions func() []speaker.SessionStatus
	Session  func(netip.Addr) (speaker.SessionStatus, bool)
	Table    func(ipv6 bool) ([]*speaker.TablePath, error)
	// InterfaceOf returns the interface by which a next hop is reached, empty if unknown.
	InterfaceOf func(netip.Addr) string
}

// Server answers for one address family, as BIRD 1.6 had a daemon for each.
type Server struct {
	Source Source
	IPv6   bool
	Log    *zap.Logger

	now func() time.Time
}

// idle is how long a client may send nothing.
const idle = 5 * time.Minute

// Listen opens a control socket, mode 0600. It replaces a socket that no process serves. It returns an error if a BIRD
// serves the socket, or if the path exists and is no socket.
func Listen(path string) (net.Listener, error) {
	l, err := safefile.Listen(path, 0o600)
	if err != nil {
		return nil, fmt.Errorf("control socket: %w (if BIRD has it, stop BIRD first)", err)
	}
	return l, nil
}

// Serve answers clients until ctx ends; then the socket is removed.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
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
func (s *Server) client(ctx context.Context, c net.Conn) {
	defer c.Close()
	stop := context.AfterFunc(ctx, func() { _ = c.Close() })
	defer stop()
	if _, err := fmt.Fprintf(c, "0001 BIRD %s ready.\n", s.version()); err != nil {
		return
	}
	lines := bufio.NewScanner(c)
	for {
		_ = c.SetDeadline(time.Now().Add(idle))
		if !lines.Scan() {
			return
		}
		out := &reply{w: bufio.NewWriter(c)}
		s.answer(lines.Text(), out)
		if out.w.Flush() != nil {
			return
		}
	}
}

// version has a number that tools for BIRD 1.6 know, and names the program that answers.
func (s *Server) version() string { return "1.6.8 (Manx " + s.Source.Version + ")" }

func (s *Server) clock() time.Time {
	if s.now != nil {
		return s.now()
	}
	return time.Now()
}

// answer finds the command. Only reading is possible.
func (s *Server) answer(line string, out *reply) {
	words := strings.Fields(strings.ReplaceAll(line, `"`, " "))
	switch {
	case len(words) == 0:
		out.end(9001, "syntax error")
	case words[0] == "restrict":
		out.end(16, "Access restricted")
	case words[0] == "echo":
		out.end(0, "")
	case oneOf(words[0], "configure", "down", "enable", "disable", "restart", "reload", "debug", "mrtdump"):
		out.end(8007, "Access denied")
	case words[0] != "show" || len(words) == 1:
		out.end(9001, "syntax error")
	case words[1] == "status" && len(words) == 2:
		s.showStatus(out)
	case words[1] == "protocols":
		s.showProtocols(words[2:], out)
	case words[1] == "route":
		s.showRoute(words[2:], out)
	default:
		out.end(9001, "syntax error: manxd answers show status, show protocols and show route")
	}
}

func (s *Server) showStatus(out *reply) {
	d, configured := s.Source.Desired()
	if configured.IsZero() {
		configured = s.Source.Started
	}
	out.line(1000, "BIRD "+s.version())
	out.line(1011, "Router ID is %s", d.Global.RouterID)
	out.line(1011, "Current server time is %s", stamp(s.clock()))
	out.line(1011, "Last reboot on %s", stamp(s.Source.Started))
	out.line(1011, "Last reconfiguration on %s", stamp(configured))
	out.end(13, "Daemon is up and running")
}

func stamp(t time.Time) string { return t.Format(time.DateTime) }

// since is short, as scripts expect it: a time of today, or a date.
func (s *Server) since(t time.Time) string {
	if s.clock().Sub(t) < 20*time.Hour {
		return t.Format(time.TimeOnly)
	}
	return t.Format(time.DateOnly)
}

func oneOf(word string, words ...string) bool {
	for _, w := range words {
		if w == word {
			return true
		}
	}
	return false
}
