// Command conformance runs Kubernetes' own end-to-end tests about the network on a cluster of this machine, and writes
// their results into docs/kubernetes-e2e.md.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"

	"github.com/manxnet/manx/integration/kubernetes/cluster"
	"github.com/manxnet/manx/integration/kubernetes/lab"
	hosts "github.com/manxnet/manx/integration/lab"
)

const labName = "manxe2e"

func main() {
	var o options
	flag.StringVar(&o.root, "root", ".", "folder of the checkout")
	flag.StringVar(&o.focus, "focus", "",
		"run the tests whose names match, and write no table; empty: all of the table")
	flag.BoolVar(&o.byHand, "by-hand", false, "install Manx with a DaemonSet and etcd in place of the chart")
	flag.IntVar(&o.parallel, "parallel", max(1, runtime.GOMAXPROCS(0)/2), "tests that run at the same time")
	flag.BoolVar(&o.resume, "resume", false, "do not repeat tests that passed earlier with the same image")
	flag.BoolVar(&o.table, "table", false,
		"run nothing; write the table of what earlier runs with the same image found")
	flag.StringVar(&o.mode, "mode", "", "bgp or vxlan: how packets get from node to node; empty: bgp")
	flag.StringVar(&o.families, "families", "", "ipv4, dual or ipv6: families of the cluster's addresses; empty: ipv4")
	flag.Parse()
	ctx, _ := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM) // its end is an interrupt
	go func() {
		<-ctx.Done()
		_ = lab.Remove(labName)
		os.Exit(130)
	}()
	err := run(ctx, o)
	if ctx.Err() != nil {
		select {} // the cluster is being removed
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "conformance:", err)
		os.Exit(1)
	}
}

type options struct {
	root, focus string
	byHand      bool
	parallel    int
	resume      bool
	table       bool

	mode, families string
}

func run(ctx context.Context, o options) error {
	network, err := cluster.ParseNetwork(o.mode, o.families)
	if err == nil && network.Mode == cluster.WireGuard {
		err = fmt.Errorf("mode %s: this cluster has two nodes, and the tests need three", network.Mode)
	}
	if err != nil {
		return err
	}
	if _, err := lab.Require("e2e.test", regression); err != nil {
		return err
	}
	root, err := filepath.Abs(o.root)
	if err != nil {
		return err
	}
	manx, err := cluster.Shipped(root, network, o.byHand)
	if err != nil {
		return err
	}
	specs, err := list(o.focus, network)
	if err != nil {
		return err
	}
	j, err := openJournal(filepath.Join(root, "bin", "kubernetes-e2e"+suffix(network)+".json"), fmt.Sprint(manx),
		o.resume || o.table)
	if err != nil {
		return err
	}
	var results []result
	if o.table {
		for _, name := range specs {
			results = append(results, j.result(name))
		}
	} else if results, err = onCluster(ctx, manx, specs, o.parallel, j); err != nil {
		return err
	}
	return errors.Join(err, verdict(results), record(root, manx, results, o.focus, j))
}

// record writes the table of a whole run. A network other than the default one has a table of all runs so far, since
// these are runs of groups of tests.
func record(root string, manx cluster.Installation, results []result, focus string, j *journal) error {
	network := manx.Network()
	if focus != "" {
		if suffix(network) == "" {
			return nil
		}
		specs, err := list("", network)
		if err != nil {
			return err
		}
		results = nil
		for _, name := range specs {
			results = append(results, j.result(name))
		}
	}
	return writeTable(filepath.Join(root, "docs", "kubernetes-e2e.md"), manx, results)
}

// suffix distinguishes the files and tables of networks; the default one has none.
func suffix(n cluster.Network) (text string) {
	if n.Mode != cluster.BGP {
		text = "-" + string(n.Mode)
	}
	if n.Families != lab.IPv4 {
		text += "-" + string(n.Families)
	}
	return text
}

// onCluster makes a cluster and runs the tests on it.
func onCluster(ctx context.Context, manx cluster.Installation, specs []string, parallel int, j *journal) (
	results []result, err error,
) {
	network := manx.Network()
	nodes := []hosts.NodeSpec{{Name: "node1"}, {Name: "node2"}, {Name: "node3"}}
	if network.Mode == cluster.VXLAN {
		nodes[2].Rack = 1 // with CrossSubnet there is a tunnel only to another rack
	}
	c, err := lab.New(lab.Spec{Name: labName, FeatureGates: featureGates, Families: network.Families, Nodes: nodes})
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil && ctx.Err() == nil {
			fmt.Println(c.Describe())
		}
		err = errors.Join(err, c.Close())
	}()
	fmt.Println("... three nodes with Manx:", manx)
	if err := install(c, manx); err != nil {
		return nil, err
	}
	following, stop := context.WithCancel(ctx)
	var follow sync.WaitGroup
	follow.Go(func() { followAffinity(following, c) })
	defer follow.Wait()
	defer stop()
	fmt.Printf("... %d tests, %d at a time\n", len(specs), parallel)
	return (&runner{c, network, j, parallel}).runAll(ctx, specs)
}

// verdict is an error if a test failed.
func verdict(results []result) error {
	var failed []string
	for _, r := range results {
		if r.outcome == "failed" {
			failed = append(failed, r.name)
		}
	}
	fmt.Printf("%d tests, %d failed\n", len(results), len(failed))
	if len(failed) > 0 {
		return errors.New("failed:\n  " + strings.Join(failed, "\n  "))
	}
	return nil
}
