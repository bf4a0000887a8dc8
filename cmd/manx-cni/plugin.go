package main

import (
	"context"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	"go.uber.org/zap"

	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/model"
)

// How long one call may take. The wait for the datastore is short, so that a runtime can try again; an allocation may
// have to claim a block against many others.
const (
	readyTimeout = 10 * time.Second
	callTimeout  = 90 * time.Second
	undoTimeout  = 30 * time.Second
	testTimeout  = 2 * time.Second
)

// plugin is one run of the binary in either role.
type plugin struct {
	getenv  func(string) string
	stdout  io.Writer
	stderr  io.Writer
	mtuFile string
	now     func() time.Time
	// open connects to the datastore of a configuration.
	open func(ctx context.Context, c *netConf, getenv func(string) string, log *zap.Logger) (datastore.Store, error)
	// beforeStep is called before each step of an ADD; an error fails the step. Tests use it, nil does nothing.
	beforeStep func(step string) error
}

// isIPAM tells which role the name of a binary (or of a plugin type) stands for.
func isIPAM(name string) bool { return strings.HasSuffix(filepath.Base(name), "-ipam") }

// isOurIPAM tells whether an IPAM plugin type is this binary under another name, so that it need not be executed.
func isOurIPAM(name string) bool { return name == "calico-ipam" || name == "manx-ipam" }

func (p *plugin) funcs(ipam bool) skel.CNIFuncs {
	if ipam {
		return skel.CNIFuncs{Add: p.run((*call).ipamAdd), Check: p.run((*call).ipamCheck), Del: p.run((*call).ipamDel)}
	}
	return skel.CNIFuncs{Add: p.run((*call).add), Check: p.run((*call).check), Del: p.run((*call).del)}
}

// call is one ADD, CHECK or DEL: what was asked for and what is needed to do it.
type call struct {
	*plugin
	args  *skel.CmdArgs
	conf  *netConf
	extra podArgs
	work  workload
	log   *zap.Logger
	store datastore.Store
}

// run prepares a call, and turns its error or panic into one that a runtime understands.
func (p *plugin) run(do func(*call, context.Context) error) func(*skel.CmdArgs) error {
	return func(args *skel.CmdArgs) (err error) {
		ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
		defer cancel()
		c, err := p.prepare(args)
		if err != nil {
			return cniError(err)
		}
		defer c.close()
		defer func() {
			if r := recover(); r != nil {
				err = fmt.Errorf("bug: %v", r)
				c.log.Error("panic", zap.Any("value", r), zap.Stack("stack"))
			}
		}()
		if err := c.connect(ctx); err != nil {
			return cniError(err)
		}
		if err := do(c, ctx); err != nil {
			c.log.Error("failed", zap.Error(err))
			return cniError(err)
		}
		return nil
	}
}

func (p *plugin) prepare(args *skel.CmdArgs) (*call, error) {
	conf, err := parseConf(args.StdinData)
	if err != nil {
		return nil, err
	}
	extra, err := parseArgs(args.Args)
	if err != nil {
		return nil, err
	}
	node, err := conf.nodeName()
	if err != nil {
		return nil, err
	}
	c := &call{plugin: p, args: args, conf: conf, extra: extra}
	c.work = newWorkload(conf.Name, node, args.ContainerID, args.IfName, extra)
	c.log = newLogger(conf, p.stderr).With(
		zap.String("command", p.getenv("CNI_COMMAND")), zap.String("network", conf.Name),
		zap.String("container", args.ContainerID), zap.String("interface", args.IfName))
	if c.work.Pod != "" {
		c.log = c.log.With(zap.String("pod", c.work.Namespace+"/"+c.work.Pod))
	}
	return c, nil
}

func (c *call) close() {
	if c.store != nil {
		_ = c.store.Close()
	}
	_ = c.log.Sync()
}

// connect opens the datastore and makes sure that it may be used: while it is locked (for a migration) every call has
// to wait.
func (c *call) connect(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	var err error
	if c.store, err = c.open(ctx, c.conf, c.getenv, c.log); err != nil {
		return err
	}
	o, err := c.store.Get(ctx, model.ResourceKey(model.KindClusterInformation, "default"))
	if err != nil {
		return notReady(err)
	}
	if o.Err != nil {
		return o.Err
	}
	info, ok := o.Value.(*v3.ClusterInformation)
	if !ok || info.Spec.DatastoreReady == nil || !*info.Spec.DatastoreReady {
		return types.NewError(types.ErrTryAgainLater, "the datastore is not ready",
			"ClusterInformation default has datastoreReady other than true: it is locked, or no node has been set up yet")
	}
	return nil
}

// step runs one named step of an ADD.
func (c *call) step(name string, do func() error) error {
	if c.beforeStep != nil {
		if err := c.beforeStep(name); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	if err := do(); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}
