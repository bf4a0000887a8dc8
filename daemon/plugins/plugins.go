// Package plugins serves the CNI plugins of this host, with the datastore and addresses in memory.
package plugins

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"github.com/manxnet/manx/cni"
	"github.com/manxnet/manx/cni/engine"
	"github.com/manxnet/manx/cni/kubeapi"
	cniserver "github.com/manxnet/manx/cni/server"
	"github.com/manxnet/manx/daemon/bus"
	"github.com/manxnet/manx/daemon/deps"
	"github.com/manxnet/manx/daemon/part"
	"github.com/manxnet/manx/dataplane/endpointstatus"
	"github.com/manxnet/manx/dataplane/podnet"
	"github.com/manxnet/manx/datastore/felixconfig"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/datastore/safefile"
	"github.com/manxnet/manx/ipam"
	"github.com/manxnet/manx/ipam/warm"
	"github.com/manxnet/manx/proto/server"
)

// Config has the settings of this host.
type Config struct {
	Prefix  string // of names of host interfaces; empty: as Calico's
	MTUFile string
	// StatusDir returns the folder of the endpoint status files, given endpointStatusPathPrefix of FelixConfiguration;
	// empty for none.
	StatusDir func(felix string) string
	Rules     interface{ RequireTable() error } // nil: policy is off
}

// Part serves the CNI plugins of this host.
type Part struct {
	deps.Deps
	config   Config
	log      *zap.Logger
	cache    *warm.Cache
	engine   *engine.Engine
	server   *cniserver.Server
	ahead    *ipam.Keeper
	listener net.Listener
	enforces atomic.Bool // the rules exist
}

// New returns the part.
func New(d deps.Deps, c Config) *Part {
	p := &Part{Deps: d, config: c, log: d.Log.Named("cni")}
	kinds := slices.DeleteFunc(p.Needs().Kinds(), func(k model.Kind) bool { return !d.Store.Keeps(k) })
	p.cache = warm.New(d.Store, d.Tables, kinds, p.ownBlock)
	p.ahead = ipam.NewKeeper(func() *ipam.Allocator { return ipam.New(p.cache.Begin(), p.log, time.Now) }, p.log)
	p.engine = engine.New(engine.Config{Open: p.open, Node: p.nodeOf,
		Kubernetes: p.kubernetes, Prefix: c.Prefix, MTUFile: c.MTUFile, Agent: p.agentReports,
		Connected: p.connected, Enforced: func(*cni.Config) error { return p.Enforced() }, Report: p.report,
		Lasting: true, InterfaceWith: podnet.InterfaceWith, HasInterface: podnet.HasInterface,
		Assigned: p.ahead.Assigned, Confirm: d.Tables.Confirm, Released: d.Tables.Withdraw,
		Deferred: filepath.Join(p.Node.RunDir, "cni-deferred"), Log: p.log})
	p.server = cniserver.New(p.engine, p.log)
	return p
}

func (p *Part) Name() string { return "cni" }

// Describe implements prometheus.Collector.
func (p *Part) Describe(out chan<- *prometheus.Desc) { p.server.Describe(out) }

// Collect implements prometheus.Collector.
func (p *Part) Collect(out chan<- prometheus.Metric) { p.server.Collect(out) }

// Needs returns the kinds that an ADD reads from the tables instead of the datastore.
func (p *Part) Needs() part.Needs {
	return append(part.AllOf(model.KindClusterInformation, model.KindNode, model.KindIPPool, model.KindIPReservation,
		model.KindIPAMConfig, model.KindProfile, model.KindNamespace),
		part.OwnOf(model.KindBlockAffinity, model.KindWorkloadEndpoint)...)
}

// Ready implements part.Ready: while the socket is not served plugins use the datastore directly.
func (p *Part) Ready() server.Check {
	return server.Check{Name: "cni", OK: true, Reason: "plugins are served at " + p.socket()}
}

func (p *Part) socket() string { return filepath.Join(p.Node.RunDir, cni.SocketName) }

// Open implements part.Opener.
func (p *Part) Open() (err error) {
	p.listener, err = cniserver.Listen(p.socket())
	return err
}

// Explain implements part.Explainer.
func (p *Part) Explain(err error) string {
	return fmt.Sprintf("CNI plugins are not served and go to the datastore themselves: %v", err)
}

// Run implements part.Part.
func (p *Part) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return p.ahead.Run(ctx) })
	group.Go(func() error { p.repair(ctx); return nil })
	group.Go(func() error { p.engine.CatchUp(ctx); return nil })
	group.Go(func() error { return p.server.Serve(ctx, p.listener) })
	return group.Wait()
}

// Close implements part.Closer: it completes the deferred writes of plugins before the datastore is closed.
func (p *Part) Close() { p.engine.Wait() }

