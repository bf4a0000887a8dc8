package server

import (
	"context"
	"net"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/reflection"

	"github.com/manxnet/manx/bgp"
	"github.com/manxnet/manx/bgp/speaker"
	"github.com/manxnet/manx/dataplane"
	"github.com/manxnet/manx/dataplane/flowlog"
	"github.com/manxnet/manx/dataplane/kernel"
	"github.com/manxnet/manx/dataplane/policy"
	"github.com/manxnet/manx/dataplane/reconcile"
	"github.com/manxnet/manx/dataplane/route"
	"github.com/manxnet/manx/dataplane/ruleset"
	"github.com/manxnet/manx/datastore"
	manxv1 "github.com/manxnet/manx/proto/manx/v1"
)

// Datastore is what the server asks of *datastore.Tables.
type Datastore interface {
	Status() datastore.Status
	Snapshot() *datastore.Snapshot
	Reread(context.Context, datastore.Store) (datastore.Reread, error)
}

// BGP is what the server asks of *speaker.Speaker.
type BGP interface {
	Sessions() []speaker.SessionStatus
	Session(netip.Addr) (speaker.SessionStatus, bool)
	WatchSessions(context.Context) <-chan speaker.SessionEvent
	ReceivedFrom(context.Context, netip.Addr) ([]speaker.JudgedPath, error)
	AdvertisedTo(context.Context, netip.Addr) ([]speaker.JudgedPath, error)
	Rejected() []speaker.RejectedRoute
	Totals() map[bgp.SessionType]speaker.Totals
	Ready() (bool, string)
	ResetSession(context.Context, netip.Addr, speaker.ResetKind) error
	ClearSession(netip.Addr) (before speaker.SessionStatus, ok bool)
}

// Policy is what the server asks of *dataplane.PolicyAgent.
type Policy interface {
	Status() dataplane.PolicyStatus
	Look(func(*policy.Calculator, *ruleset.Table))
	Counters() (map[string][]kernel.Counter, error)
	Retry(context.Context) (dataplane.Retried, error)
}

// Dataplane is what the server asks of *dataplane.HostAgent.
type Dataplane interface {
	Status() dataplane.Status
	Routes() []route.Status
	RouteCounts() map[reconcile.Phase]int
	Route(netip.Prefix) (route.Status, bool)
	Resync()
	Retry(context.Context) ([]dataplane.Retried, error)
}

// AddressCandidate is one address that could be the node's.
type AddressCandidate struct {
	Address   netip.Prefix
	Interface string
	Method    string // the detection method that judged it
	Chosen    bool
	Reason    string // why chosen or skipped
}

// Source is what the server shows. A part is nil until it runs: until then its answers are empty and the node is not
// ready.
type Source struct {
	DatastoreType string // "etcdv3" or "embedded"
	Datastore     Datastore
	Store         datastore.Store // where orders about this node are kept
	Waiting       string          // why there is no Datastore yet; may be empty
	BGP           BGP
	Dataplane     Dataplane
	Policy        Policy       // nil: not this daemon's business, or not started
	Trace         FlowTracer   // nil without Policy
	Drops         *flowlog.Hub // nil: nobody asked for it
	// Desired is what the BGP speaker was last told.
	Desired func() bgp.Desired
	// Addresses are the candidates of the last address detection.
	Addresses func() []AddressCandidate
	// Notices tells what else a person should know.
	Notices func() []Notice
}

// Notice is something that no single object tells.
type Notice struct {
	Topic   string // "node", "datastore", "bgp" or "dataplane"
	Subject string
	Text    string
	Since   time.Time
}

// Version says what runs.
type Version struct {
	Manx, Commit, GoBGP, Go string
}

// Config is what a Server needs.
type Config struct {
	Node    string
	Version Version
	Log     *zap.Logger
	Level   zap.AtomicLevel // of the daemon's logger
	// Poll is how often a Watch and a health watch look for changes; one second if zero.
	Poll time.Duration
}

// Server answers the control API. It keeps no state of its own but for what CNI plugins report and how long policy took.
type Server struct {
	manxv1.UnimplementedManxServer
	config      Config
	started     time.Time
	liveness    time.Duration // see livenessTimeout
	source      atomic.Pointer[Source]
	policyWaits policyWaits
	traces      atomic.Int32 // that run
	programming prometheus.Histogram
	strangers   lineBudget // for what is refused
}

// New makes a server that shows nothing but its version until Show.
func New(c Config) *Server {
	if c.Poll <= 0 {
		c.Poll = time.Second
	}
	s := &Server{config: c, started: time.Now(), liveness: livenessTimeout, programming: newProgramming()}
	s.source.Store(&Source{})
	return s
}

// Show says what to show from now on.
func (s *Server) Show(source Source) { s.source.Store(&source) }

// Serve answers calls on l, usually from Listen, until ctx ends; then it ends all calls and closes l.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	return serve(ctx, l, s.newServer(grpc.Creds(peerCredentials{})))
}

// biggestRequest bounds what a caller may send: requests are names and numbers.
const biggestRequest = 64 << 10

// newServer has all services, each call of which is guarded.
func (s *Server) newServer(options ...grpc.ServerOption) *grpc.Server {
	g := grpc.NewServer(append(options, grpc.UnaryInterceptor(s.unaryGuard), grpc.StreamInterceptor(s.streamGuard),
		grpc.MaxRecvMsgSize(biggestRequest))...)
	manxv1.RegisterManxServer(g, s)
	grpc_health_v1.RegisterHealthServer(g, &health{server: s})
	reflection.Register(g)
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

// now is what the source has at this moment.
func (s *Server) now() *Source { return s.source.Load() }

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
