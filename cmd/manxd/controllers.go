package main

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"runtime/debug"
	"time"

	"go.uber.org/zap"
	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"

	"github.com/manxnet/manx/controllers"
	"github.com/manxnet/manx/controllers/kubeapi"
	"github.com/manxnet/manx/controllers/settings"
	"github.com/manxnet/manx/daemon/deps"
	"github.com/manxnet/manx/daemon/envflag"
	"github.com/manxnet/manx/daemon/kubenode"
	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/connect"
	"github.com/manxnet/manx/datastore/kubernetes"
	manxv1 "github.com/manxnet/manx/proto/manx/v1"
	"github.com/manxnet/manx/proto/server"
)

// Values of --controllers.
const (
	controllersAuto = "auto"
	controllersOn   = "on"
	controllersOff  = "off"
)

// controllersOptions say whether this node is a candidate for the work of calico-kube-controllers.
type controllersOptions struct{ mode string }

// Flags implements group.
func (o *controllersOptions) Flags(s envflag.Set) {
	s.String(&o.mode, "controllers", controllersAuto, "take part in the work of calico-kube-controllers: auto (where "+
		"a Kubernetes API is known, while calico-kube-controllers do not run), on or off", "MANX_CONTROLLERS")
}

// Check implements group. It also refuses invalid variables of calico-kube-controllers.
func (o *controllersOptions) Check() error {
	switch o.mode {
	case controllersOff:
		return nil
	case controllersAuto, controllersOn:
	default:
		return fmt.Errorf("--controllers=%s: want auto, on or off", o.mode)
	}
	_, err := settings.FromEnv(os.LookupEnv)
	return err
}

// clusterControllers takes part in the election of the controllers. While this node leads, it runs them.
type clusterControllers struct {
	manxv1.UnimplementedControllersServer
	*controllers.Manager
}

// newControllers returns nil if the settings disable the controllers. kube are the settings of the Kubernetes API.
func newControllers(d deps.Deps, o controllersOptions, kube kubernetes.Config) (*clusterControllers, error) {
	if o.mode == controllersOff || o.mode == controllersAuto && d.Kube == nil {
		return nil, nil
	}
	env, err := settings.FromEnv(os.LookupEnv)
	if err != nil {
		return nil, usage(err)
	}
	config := controllers.Config{Node: d.Node.Name, Store: d.Store,
		InKubernetes: d.Node.Datastore == connect.Kubernetes,
		Always:       o.mode == controllersOn, Env: env, Log: d.Log.Named("controllers"),
		Ended: debug.FreeOSMemory} // tables of the whole cluster, and nothing is allocated afterwards
	config.NoIPAM = config.InKubernetes && kube.UsePodCIDR
	if d.Node.Datastore != connect.Embedded { // it compacts itself
		config.Compactor = datastore.CompactorOf(d.Store)
	}
	if d.Kube != nil {
		if config.Kube, err = kubeapi.New(d.Kube); err != nil {
			return nil, err
		}
		config.Source = kubernetesSource(d, kube)
	}
	if d.Events != nil {
		invalid := kubenode.NewObjects(d.Events, kubenode.Invalid)
		config.Report = func(list map[corev1.ObjectReference]string) { invalid.Record(time.Now(), list) }
	}
	return &clusterControllers{Manager: controllers.New(config)}, nil
}

// kubernetesSource opens the Kubernetes API as a store, beside another datastore.
func kubernetesSource(d deps.Deps, config kubernetes.Config) func(context.Context) (datastore.Store, error) {
	config.Rewatched, config.Moved = nil, nil // these are about the datastore
	return func(ctx context.Context) (datastore.Store, error) {
		return kubernetes.OpenREST(ctx, config, d.Kube, d.Log.Named("kubernetes"))
	}
}

func (c *clusterControllers) Name() string { return "controllers" }

// Notices report, on the elected node, why controllers do not run.
func (c *clusterControllers) Notices() []server.Notice {
	s := c.State()
	text := ""
	switch {
	case !s.Leading:
	case s.Problem != "":
		text = "this node is to run the controllers of the cluster, and cannot: " + s.Problem
	case s.Yielding != "":
		text = "the controllers of Manx rest on this node: " + s.Yielding
	}
	var list []server.Notice
	if text != "" {
		list = append(list, server.Notice{Topic: "daemon", Subject: "controllers", Text: text, Since: s.Since})
	}
	if s.Leading && s.Unread != "" {
		list = append(list, server.Notice{Topic: "daemon", Subject: "object-rules", Since: s.Since,
			Text: "some objects that break a rule have no Events: " + s.Unread})
	}
	if s.Leading && s.Migration != "" {
		list = append(list, server.Notice{Topic: "daemon", Subject: "datastore-migration", Since: s.Since,
			Text: s.Migration})
	}
	if a := c.Audit(); a.Text() != "" {
		list = append(list, server.Notice{Topic: "daemon", Subject: "ipam", Since: a.At,
			Text: "the records of IPAM contradict each other: " + a.Text() +
				": manxctl ipam check --show-problem-ips names them"})
	}
	return list
}

// Register implements server.Service.
func (c *clusterControllers) Register(r grpc.ServiceRegistrar) {
	manxv1.RegisterControllersServer(r, c)
}

// Roles implements server.Service.
func (c *clusterControllers) Roles() map[string]server.Role {
	return map[string]server.Role{manxv1.Controllers_ListReleases_FullMethodName: server.RoleRead}
}

// leaderTimeout bounds a call's wait for the name of the leader.
const leaderTimeout = 3 * time.Second

// ListReleases implements manxv1.ControllersServer.
func (c *clusterControllers) ListReleases(ctx context.Context, _ *manxv1.ListReleasesRequest,
) (*manxv1.ListReleasesResponse, error) {
	s := c.State()
	answer := &manxv1.ListReleasesResponse{Node: c.Node, Leading: s.Leading, SinceUnixMs: unixMs(s.Since),
		Leader: c.Node, Problem: cmp.Or(s.Problem, s.Yielding)}
	if !s.Leading {
		limited, cancel := context.WithTimeout(ctx, leaderTimeout)
		defer cancel()
		leader, err := c.Leader(limited)
		if answer.Leader = leader; err != nil {
			answer.Problem = err.Error()
		}
	}
	for _, r := range c.Releases() {
		answer.Releases = append(answer.Releases, &manxv1.Release{AtUnixMs: unixMs(r.At), Address: r.Released(),
			Handle: r.Handle, Node: r.Node, Namespace: r.Namespace, Pod: r.Pod, Reason: string(r.Reason),
			Text:              r.Text(),
			UnusedSinceUnixMs: unixMs(r.Since)})
	}
	return answer, nil
}

// unixMs converts a time to the API's form: 0 for never.
func unixMs(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMilli()
}

// Run campaigns and works until ctx ends.
func (c *clusterControllers) Run(ctx context.Context) error {
	err := c.Manager.Run(ctx)
	if err != nil && ctx.Err() == nil {
		c.Log.Warn("the controllers ended", zap.Error(err))
	}
	return err
}