// repair completes interrupted writes of an earlier process: handles that do not count all of their addresses. A
// container with an endpoint has a complete handle. The DEL of a container also finds its uncounted addresses.
func (p *Part) repair(ctx context.Context) {
	if _, err := p.Tables.WaitInSync(ctx); err != nil {
		return
	}
	known := map[string]bool{}
	for o := range p.Tables.Snapshot().All(model.KindWorkloadEndpoint) {
		if e, ok := o.Value.(*model.WorkloadEndpoint); ok && e.Spec.Node == p.Node.Name {
			known[e.Spec.ContainerID] = true
		}
	}
	complete := func(handle string) bool { // NETWORK.CONTAINER
		return known[handle[strings.LastIndex(handle, ".")+1:]]
	}
	n, err := ipam.New(p.cache.Begin(), p.log, time.Now).CountHandles(ctx, p.Node.Name, complete)
	switch {
	case ctx.Err() != nil:
	case err != nil:
		p.log.Warn("handles of addresses were not checked", zap.Error(err))
	case n > 0:
		p.log.Info("handles of addresses are repaired", zap.Int("handles", n))
	}
}

// open returns the cached datastore for one call.
func (p *Part) open(context.Context, *cni.Config) (engine.Store, func(), error) {
	return p.cache.Begin(), func() {}, nil
}

// ownBlock reports whether a block belongs to this node: then it is cached.
func (p *Part) ownBlock(o *model.Object) bool {
	b, ok := o.Value.(*model.Block)
	return ok && o.Err == nil && b.Affinity != nil && *b.Affinity == ipam.Host(p.Node.Name).String()
}

// nodeOf returns this node's name. It refuses a network configuration with another name, which would put containers on
// the wrong node.
func (p *Part) nodeOf(c *cni.Config) (string, error) {
	if c.Nodename != "" && c.Nodename != p.Node.Name {
		return "", fmt.Errorf("nodename = %q in the network configuration: manxd on this host is node %q", c.Nodename,
			p.Node.Name)
	}
	return p.Node.Name, nil
}

func (p *Part) kubernetes(*cni.Config) (engine.Kubernetes, error) {
	if p.Kube == nil {
		return nil, errors.New("manxd knows none: set --kubeconfig (KUBECONFIG)")
	}
	return kubeapi.New(p.Kube)
}

// statusDir returns the folder of the endpoint status files: the one of FelixConfiguration, or the default if that is
// unsafe; empty for none.
func (p *Part) statusDir() string {
	felix := felixconfig.Merge(p.Tables.Snapshot(), p.Node.Name, p.Node.Felix)
	dir, usual := p.config.StatusDir(felix.EndpointStatusPathPrefix), p.config.StatusDir("")
	if dir == usual || dir == "" || safefile.CheckOwned(dir) == nil {
		return dir
	}
	return usual
}

// agentReports implements engine.Config.Agent. The files of a folder may be another agent's.
func (p *Part) agentReports(c *cni.Config) bool {
	own := p.statusDir()
	_, err := os.Stat(cmp.Or(c.EndpointStatusDir, own, endpointstatus.DefaultFolder))
	return err == nil || own != ""
}

// connected implements engine.Config.Connected. The agents of this daemon are followed in memory; only a folder that
// the network configuration names, and that is not theirs, has files of another agent.
func (p *Part) connected(c *cni.Config, w engine.Container) (func(context.Context) error, error) {
	if _, err := endpointstatus.FileName(w.Endpoint); err != nil {
		return nil, err // the agents do not report it
	}
	workload := endpointstatus.Workload(w)
	if dir := c.EndpointStatusDir; dir != "" && dir != p.statusDir() {
		return func(ctx context.Context) error { return endpointstatus.WaitForFile(ctx, dir, workload) }, nil
	}
	return func(ctx context.Context) error { return awaitConnected(ctx, p.Bus, workload) }, nil
}

// awaitConnected returns when the agents of this process have connected a workload, or an error when ctx ends before.
func awaitConnected(ctx context.Context, b *bus.Bus, w endpointstatus.Workload) error {
	for {
		statuses, next := b.Connected.Get()
		s, connected := statuses[w.Endpoint]
		if connected && s.Describes(w) {
			return nil
		}
		select {
		case <-ctx.Done():
			if connected {
				return fmt.Errorf("the status of the workload %w", endpointstatus.ErrOtherContainer)
			}
			return errors.New("the agents have not programmed them")
		case <-next:
		}
	}
}

// Enforced returns an error while policy is on and its rules do not exist yet. Once they exist the policy agent keeps
// them.
func (p *Part) Enforced() error {
	if p.config.Rules == nil || p.enforces.Load() {
		return nil
	}
	err := p.config.Rules.RequireTable()
	p.enforces.Store(err == nil)
	return err
}

func (p *Part) report(_ context.Context, _ *cni.Config, endpoint string, waited time.Duration, timedOut bool) {
	p.Control.PolicyWaited(endpoint, waited, timedOut)
}
