package server

import (
	"context"
	"net"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/reflection"

	manxv1 "github.com/manxnet/manx/proto/manx/v1"
)

// Notice is a fact that no single object shows.
type Notice struct {
	Topic   string // "node", "datastore", "bgp", "dataplane" or "daemon"
	Subject string
	Text    string
	Since   time.Time
}

// Version is the version of the running program.
type Version struct {
	Manx, Commit, GoBGP, Go string
}

// Setting is a setting of the running program.
type Setting struct {
	Name, Value, Source string
	Environment         []string // the variables that set it
}

// Config has the settings of a Server.
type Config struct {
	Node    string
	Version Version
	// Settings are those in force, without passwords.
	Settings []Setting
	Log      *zap.Logger
	Level    zap.AtomicLevel // of the daemon's logger
	// NoNode is set for a program that is no node: BGP, routes and policy have no checks, notices and metrics.
	NoNode bool
	// Poll is how often a Watch and a health watch check for changes; one second if zero.
	Poll time.Duration
}

// Server answers the control API, from views of the daemon's parts and from added services. It keeps no state of its
// own but for the reports of CNI plugins and how long policy took.
type Server struct {
	// The views of the parts of a node. A call about something new comes as a Service that is added.
	Datastore *DatastoreView
	BGP       *BGPView
	Dataplane *DataplaneView
	Policy    *PolicyView
	Drops     *DropsView
	Node      *NodeView

	config    Config
	started   time.Time
	liveness  time.Duration // see livenessTimeout
	strangers lineBudget    // for refused calls
	registry  *prometheus.Registry
	manx      *manxService
	added     addedServices

	mu    sync.RWMutex
	shown []any // never changed in place; the views first
	views int   // how many of it are views
}

// New makes a server that shows only its version until its views have sources.
func New(c Config) *Server {
	if c.Poll <= 0 {
		c.Poll = time.Second
	}
	s := &Server{config: c, started: time.Now(), liveness: livenessTimeout, registry: prometheus.NewRegistry(),
		Datastore: &DatastoreView{}, BGP: &BGPView{lists: make(chan struct{}, mostLists), sendWithin: sendWithin,
			answered: reading[struct{}]{longest: longestAnswer}},
		Drops: &DropsView{}}
	s.Policy = &PolicyView{node: c.Node, log: c.Log, datastore: s.Datastore, programming: newProgramming()}
	s.Dataplane = &DataplaneView{node: c.Node, datastore: s.Datastore, policy: s.Policy}
	s.Policy.dataplane, s.BGP.dataplane = s.Dataplane, s.Dataplane
	s.Node = &NodeView{node: c.Node, datastore: s.Datastore, bgp: s.BGP}
	s.manx = &manxService{overview: &overview{s}, logLevel: logLevel{c.Level}, DatastoreView: s.Datastore,
		BGPView:       s.BGP,
		DataplaneView: s.Dataplane, PolicyView: s.Policy, DropsView: s.Drops, NodeView: s.Node,
		retries: &retries{s.Datastore, s.Dataplane, s.Policy}, policyWaits: &policyWaits{log: c.Log}}
	views := []any{s.manx.overview, s.Datastore, s.BGP, s.Dataplane, s.Policy, s.Node, s.manx.policyWaits}
	if c.NoNode {
		views = views[:2]
	}
	for _, v := range views {
		s.Add(v)
	}
	s.views = len(s.shown)
	return s
}

// manxService is manxv1.ManxServer: each call is that of the view of its subject.
type manxService struct {
	unimplemented
	*overview
	logLevel
	*DatastoreView
	*BGPView
	*DataplaneView
	*PolicyView
	*DropsView
	*NodeView
	*retries
	*policyWaits
}

// unimplemented keeps the calls that no view has one level below those of views, which then come first.
type unimplemented struct{ manxv1.UnimplementedManxServer }

// Serve answers calls on l, usually from Listen, until ctx ends; then it ends all calls and closes l.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	return serve(ctx, l, s.newServer(grpc.Creds(peerCredentials{})))
}

// Level is the level of the daemon's log.
func (s *Server) Level() zap.AtomicLevel { return s.config.Level }

// biggestRequest bounds the size of a request, in bytes: requests are names and numbers.
const biggestRequest = 64 << 10

// newServer has all services, each call of which is guarded.
func (s *Server) newServer(options ...grpc.ServerOption) *grpc.Server {
	g := grpc.NewServer(append(options, grpc.UnaryInterceptor(s.unaryGuard), grpc.StreamInterceptor(s.streamGuard),
		grpc.UnknownServiceHandler(s.added.call), grpc.MaxRecvMsgSize(biggestRequest))...)
	manxv1.RegisterManxServer(g, s.manx)
	grpc_health_v1.RegisterHealthServer(g, &health{server: s})
	reflection.Register(listing{g, &s.added})
	return g
}

func serve(ctx context.Context, l net.Listener, g *grpc.Server) error {
	stop := context.AfterFunc(ctx, g.Stop)
	defer stop()
	err := g.Serve(l)
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// Notices collects the facts that a person should know: first from added parts, then from the views.
func (s *Server) Notices() []Notice {
	var added, views []Notice
	for i, x := range s.all() {
		n, ok := x.(Noticer)
		switch {
		case !ok:
		case i < s.views:
			views = append(views, n.Notices()...)
		default:
			added = append(added, n.Notices()...)
		}
	}
	return append(added, views...)
}

// unixMs is a time as the API has it: 0 for never.
func unixMs(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMilli()
}

// text is an address or prefix, empty if there is none.
func text[T interface {
	IsValid() bool
	String() string
}](v T) string {
	if !v.IsValid() {
		return ""
	}
	return v.String()
}
