package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	manxv1 "github.com/manxnet/manx/proto/manx/v1"
)

// calicoPrograms are the programs of Calico's images for which this program stands in, under their names: probes,
// hooks and init commands of existing manifests run with the image of Manx.
var calicoPrograms = []string{"calico", "calico-node", "check-status", "kube-controllers", "start_runit"}

// calicoProgram returns the program of Calico that is meant by argv[0]; empty for none.
func calicoProgram(path string) string {
	if name := filepath.Base(path); slices.Contains(calicoPrograms, name) {
		return name
	}
	return ""
}

// Programs that take the place of this process. A program runs under the name behind the colon, if there is one.
var (
	runNode        = []string{"manx-supervise", "manxd"}
	runControllers = []string{"manxd", "controllers"}
	runInstall     = []string{"manx-cni", "install", "--as-calico"}
	runPlugin      = []string{"manx-cni:calico"}
	runIPAM        = []string{"manx-cni:calico-ipam"}
)

// Names of checks.
const (
	checkLive  = "live"
	checkFelix = "felix" // readiness of all but BGP
	checkBird  = "bird"  // readiness of BGP
)

// calicoAction is the meaning of a command line of Calico's programs. One of its fields is set.
type calicoAction struct {
	become  []string // run this program instead
	checks  []string // exit with 0 if they all hold
	says    []string // print these lines
	lasts   bool     // then wait for a signal: a supervisor would start the command again
	status  bool     // print the state of the node
	version bool
}

// calicoTask is a flag of calico-node for work that needs no command in Manx.
type calicoTask struct {
	flag  string
	once  string // a further flag that makes a command that lasts end at once; empty: it ends, always
	lasts bool
	says  string
}

var calicoTasks = []calicoTask{
	{flag: "init", says: "there is nothing to prepare: the data plane of Manx needs no BPF file system"},
	{flag: "hostpath-init", says: "there is nothing to prepare: manxd makes its folders itself"},
	{flag: "startup", says: "manxd registers the node itself when it starts"},
	{flag: "shutdown", says: "nothing is withdrawn: the kernel keeps routes and rules, and peers keep the routes of " +
		"this node for the time of graceful restart. `manxctl drain` takes a node out of service"},
	{flag: "felix", lasts: true, says: "manxd programs routes and policy"},
	{flag: "confd", once: "confd-run-once", lasts: true, says: "manxd configures BGP itself"},
	{flag: "monitor-addresses", lasts: true, says: "manxd follows the addresses of the node"},
	{flag: "allocate-tunnel-addrs", once: "allocate-tunnel-addrs-run-once", lasts: true,
		says: "manxd assigns the address of tunl0"},
	{flag: "monitor-token", lasts: true, says: "manxd keeps the token of the CNI plugin valid"},
	{flag: "complete-startup", lasts: true, says: "manxd sets the condition NetworkUnavailable of the node"},
	{flag: "node-services", lasts: true, says: "manxd does the work of these services"},
	{flag: "status-reporter", lasts: true, says: "manxd reports the state of the node"},
}

// calicoMissing are flags of calico-node for what Manx does not have, with the way that it has.
var calicoMissing = map[string]string{
	"bpf":   "Manx has no eBPF data plane",
	"flows": "Manx has no flow logs over this socket: `manxctl drops` shows denied and logged packets",
}

// decideCalico returns the meaning of a command line of one of calicoPrograms.
func decideCalico(program string, args []string) (calicoAction, error) {
	switch program {
	case "start_runit":
		return calicoAction{become: runNode}, nil
	case "kube-controllers":
		return kubeControllers(args)
	case "check-status":
		return statusFile(args)
	case "calico-node":
		return calicoNode(args)
	}
	return calicoCommand(args)
}

// calicoCommand is the program calico, since Calico 3.32.
func calicoCommand(args []string) (calicoAction, error) {
	word := func(i int) string {
		if i < len(args) {
			return args[i]
		}
		return ""
	}
	switch word(0) {
	case "":
		return calicoAction{become: runNode}, nil
	case "version":
		return calicoAction{version: true}, nil
	case "health":
		return healthOfPort(args[1:])
	case "component":
	default:
		return calicoAction{}, usagef("%q: want component, health or version", args[0])
	}
	switch word(1) {
	case "node":
		return nodeCommand(args[2:])
	case "felix", "confd":
		return calicoNode(append([]string{"-" + word(1)}, args[2:]...))
	case "kube-controllers":
		if word(2) == "kube-controllers-health" {
			return statusFile(args[3:])
		}
		return kubeControllers(args[2:])
	case "cni":
		for name, become := range map[string][]string{"install": runInstall, "plugin": runPlugin, "ipam": runIPAM} {
			if word(2) == name {
				return calicoAction{become: append(slices.Clone(become), args[3:]...)}, nil
			}
		}
		return calicoAction{}, usagef("component cni %q: want install, plugin or ipam", word(2))
	}
	return calicoAction{}, usagef("Manx has no component %q: want node, felix, confd, cni or kube-controllers", word(1))
}

