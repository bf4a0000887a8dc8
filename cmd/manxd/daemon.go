package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"github.com/manxnet/manx/bgp/password"
	"github.com/manxnet/manx/bgp/speaker"
	"github.com/manxnet/manx/dataplane"
	"github.com/manxnet/manx/dataplane/flowlog"
	"github.com/manxnet/manx/dataplane/kernel"
	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/node"
	"github.com/manxnet/manx/datastore/nodestatus"
	"github.com/manxnet/manx/ipam"
	"github.com/manxnet/manx/proto/server"
)

// run is the life of the daemon: serve what it knows, join the cluster, then keep this host as it should be until ctx
// ends or a part of it fails for good.
func run(ctx context.Context, o options) error {
	log, level, err := newLogger(o.logLevel, o.logFormat)
	if err != nil {
		return usage(err)
	}
	if err := checkForOthers(); err != nil {
		return err
	}
	reopen := reopenOnHangup(ctx, log)
	go tuneRuntime(ctx)
	name, _, err := node.Name(o.nameSources())
	if err != nil {
		return err
	}
	log.Info("starting", zap.String("version", version), zap.String("node", name), zap.Int("pid", os.Getpid()))

	tasks, ctx := errgroup.WithContext(ctx)
	control := server.New(server.Config{Node: name, Version: versions(), Log: log.Named("control"), Level: level})
	listen := &ports{log: log}
	control.Show(server.Source{DatastoreType: o.datastore, Notices: listen.Notices})
	if err := serve(ctx, tasks, o, control, listen); err != nil {
		return err
	}
	tasks.Go(func() error { return join(ctx, o, name, control, listen, reopen, log) })
	err = tasks.Wait()
	if err == nil || errors.Is(err, context.Canceled) {
		log.Info("ended; routes, devices and addresses stay in place")
		return nil
	}
	return err
}

