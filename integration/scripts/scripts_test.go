package scripts

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/manxnet/manx/integration/lab"
)

var update = flag.Bool("update", false, "write the states that the scripts compare into the scripts")

// patience bounds each wait of a script; still is how long a state stays the same before -update writes it.
const (
	patience = time.Minute
	still    = 3 * time.Second
)

func TestScripts(t *testing.T) {
	bin, missing := lab.Require("ip", "nft", "ping", "bird", "birdc")
	if missing != nil {
		t.Skip(missing)
	}
	testscript.Run(t, testscript.Params{
		Dir: "testdata",
		Cmds: map[string]func(ts *testscript.TestScript, neg bool, args []string){
			"await": cmdAwait, "host": cmdHost, "nodes": cmdNodes, "on": cmdOn, "pod": cmdPod, "up": cmdUp,
			"down": cmdDown, "unpod": cmdUnpod,
		},
		Setup: func(env *testscript.Env) error {
			env.Values[key{}] = &scenario{bin: bin}
			return nil
		},
		Condition:          condition,
		RequireUniqueNames: true,
		UpdateScripts:      *update,
	})
}

// condition: [ipip] is true where the kernel has IPIP.
func condition(name string) (bool, error) {
	if name != "ipip" {
		return false, fmt.Errorf("no condition %s", name)
	}
	return exec.Command("unshare", "--net", "ip", "link", "add", "probe", "type", "ipip").Run() == nil, nil
}

// TestPage: the page that describes scripts shows the beginning of pod.txtar.
func TestPage(t *testing.T) {
	page, err := os.ReadFile("../../CONTRIBUTING.md")
	if err != nil {
		t.Fatal(err)
	}
	script, err := os.ReadFile("testdata/pod.txtar")
	if err != nil {
		t.Fatal(err)
	}
	text, _, found := strings.Cut(string(script), "-- host.txt --\n")
	if !found || !strings.Contains(string(page), "```text\n"+text+"-- host.txt --\n```\n") {
		t.Error("CONTRIBUTING.md shows another script than testdata/pod.txtar")
	}
}

type key struct{}

// scenario is the lab of one script.
type scenario struct {
	bin    string
	lab    *lab.Lab
	pods   map[string]*lab.Pod
	before map[string]*state // of each node, once it was ready
}

func of(ts *testscript.TestScript) *scenario { return ts.Value(key{}).(*scenario) }

// usage ends a script whose line is wrong.
func usage(ts *testscript.TestScript, neg bool, wrong bool, text string) {
	if neg || wrong {
		ts.Fatalf("usage: %s", text)
	}
}

func (s *scenario) node(ts *testscript.TestScript, name string) *lab.Node {
	if s.lab == nil || !slices.ContainsFunc(s.lab.Nodes, func(n *lab.Node) bool { return n.Name == name }) {
		ts.Fatalf("the script has made no node %s", name)
	}
	return s.lab.Node(name)
}

func (s *scenario) pod(ts *testscript.TestScript, name string) *lab.Pod {
	p := s.pods[name]
	if p == nil {
		ts.Fatalf("the script has made no pod %s", name)
	}
	return p
}

// nodes [-6] [-router] NAME... makes nodes on one switch and waits until they are ready. The first one embeds the
// datastore, which has no pool.
func cmdNodes(ts *testscript.TestScript, neg bool, args []string) {
	s := of(ts)
	spec := lab.Spec{Name: fmt.Sprintf("s%x", time.Now().UnixNano()&0xfffffff), Bin: s.bin, PlainRouters: true}
	flags := []string{"--no-default-pools", "--ip=autodetect", "--ip-autodetection-method=interface=eth0"}
	for len(args) > 0 && strings.HasPrefix(args[0], "-") {
		switch args[0] {
		case "-6":
			spec.IPv6 = true
			flags = append(flags, "--ip6=autodetect", "--ip6-autodetection-method=interface=eth0")
		case "-router":
			spec.PlainRouters = false
		default:
			flags = append(flags, args[0])
		}
		args = args[1:]
	}
	usage(ts, neg, s.lab != nil || len(args) == 0, "nodes [-6] [-router] [--FLAG=VALUE of manxd]... NAME... (once)")
	for _, name := range args {
		spec.Nodes = append(spec.Nodes, lab.NodeSpec{Name: name})
	}
	l, err := lab.New(spec)
	ts.Check(err)
	ts.Defer(func() {
		if err := l.Close(); err != nil {
			ts.Logf("%v", err)
		}
	})
	s.lab, s.pods, s.before = l, map[string]*lab.Pod{}, map[string]*state{}
	for i, n := range l.Nodes {
		datastore := n.EmbedDatastore()
		if i > 0 {
			datastore = lab.UseDatastore(l.Nodes[0])
		}
		ts.Check(n.StartManxd(append(datastore, flags...)...))
		ts.Check(n.Ready(patience))
	}
	for _, n := range l.Nodes {
		before, err := s.settled(n)
		ts.Check(err)
		s.before[n.Name] = before
	}
	if !spec.PlainRouters {
		ts.Setenv("ROUTER", l.ToRs[0].Address(l.Nodes[0]).String())
	}
}

