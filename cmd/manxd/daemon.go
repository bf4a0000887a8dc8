package main

import (
	"cmp"
	"context"
	"os"
	"runtime"
	"runtime/debug"

	"github.com/prometheus/client_golang/prometheus/collectors"
	"go.uber.org/zap"

	"github.com/manxnet/manx/daemon/bus"
	"github.com/manxnet/manx/daemon/deps"
	"github.com/manxnet/manx/daemon/footprint"
	"github.com/manxnet/manx/daemon/part"
	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/node"
	"github.com/manxnet/manx/proto/server"
)

// daemon has the state from the start to the end of the process.
type daemon struct {
	options options
	deps    deps.Deps // as far as they are there from the start: Node, Tables, Control, Log and Bus
	reopen  *reopener
	ends    *restarted
	added   func(deps.Deps) []part.Part // further parts of a node that has joined the cluster; nil: none
}

// run runs the daemon: it serves the control API, joins the cluster, and then maintains this host until ctx ends or a
// part fails permanently. shown are the settings as texts.
func run(ctx context.Context, o options, shown []server.Setting) error {
	ctx, ended := untilMoved(ctx, &o.datastore.kube)
	d, err := newDaemon(ctx, o, shown)
	if err != nil {
		return err
	}
	return ended(d.run(ctx))
}

// newDaemon returns the daemon of a node, which is the only one in its network namespace.
func newDaemon(ctx context.Context, o options, shown []server.Setting) (*daemon, error) {
	if err := checkForOthers(); err != nil {
		return nil, err
	}
	return newProcess(ctx, o, server.Config{Settings: shown})
}

// newProcess returns what each long-running mode of manxd has: its log, its name and the control API. config has what
// the mode adds to the settings of the API.
func newProcess(ctx context.Context, o options, config server.Config) (*daemon, error) {
	lines := newLogLines()
	log, level, err := newLogger(o.log, lines)
	if err != nil {
		return nil, usage(err)
	}
	reopen := reopenOnHangup(ctx, log)
	go footprint.Tune(ctx)
	name, _, err := node.Name(o.node.nameSources())
	if err != nil {
		return nil, err
	}
	log.Info("starting", zap.String("version", version), zap.String("node", name), zap.Int("pid", os.Getpid()))
	config.Node, config.Version, config.Log, config.Level = name, versions(), log.Named("control"), level
	control := server.New(config)
	control.Datastore.Show(server.DatastoreSource{Type: o.datastore.kind})
	control.Add(collectors.NewGoCollector())
	control.Add(collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	requests, restarts := newAPIRequests(), newWatchRestarts()
	control.Add(requests)
	control.Add(restarts)
	control.Add(lines)
	o.datastore.rewatched, o.datastore.kube.Rewatched = restarts.Inc, restarts.Inc
	o.datastore.kube.Requested = func(verb, code string) { requests.WithLabelValues(verb, code).Inc() }
	return &daemon{options: o, reopen: reopen, ends: newRestarted(log), deps: deps.Deps{
		Node: deps.Node{Name: name, Kubernetes: cmp.Or(o.node.kubernetesName, name),
			Namespace: kubernetesNamespace(o.host.namespace), Datastore: o.datastore.kind, RunDir: o.host.runDir,
			Felix: o.localSettings()},
		Tables: datastore.NewTables(log.Named("datastore"), name), Control: control, Log: log, Bus: new(bus.Bus)}}, nil
}

// run opens the listeners for users before any step that may take long.
func (d *daemon) run(ctx context.Context) error {
	group := part.NewGroup(d.deps.Log, append(d.listeners(),
		newFelixListeners(d.deps, d.options.web, d.options.calico), d.ends, &hostPart{d})...)
	group.Show(d.deps.Control)
	if err := group.Run(ctx); err != nil {
		return err
	}
	d.deps.Log.Info("ended; routes, devices and addresses stay in place")
	return nil
}

// listeners returns the parts that serve users, and the watchdog.
func (d *daemon) listeners() []part.Part {
	return []part.Part{newControlSocket(d.deps), newRemoteControl(d.deps, d.options.control),
		newWeb(d.deps, d.options.web), newWatchdog(d.deps), newReadiness(d.deps)}
}

func versions() server.Version {
	v := server.Version{Manx: version, Commit: commit, Go: runtime.Version()}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, d := range info.Deps {
			if d.Path == "github.com/osrg/gobgp/v4" {
				v.GoBGP = d.Version
			}
		}
	}
	return v
}
