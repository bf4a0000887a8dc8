// Command demo shows Manx: three nodes and a BIRD top-of-rack router exchange routes and forward the traffic of pods,
// all in network namespaces of this machine.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/manxnet/manx/integration/lab"
	"github.com/manxnet/manx/integration/namespace"
)

const labName = "manxdemo"

func main() {
	keep := flag.Bool("keep", false, "leave the lab running and print how to look around")
	down := flag.Bool("down", false, "remove a lab that was kept, and do nothing else")
	bin := flag.String("bin", "bin", "folder with manxd, manxctl and manx-cni")
	flag.Parse()
	if *down {
		exit(lab.Remove(labName))
	}
	path, err := filepath.Abs(*bin)
	if err != nil {
		exit(err)
	}
	exit(run(path, *keep))
}

func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "\ndemo:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// demo is one run: the lab, and the duration of each stage.
type demo struct {
	lab    *lab.Lab
	ipip   bool
	pods   []*lab.Pod
	stages []stage
	failed []string
	// reached records which pings were answered last.
	reached map[probe]bool
}

type stage struct {
	name string
	took time.Duration
}

func run(bin string, keep bool) (err error) {
	d := &demo{ipip: kernelHasIPIP()}
	printf("Manx demo: 3 nodes in 2 subnets, one BIRD top-of-rack, 6 pods. Everything lives in network namespaces.")
	if d.ipip {
		printf("This kernel has IPIP: the pool uses ipipMode CrossSubnet.")
	} else {
		printf("This kernel has no IPIP (CONFIG_NET_IPIP): the pool uses no encapsulation.")
	}
	defer func() {
		if d.lab == nil {
			return
		}
		if err != nil {
			d.showLogs()
		}
		if keep {
			err = errors.Join(err, d.lab.Keep())
			d.nextCommands()
			return
		}
		err = errors.Join(err, d.lab.Close())
	}()
	interrupted := make(chan os.Signal, 1)
	signal.Notify(interrupted, os.Interrupt, syscall.SIGTERM)
	go func() {
		<-interrupted
		_ = lab.Remove(labName)
		os.Exit(130)
	}()

	steps := []struct {
		name string
		do   func() error
	}{
		{"build namespaces, cables and the top-of-rack router", func() error { return d.build(bin) }},
		{"start manxd on n1 with the embedded datastore", d.startFirst},
		{"store the pool and the top-of-rack peer with manxctl", d.configure},
		{"start manxd on n2 and n3", d.startOthers},
		{"attach two pods to each node through the CNI plugin", d.addPods},
		{"all BGP sessions established", d.waitSessions},
		{"all pods reach each other, the router reaches all pods, pods reach the world", d.waitPings},
	}
	for _, s := range steps {
		if err := d.step(s.name, s.do); err != nil {
			return err
		}
	}
	d.showSessions()
	d.showRoutes()
	d.reached = d.pingAll()
	d.showMatrix("who reaches whom (ping)", "LOST")
	for _, p := range d.probes() {
		if !d.reached[p] {
			d.failed = append(d.failed, fmt.Sprintf("%s does not reach %s", p.from, p.name))
		}
	}
	if err := d.step("only web pods (pod1 of each node) may reach the database ("+database+"): the policy is in force",
		d.protect); err != nil {
		return err
	}
	d.show("the policy", policies, nil)
	d.showMatrix("who reaches whom with the policy", "denied")
	d.showBlocked()
	if err := d.step("remove the policy again: all pods reach each other", d.unprotect); err != nil {
		return err
	}
	if err := d.step("kill -9 the manxd of n2 under running pings, start it again", d.killUnderTraffic); err != nil {
		return err
	}
	d.showTimes()
	if len(d.failed) > 0 {
		return fmt.Errorf("not as promised: %s", strings.Join(d.failed, "; "))
	}
	printf("\nAs promised: every session is up, every pod is reachable, policy blocked whom it names and nobody " +
		"else,\nand the crash cost no packet.")
	return nil
}

func printf(format string, args ...any) { fmt.Printf(format+"\n", args...) }

func (d *demo) step(name string, do func() error) error {
	fmt.Printf("... %s", name)
	start := time.Now()
	err := do()
	took := time.Since(start)
	if err != nil {
		fmt.Printf(": failed after %.1fs\n", took.Seconds())
		return fmt.Errorf("%s: %w", name, err)
	}
	fmt.Printf(" (%.1fs)\n", took.Seconds())
	d.stages = append(d.stages, stage{name, took})
	return nil
}