// nodeCommand is calico component node: its commands are the flags of calico-node.
func nodeCommand(args []string) (calicoAction, error) {
	if len(args) == 0 || strings.HasPrefix(args[0], "-") {
		return calicoAction{}, usagef("component node: want a command, such as health")
	}
	switch name, rest := args[0], args[1:]; {
	case name == "health" && len(rest) == 0:
		return calicoAction{}, usagef("health: want a check, such as --felix-live")
	case name == "health":
		return calicoNode(rest)
	case name == "status" && slices.Equal(rest, []string{"report"}):
		return calicoNode([]string{"-status-reporter"})
	case name == "status" && slices.Equal(rest, []string{"show"}):
		return calicoNode([]string{"-show-status"})
	case name == "version":
		return calicoAction{version: true}, nil
	default:
		return calicoNode(append([]string{"-" + name}, rest...))
	}
}

// calicoNode is the program calico-node; without flags it is the entry of the container.
func calicoNode(args []string) (a calicoAction, err error) {
	if len(args) == 0 {
		return calicoAction{become: runNode}, nil
	}
	f := quietFlags()
	given := map[string]*bool{}
	add := func(names ...string) {
		for _, name := range names {
			if given[name] == nil {
				given[name] = f.Bool(name, false, "")
			}
		}
	}
	add("v", "show-status", "felix-live", "bird-live", "bird6-live", "felix-ready", "bird-ready", "bird6-ready")
	add("best-effort", "run-once", "confd-keep-stage-file", "keep-stage-file", "allocate-tunnel-addrs-run-once",
		"confd-run-once")
	for _, t := range calicoTasks {
		add(t.flag)
	}
	f.Duration("threshold-time", 0, "")
	f.String("confd-confdir", "", "")
	f.String("confdir", "", "")
	for name, why := range calicoMissing {
		if slices.Contains([]string{"-" + name, "--" + name}, args[0]) {
			return a, errors.New(why)
		}
	}
	if err := parseAll(f, args); err != nil {
		return a, err
	}
	on := func(name string) bool { return given[name] != nil && *given[name] }
	for _, c := range []struct{ flag, check string }{{"felix-live", checkLive}, {"bird-live", checkLive},
		{"bird6-live", checkLive}, {"felix-ready", checkFelix}, {"bird-ready", checkBird}, {"bird6-ready", checkBird}} {
		if on(c.flag) && !slices.Contains(a.checks, c.check) {
			a.checks = append(a.checks, c.check)
		}
	}
	switch {
	case a.checks != nil:
		return a, nil
	case on("v"):
		return calicoAction{version: true}, nil
	case on("show-status"):
		return calicoAction{status: true}, nil
	}
	a.lasts = true
	for _, t := range calicoTasks {
		if on(t.flag) {
			a.says = append(a.says, t.flag+": "+t.says)
			a.lasts = a.lasts && t.lasts && !on(t.once) && !(t.once != "" && on("run-once"))
		}
	}
	if a.says == nil {
		return a, usagef("%s: nothing to do", strings.Join(args, " "))
	}
	return a, nil
}

// statusFile is check-status, and the health of calico component kube-controllers. The file of its flag is that of
// calico-kube-controllers; here manxd itself is asked.
func statusFile(args []string) (calicoAction, error) {
	var live, ready, version bool
	f := quietFlags()
	for p, names := range map[*bool][]string{&live: {"l", "live"}, &ready: {"r", "ready"}, &version: {"v", "version"}} {
		for _, name := range names {
			f.BoolVar(p, name, false, "")
		}
	}
	f.String("f", "", "")
	f.String("file", "", "")
	if err := parseAll(f, args); err != nil {
		return calicoAction{}, err
	}
	switch {
	case version:
		return calicoAction{version: true}, nil
	case ready:
		return calicoAction{checks: []string{checkFelix, checkBird}}, nil
	case live:
		return calicoAction{checks: []string{checkLive}}, nil
	}
	return calicoAction{}, usagef("want -l or -r")
}

// kubeControllers is the program kube-controllers.
func kubeControllers(args []string) (calicoAction, error) {
	f := quietFlags()
	version := f.Bool("v", false, "")
	f.BoolVar(version, "version", false, "")
	f.String("status-file", "", "")
	f.Int("health-port", 0, "")
	if err := parseAll(f, args); err != nil {
		return calicoAction{}, err
	}
	if *version {
		return calicoAction{version: true}, nil
	}
	return calicoAction{become: runControllers}, nil
}

// healthOfPort is calico health. It asks manxd, whatever the host and the port.
func healthOfPort(args []string) (calicoAction, error) {
	f := quietFlags()
	kind := f.String("type", "readiness", "")
	f.String("host", "", "")
	f.Int("port", 0, "")
	f.Duration("timeout", 0, "")
	if err := parseAll(f, args); err != nil {
		return calicoAction{}, err
	}
	switch *kind {
	case "readiness":
		return calicoAction{checks: []string{checkFelix, checkBird}}, nil
	case "liveness":
		return calicoAction{checks: []string{checkLive}}, nil
	}
	return calicoAction{}, usagef("--type=%s: want readiness or liveness", *kind)
}

