package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/manxnet/manx/cni"
	"github.com/manxnet/manx/cni/engine"
	"github.com/manxnet/manx/dataplane/podnet"
	"github.com/manxnet/manx/ipam/hostlocal"
)

// buildVersion is set when the binary is linked.
var buildVersion = "dev"

// testTimeout bounds -t.
const testTimeout = 2 * time.Second

func main() {
	if len(os.Args) == 2 && (os.Args[1] == "-v" || os.Args[1] == "--version") {
		os.Stdout.WriteString(buildVersion + "\n")
		return
	}
	// A killed runtime does not read the result: the ADD must then be undone, which the signal would prevent.
	signal.Ignore(unix.SIGPIPE)
	p := &plugin{getenv: os.Getenv, stdout: os.Stdout, stderr: os.Stderr, mtuFile: cni.DefaultMTUFile, now: time.Now,
		open: openDatastore}
	if len(os.Args) > 1 {
		os.Exit(command(p, os.Args[1:]))
	}
	skel.PluginMainFuncs(p.funcs(cni.IsIPAM(os.Args[0])), cni.Versions, "CNI plugin manx-cni-direct "+buildVersion)
}

// command runs a command of an operator or an init container, and returns the exit code.
func command(p *plugin, args []string) int {
	var err error
	switch args[0] {
	case "-t":
		err = p.testDatastore(os.Stdin)
	case "-upgrade", "--upgrade":
		err = upgradeAddresses(hostlocal.Root, hostlocal.Network, p.getenv, p.stdout)
	default:
		err = installer(args, p.getenv, p.stdout)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		var beside *besideError
		if errors.As(err, &beside) {
			return 3
		}
		return 1
	}
	return 0
}

// plugin is one run of the program in either role of CNI.
type plugin struct {
	getenv  func(string) string
	stdout  io.Writer
	stderr  io.Writer
	mtuFile string
	now     func() time.Time
	// open connects to the datastore of a configuration.
	open func(ctx context.Context, c *cni.Config, getenv func(string) string, log *zap.Logger) (engine.Store, func(),
		error)
	// beforeStep is called before each step of an ADD; an error fails the step. It is for tests and may be nil.
	beforeStep func(step string) error
}

// funcs returns the functions of a role: the plugin, with the engine in the same process.
func (p *plugin) funcs(ipam bool) skel.CNIFuncs {
	c := &cni.Plugin{Getenv: p.getenv, Stdout: p.stdout, BeforeStep: p.beforeStep,
		Backend: func(conf *cni.Config) cni.Backend { return p.engine(conf) }}
	return c.Funcs(ipam)
}

func (p *plugin) engine(conf *cni.Config) *engine.Engine {
	log := newLogger(conf, p.stderr).With(zap.String("command", p.getenv("CNI_COMMAND")))
	return engine.New(engine.Config{
		Open: func(ctx context.Context, conf *cni.Config) (engine.Store, func(), error) {
			return p.open(ctx, conf, p.getenv, log)
		},
		Node: (*cni.Config).NodeName, MTUFile: p.mtuFile,
		Kubernetes: func(conf *cni.Config) (engine.Kubernetes, error) { return p.kubernetes(conf) },
		Agent:      agentReports, Connected: connected, Enforced: enforced, Report: reportWait(log), Log: log,
		Now:           p.now,
		InterfaceWith: podnet.InterfaceWith, HasInterface: podnet.HasInterface, BeforeStep: p.beforeStep,
	})
}

// testDatastore reports whether ADD could use the datastore of a network configuration now; operators run it as "-t".
func (p *plugin) testDatastore(conf io.Reader) error {
	data, err := io.ReadAll(conf)
	if err != nil {
		return err
	}
	c, err := cni.ParseConfig(data)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	defer cancel()
	if err := p.engine(c).Ready(ctx, c); err != nil {
		return errors.Join(errors.New("the datastore cannot be used"), err)
	}
	return nil
}