// kernelHasIPIP tries to make a tunnel device in a new namespace.
func kernelHasIPIP() bool {
	const ns = "manxdemo-probe"
	if namespace.Add(ns) != nil {
		return false
	}
	defer func() { _ = namespace.Remove(ns) }()
	if exec.Command("ip", "-n", ns, "link", "show", "tunl0").Run() == nil {
		return true
	}
	_ = exec.Command("ip", "-n", ns, "link", "add", "tunl0", "type", "ipip").Run()
	return exec.Command("ip", "-n", ns, "link", "show", "tunl0").Run() == nil
}

func (d *demo) build(bin string) (err error) {
	d.lab, err = lab.New(lab.Spec{Name: labName, Bin: bin,
		Nodes: []lab.NodeSpec{{Name: "n1", Rack: 0}, {Name: "n2", Rack: 0}, {Name: "n3", Rack: 1}}})
	return err
}

func (d *demo) startFirst() error {
	n1 := d.lab.Node("n1")
	if err := n1.StartManxd(append(n1.EmbedDatastore(), "--no-default-pools")...); err != nil {
		return err
	}
	return n1.Ready(90 * time.Second)
}

// configure writes an operator's objects: one pool, and the router as a peer of every node of its rack.
func (d *demo) configure() error {
	mode := "Never"
	if d.ipip {
		mode = "CrossSubnet"
	}
	docs := []string{fmt.Sprintf(`
apiVersion: projectcalico.org/v3
kind: IPPool
metadata: {name: pods}
spec: {cidr: 10.244.0.0/16, ipipMode: %s, natOutgoing: false}
`, mode)}
	for _, n := range d.lab.Nodes {
		docs = append(docs, fmt.Sprintf(`
apiVersion: projectcalico.org/v3
kind: BGPPeer
metadata: {name: tor-%[1]s}
spec: {node: %[1]s, peerIP: %[2]s, asNumber: %[3]d}
`, n.Name, d.lab.ToRs[0].Address(n), d.lab.Spec.TorAS))
	}
	return d.lab.Node("n1").Apply(strings.Join(docs, "---"))
}

func (d *demo) startOthers() error {
	n1 := d.lab.Node("n1")
	for _, name := range []string{"n2", "n3"} {
		if err := d.lab.Node(name).StartManxd(append(lab.UseDatastore(n1), "--no-default-pools")...); err != nil {
			return err
		}
	}
	for _, name := range []string{"n2", "n3"} {
		if err := d.lab.Node(name).Ready(90 * time.Second); err != nil {
			return err
		}
	}
	return nil
}

func (d *demo) addPods() error {
	for _, n := range d.lab.Nodes {
		for i := range 2 {
			p, err := n.AddPod(fmt.Sprintf("%s-pod%d", n.Name, i+1))
			if err != nil {
				return err
			}
			d.pods = append(d.pods, p)
		}
	}
	return nil
}

// waitSessions waits until every node has its two mesh sessions and the one to the router.
func (d *demo) waitSessions() error {
	for _, n := range d.lab.Nodes {
		if err := lab.Eventually(30*time.Second, func() error {
			out, err := n.Run("gobgp", "neighbor")
			if err == nil && strings.Count(out, "Establ") != len(d.lab.Nodes) {
				err = fmt.Errorf("%s: want %d established sessions, have:\n%s", n.Name, len(d.lab.Nodes), out)
			}
			return err
		}); err != nil {
			return err
		}
	}
	return nil
}

func (d *demo) waitPings() error {
	for _, p := range d.probes() {
		if err := lab.Eventually(15*time.Second, func() error { return lab.Ping(p.namespace, p.to) }); err != nil {
			return fmt.Errorf("%s to %s: %w", p.from, p.name, err)
		}
	}
	return nil
}

// killUnderTraffic kills a daemon while pings cross its node in both directions, and restarts it.
func (d *demo) killUnderTraffic() error {
	n2 := d.lab.Node("n2")
	var flows []*lab.Flow
	for _, p := range d.probes() {
		if p.crosses("n2") {
			f, err := d.lab.StartFlow(p.namespace, p.to)
			if err != nil {
				return err
			}
			flows = append(flows, f)
		}
	}
	time.Sleep(time.Second) // some traffic before
	n2.Manxd().Kill()
	time.Sleep(2 * time.Second) // and without the daemon
	if err := n2.StartManxd(); err != nil {
		return err
	}
	if err := n2.Ready(180 * time.Second); err != nil {
		return err
	}
	if err := d.waitSessions(); err != nil {
		return err
	}
	time.Sleep(2 * time.Second) // and after
	var sent, lost int
	for _, f := range flows {
		s, l, err := f.Stop()
		if err != nil {
			return err
		}
		sent, lost = sent+s, lost+l
	}
	fmt.Printf("\n    %d flows, %d pings sent, %d lost", len(flows), sent, lost)
	if lost > 0 {
		d.failed = append(d.failed, fmt.Sprintf("%d packets were lost when manxd was killed", lost))
	}
	return nil
}