// quietFlags returns flags in the form of Calico's programs: a long name may have one dash.
func quietFlags() *flag.FlagSet {
	f := flag.NewFlagSet("", flag.ContinueOnError)
	f.SetOutput(io.Discard)
	return f
}

func parseAll(f *flag.FlagSet, args []string) error {
	if err := f.Parse(args); err != nil {
		return usagef("%v", err)
	}
	if f.NArg() > 0 {
		return usagef("unexpected argument %q", f.Arg(0))
	}
	return nil
}

// runCalico executes a command line of one of calicoPrograms, and returns the exit code. exec replaces this process by
// a program of the same folder, and returns only on an error.
func (c *cli) runCalico(ctx context.Context, program string, args []string, exec func([]string) error) int {
	a, err := decideCalico(program, args)
	if err == nil {
		err = c.actAsCalico(ctx, a, exec)
	}
	if err == nil {
		return exitOK
	}
	fmt.Fprintf(c.err, "%s: %v\n", program, err) //nolint:errcheck // nowhere to report it
	return codeOf(err, true)
}

func (c *cli) actAsCalico(ctx context.Context, a calicoAction, exec func([]string) error) error {
	switch {
	case a.become != nil:
		return exec(a.become)
	case a.version:
		return printLine(c.out, version)
	case a.checks != nil:
		return c.checkAsCalico(ctx, a.checks)
	case a.status:
		return c.statusAsCalico(ctx)
	}
	if err := printLine(c.out, strings.Join(a.says, "\n")); err != nil {
		return err
	}
	if a.lasts {
		<-ctx.Done()
	}
	return nil
}

// calicoSocket is the control socket of the manxd in the same container, which has the same environment.
func (c *cli) calicoSocket() string {
	folder := c.env("MANX_RUN_DIR")
	if folder == "" {
		folder = "/run/manx"
	}
	return filepath.Join(folder, "manxd.sock")
}

// statusAsCalico prints the state of the node.
func (c *cli) statusAsCalico(ctx context.Context) error {
	if code := c.run(ctx, []string{"status", "--socket=" + c.calicoSocket()}); code != exitOK {
		return &exitErr{code, "the state is incomplete"}
	}
	return nil
}

// checkAsCalico prints "ok", or fails with a line that has all reasons.
func (c *cli) checkAsCalico(ctx context.Context, checks []string) error {
	ctx, cancel := context.WithTimeout(ctx, healthTimeout)
	defer cancel()
	c.socket = c.calicoSocket()
	var err error
	if slices.Contains(checks, checkLive) {
		err = c.live(ctx)
	}
	felix, bird := slices.Contains(checks, checkFelix), slices.Contains(checks, checkBird)
	if err == nil && (felix || bird) {
		err = c.daemonFor(ctx, healthTimeout, func(ctx context.Context, m manxv1.ManxClient) error {
			s, err := m.GetStatus(ctx, &manxv1.GetStatusRequest{})
			if err != nil {
				return err
			}
			return notReady(s.GetChecks(), felix, bird)
		})
	}
	var e *exitErr
	switch {
	case err == nil:
		return printLine(c.out, "ok")
	case errors.As(err, &e):
		return err
	}
	return &exitErr{exitUnhealthy, strings.ReplaceAll(err.Error(), "\n", "; ")}
}

// notReady returns an error with the failed checks: with bird those of BGP, with felix the others.
func notReady(checks []*manxv1.Check, felix, bird bool) error {
	var failed []string
	for _, check := range checks {
		asked := felix
		if check.GetName() == "bgp" {
			asked = bird
		}
		if asked && !check.GetOk() {
			failed = append(failed, check.GetName()+": "+strings.ReplaceAll(check.GetReason(), "\n", "; "))
		}
	}
	if failed == nil {
		return nil
	}
	return &exitErr{exitUnhealthy, "not ready: " + strings.Join(failed, "; ")}
}

func printLine(w io.Writer, text string) error {
	_, err := fmt.Fprintln(w, text)
	return err
}

// becomeProgram replaces this process by a program of its folder; see runNode for the form of a command. The arguments
// that are programs get the folder, too.
func becomeProgram(command []string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	folder := filepath.Dir(self)
	program, name, named := strings.Cut(command[0], ":")
	args := slices.Clone(command)
	if args[0] = filepath.Join(folder, program); named {
		args[0] = name
	}
	if program == runNode[0] {
		args[1] = filepath.Join(folder, args[1])
	}
	path := filepath.Join(folder, program)
	return fmt.Errorf("%s cannot be executed: %w", path, syscall.Exec(path, args, os.Environ()))
}
