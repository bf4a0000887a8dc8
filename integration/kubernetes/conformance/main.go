// Command conformance runs Kubernetes' own end-to-end tests about the network on a cluster of this machine, and writes
// which of them passed into docs/kubernetes-e2e.md.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/manxnet/manx/integration/kubernetes/cluster"
	"github.com/manxnet/manx/integration/kubernetes/lab"
	hosts "github.com/manxnet/manx/integration/lab"
)

const labName = "manxe2e"

func main() {
	var o options
	flag.StringVar(&o.root, "root", ".", "folder of the checkout")
	flag.StringVar(&o.focus, "focus", "", "run the tests whose names match this expression, and write no table; empty: all of the table")
	flag.BoolVar(&o.byHand, "by-hand", false, "install Manx with a DaemonSet and etcd in place of the chart")
	flag.IntVar(&o.parallel, "parallel", 2, "tests that run at the same time")
	flag.BoolVar(&o.resume, "resume", false, "do not repeat tests that passed earlier with the same image")
	flag.Parse()
	interrupted := make(chan os.Signal, 1)
	signal.Notify(interrupted, os.Interrupt, syscall.SIGTERM)
	go func() {
		<-interrupted
		_ = lab.Remove(labName)
		os.Exit(130)
	}()
	if err := run(o); err != nil {
		fmt.Fprintln(os.Stderr, "conformance:", err)
		os.Exit(1)
	}
}

type options struct {
	root, focus string
	byHand      bool
	parallel    int
	resume      bool
}

func run(o options) (err error) {
	if _, err := lab.Require("e2e.test", regression); err != nil {
		return err
	}
	root, err := filepath.Abs(o.root)
	if err != nil {
		return err
	}
	c, err := lab.New(lab.Spec{Name: labName,
		Nodes: []hosts.NodeSpec{{Name: "node1"}, {Name: "node2"}, {Name: "node3"}}})
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			fmt.Println(c.Describe())
		}
		err = errors.Join(err, c.Close())
	}()
	manx, err := cluster.Shipped(root, o.byHand)
	if err != nil {
		return err
	}
	fmt.Println("... three nodes with Manx:", manx)
	if err := install(c, manx); err != nil {
		return err
	}
	specs, err := list(c, o.focus)
	if err != nil {
		return err
	}
	journal, err := openJournal(filepath.Join(root, "bin", "kubernetes-e2e.json"), fmt.Sprint(manx), o.resume)
	if err != nil {
		return err
	}
	fmt.Printf("... %d tests, %d at a time\n", len(specs), o.parallel)
	results, err := runAll(c, specs, o.parallel, journal)
	if err != nil {
		return err
	}
	if o.focus == "" {
		err = writeTable(filepath.Join(root, "docs", "kubernetes-e2e.md"), fmt.Sprint(manx), results)
	}
	return errors.Join(err, verdict(results))
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