func (o options) nameSources() node.NameSources {
	return node.NameSources{Configured: o.nodeName, File: o.nodeNameFile, HostName: os.Hostname, Env: os.Getenv("HOSTNAME")}
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

const httpFlag = "http-listen"

// serve opens the control socket and the HTTP listener, before anything that may take long.
func serve(ctx context.Context, tasks *errgroup.Group, o options, control *server.Server, p *ports) error {
	socket, err := server.Listen(filepath.Join(o.runDir, "manxd.sock"))
	if err != nil {
		return err
	}
	tasks.Go(func() error { return control.Serve(ctx, socket) })
	serveControl(ctx, tasks, p, o.control, control)
	if o.httpListen == "" {
		return nil
	}
	metrics := prometheus.NewRegistry()
	metrics.MustRegister(control.Collector(), collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	h := &http.Server{Handler: control.Handler(metrics), ReadHeaderTimeout: 10 * time.Second}
	context.AfterFunc(ctx, func() { _ = h.Close() })
	tasks.Go(func() error {
		return p.serve(ctx, httpFlag, o.httpListen, func(l net.Listener) error {
			if err := h.Serve(l); !errors.Is(err, http.ErrServerClosed) {
				return fmt.Errorf("--%s=%s: %w", httpFlag, o.httpListen, err)
			}
			return nil
		})
	})
	return nil
}

// join registers the node and runs everything that the datastore decides.
func join(ctx context.Context, o options, name string, control *server.Server, listen *ports, reopen *reopener,
	log *zap.Logger) error {
	starting := server.Source{DatastoreType: o.datastore, Notices: listen.Notices}
	store, closeStore, err := openStore(ctx, o, func(err error) {
		starting.Waiting = "waiting for it: " + err.Error()
		control.Show(starting)
	}, log)
	if err != nil {
		return err
	}
	defer closeStore()
	release, err := beTheOnlyDaemon(log)
	if err != nil {
		return err
	}
	defer release()
	config := o.nodeConfig()
	if o.asksKubernetes() {
		if config.Kubernetes, err = kubernetesAddress(o.kubeconfig, cmp.Or(o.k8sNodeRef, name)); err != nil {
			return err
		}
	}
	registered, err := node.Register(ctx, config, store, node.System{}, log.Named("node"))
	if err != nil {
		return err
	}
	tunnels := &node.Tunnels{Store: store, IPAM: ipam.New(store, log.Named("ipam"), time.Now), Node: name,
		Types: []node.TunnelType{node.TunnelIPIP}, Log: log.Named("tunnels")}
	if err := tunnels.Ensure(ctx); err != nil {
		// Run tries again; a node without a tunnel address is still of use to pools without a tunnel.
		log.Error("no tunnel address yet", zap.Error(err))
	}
	k, err := kernel.New()
	if err != nil {
		return err
	}
	defer k.Close()
	bmp, err := o.bmp(name)
	if err != nil {
		return usage(err)
	}

	f := &follower{node: name, routerID: o.routerID, clusterIPs: o.clusterIPs, prefix: o.interfacePrefix,
		passwords: password.NewFolder(o.passwordDir), log: log.Named("bgp"),
		passwordsChanged: make(chan struct{}, 1),
		tables:           datastore.NewTables(log.Named("datastore"), name),
		speaker: speaker.New(speaker.Config{Logger: log.Named("bgp"), GobgpSocket: filepath.Join(o.runDir, "gobgp.sock"), BMP: bmp,
			MaxPrefixes: o.maxPrefixes, WarnPrefixes: o.warnPrefixes, InterfaceOf: interfaceOf(k, log.Named("bgp"))}),
		agent: dataplane.New(dataplane.Config{Kernel: k, NodeName: name, Logger: log.Named("dataplane"), MTUFile: o.mtuFile,
			EndpointStatusDir: o.endpointStatusDir, InterfacePrefix: o.interfacePrefix, WithPolicy: o.policy}),
	}
	defer f.speaker.Close()
	f.refuse, f.connected = o.refuse, newConnectedSubnets(k.ListAddresses, f.lookAtPasswords, log.Named("bgp"))
	f.agent.OnLinks(f.lookAtLinks)
	kinds := watched
	var drops *flowlog.Hub
	var tracer server.FlowTracer
	flowLog := func(context.Context, *errgroup.Group) {}
	lines := o.flowLogLines(log.Named("flow-log"))
	reopen.add(lines.Reopen)
	if !o.policy {
		leaveAlone(log.Named("policy"))
	} else {
		rules, err := kernel.NewRules()
		if err != nil {
			return err
		}
		defer rules.Close() //nolint:errcheck // everything has been answered
		tracer = rules
		f.policy = dataplane.NewPolicy(dataplane.PolicyConfig{Rules: rules, Links: k, Connections: k, Policy: o.policyConfig(name), Logger: log.Named("policy"),
			Programmed: control.ObserveProgramming, Reached: f.agent.SetPolicy})
		kinds = slices.Concat(watched, watchedForPolicy)
		if o.flowLogOn() {
			drops = flowlog.NewHub(o.flowLogRate, lines.writer(), f.policy.EndpointOf)
			flowLog = func(ctx context.Context, tasks *errgroup.Group) {
				serveFlowLog(ctx, tasks, rules, drops, lines, log.Named("flow-log"))
			}
		}
	}
	drainer := &node.Drainer{Store: store, Node: name, Log: log.Named("drain"),
		Packets: func() (uint64, error) { return k.SentPackets(workloadInterfaces) }}
	var candidates atomic.Pointer[[]node.Candidate]
	candidates.Store(&registered.Candidates)
	shownPolicy := server.Policy(nil)
	if f.policy != nil {
		shownPolicy = f.policy
	}
	control.Show(server.Source{
		DatastoreType: o.datastore, Policy: shownPolicy, Trace: tracer, Drops: drops, Datastore: f.tables, Store: store,
		BGP: f.speaker, Dataplane: f.agent, Desired: f.Desired,
		Notices: func() []server.Notice {
			return slices.Concat(listen.Notices(), lines.Notices(), drainNotice(name, drainer.State()),
				refusedRoutes(f.speaker.Rejected()))
		},
		Addresses: func() []server.AddressCandidate { return shown(*candidates.Load()) },
	})

	tasks, ctx := errgroup.WithContext(ctx)
	serveGobgp(ctx, tasks, listen, o, k, f.speaker, log.Named("gobgp"))
	serveBird(ctx, tasks, o.birdSocket, time.Now(), f, log.Named("bird-socket"))
	tasks.Go(func() error { return f.tables.Run(ctx, store, kinds...) })
	tasks.Go(func() error { return f.agent.Run(ctx) })
	flowLog(ctx, tasks)
	if f.policy != nil {
		tasks.Go(func() error { return f.policy.Run(ctx) })
	}
	tasks.Go(func() error { return f.followDatastore(ctx) })
	tasks.Go(func() error { return f.followBGP(ctx) })
	tasks.Go(func() error { return f.connected.run(ctx) })
	if o.passwordDir != "" {
		tasks.Go(func() error {
			watchPasswords(ctx, o.passwordDir, f.lookAtPasswords, log.Named("bgp"))
			return nil
		})
	}
	tasks.Go(func() error { return tunnels.Run(ctx, f.tables) })
	tasks.Go(func() error { return drainer.Run(ctx, f.tables) })
	status := &nodestatus.Reporter{Store: store, Node: name, Facts: nodeFacts{f, k, time.Now()}.gather, Log: log.Named("node-status"), Retry: time.Second}
	tasks.Go(func() error { return status.Run(ctx) })
	tasks.Go(func() error {
		node.Monitor(ctx, config, registered, store, node.System{}, func(r node.Result) { candidates.Store(&r.Candidates) }, log.Named("node"))
		return nil
	})
	return tasks.Wait()
}

// shown are the candidates as the control API has them.
func shown(candidates []node.Candidate) []server.AddressCandidate {
	list := make([]server.AddressCandidate, len(candidates))
	for i, c := range candidates {
		list[i] = server.AddressCandidate{Address: c.Address, Interface: c.Interface, Method: c.Method, Chosen: c.Chosen, Reason: c.Reason}
	}
	return list
}

func (o options) nodeConfig() node.Config {
	return node.Config{
		Name: o.nameSources(),
		IP:   o.ip, IP6: o.ip6, IPMethod: o.ipMethod, IP6Method: o.ip6Method, PollInterval: o.pollInterval,
		AS: o.as, K8sNodeRef: o.k8sNodeRef, ClusterType: o.clusterType,
		DisableConflictCheck: o.disableConflictCheck, WaitForDatastore: o.waitForDatastore,
		NoDefaultPools: o.noDefaultPools, Pool4: o.pool4.config(), Pool6: o.pool6.config(), NoIPv6: noIPv6(),
		Directories: []string{"/var/run/calico", filepath.Dir(o.nodeNameFile), filepath.Dir(o.mtuFile)},
	}
}

// noIPv6 tells whether the default IPv6 pool is not wanted, as calico/node decides it.
func noIPv6() bool {
	if os.Getenv("FELIX_IPV6SUPPORT") == "false" {
		return true
	}
	_, err := os.Stat("/proc/sys/net/ipv6")
	return err != nil
}

func (p poolOptions) config() node.PoolConfig {
	return node.PoolConfig{CIDR: p.cidr, BlockSize: p.blockSize, IPIP: p.ipip, VXLAN: p.vxlan, NATOutgoing: p.natOutgoing,
		DisableBGPExport: p.disableBGPExport, NodeSelector: p.nodeSelector}
}