// command is the command line of a program on a node or in a pod. manxctl has the node's socket, manxd
// its folders. In the arguments, @POD
// is the address of a pod, and @NODE that of a node.
func (s *scenario) command(ts *testscript.TestScript, args []string) []string {
	if p := s.pods[args[0]]; p != nil {
		return append([]string{"netns", "exec", p.Namespace}, s.addresses(args[1:])...)
	}
	n := s.node(ts, args[0])
	line := append([]string{"netns", "exec", n.Namespace}, s.addresses(args[1:])...)
	switch args[1] {
	case "manxctl":
		line = slices.Insert(line, 4, "--socket="+n.Socket())
	case "manxd":
		line = append(line, n.Flags()...)
	default:
		return line
	}
	line[3] = filepath.Join(s.bin, args[1])
	return line
}

// on NODE|POD PROGRAM ARG... runs a program there. With !, the program fails.
func cmdOn(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) < 2 {
		ts.Fatalf("usage: [!] on NODE|POD PROGRAM ARG...")
	}
	err := ts.Exec("ip", of(ts).command(ts, args)...)
	if neg == (err == nil) {
		ts.Fatalf("%s: %v", strings.Join(args, " "), err)
	}
}

var addressOf = regexp.MustCompile(`@[a-z0-9-]+`)

func (s *scenario) addresses(args []string) (list []string) {
	for _, a := range args {
		list = append(list, addressOf.ReplaceAllStringFunc(a, func(name string) string {
			if p := s.pods[name[1:]]; p != nil {
				return p.IP4().String()
			}
			for _, n := range s.lab.Nodes {
				if n.Name == name[1:] {
					return n.IP4.String()
				}
			}
			return name
		}))
	}
	return list
}

// await REGEXP NODE|POD PROGRAM ARG... runs a program until its output matches, with ! until it does not match.
func cmdAwait(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) < 3 {
		ts.Fatalf("usage: [!] await REGEXP NODE|POD PROGRAM ARG...")
	}
	pattern, err := regexp.Compile("(?m)" + args[0])
	ts.Check(err)
	line := of(ts).command(ts, args[1:])
	ts.Check(lab.Eventually(patience, func() error {
		out, err := exec.Command("ip", line...).CombinedOutput()
		if pattern.Match(out) == neg {
			return fmt.Errorf("%s: the output matches %q: %t; %v\n%s", strings.Join(args[1:], " "), pattern, !neg, err,
				out)
		}
		return nil
	}))
}

// pod NODE NAME [-6] [LABEL=VALUE]... attaches a pod by the CNI plugin.
func cmdPod(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, neg, len(args) < 2, "pod NODE NAME [-6] [LABEL=VALUE]...")
	s := of(ts)
	n := s.node(ts, args[0])
	var options []func(map[string]any)
	labels := args[2:]
	if len(labels) > 0 && labels[0] == "-6" {
		options, labels = append(options, lab.DualStack), labels[1:]
	}
	p, err := n.AddPod(args[1], options...)
	ts.Check(err)
	s.pods[args[1]] = p
	if len(labels) == 0 {
		return
	}
	ts.Check(p.EditEndpoint(func(r lab.Resource) {
		for _, l := range labels {
			name, value, _ := strings.Cut(l, "=")
			r.Label(name, value)
		}
	}))
}

// unpod NAME detaches a pod.
func cmdUnpod(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, neg, len(args) != 1, "unpod NAME")
	ts.Check(of(ts).pod(ts, args[0]).Delete())
}

// down NODE ends manxd, up NODE starts it again.
func cmdDown(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, neg, len(args) != 1, "down NODE")
	ts.Check(of(ts).node(ts, args[0]).Manxd().Stop(patience))
}

func cmdUp(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, neg, len(args) != 1, "up NODE")
	n := of(ts).node(ts, args[0])
	ts.Check(n.StartManxd())
	ts.Check(n.Ready(patience))
}

// host [-all] NODE FILE waits until the state of a node is the file's, and prints the state: what is other than when
// the node had just become ready, or all. The line after it is `cmp stdout FILE`, which shows the difference.
func cmdHost(ts *testscript.TestScript, neg bool, args []string) {
	s := of(ts)
	all := len(args) > 0 && args[0] == "-all"
	if all {
		args = args[1:]
	}
	usage(ts, neg, len(args) != 2, "host [-all] NODE FILE")
	n := s.node(ts, args[0])
	before := s.before[n.Name]
	if all {
		before = &state{}
	}
	want := ts.ReadFile(args[1])
	var now *state
	read := func() (err error) {
		if now, err = s.read(n); err == nil && now.since(before) != want {
			err = errDifferent
		}
		return err
	}
	var err error
	if *update {
		now, err = s.settled(n)
	} else {
		err = lab.Eventually(patience/2, read)
	}
	if !errors.Is(err, errDifferent) {
		ts.Check(err)
	}
	fmt.Fprint(ts.Stdout(), now.since(before))
}
