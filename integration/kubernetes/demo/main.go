// Command demo shows Manx as the network of a Kubernetes cluster: nodes with real kubelets in namespaces of this
// machine, and a BIRD router outside.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/manxnet/manx/integration/kubernetes/cluster"
	"github.com/manxnet/manx/integration/kubernetes/lab"
)

const labName = "manxk8s"

func main() {
	keep := flag.Bool("keep", false, "leave the cluster running, with Manx on it, and print how to look around")
	down := flag.Bool("down", false, "remove a cluster that was kept, and do nothing else")
	byHand := flag.Bool("by-hand", false, "install Manx with a DaemonSet and etcd in place of the chart")
	manifests := flag.Bool("manifests", false, "install with the generated manifests although Helm is there")
	mode := flag.String("mode", "", "bgp, vxlan or wireguard: how packets of pods get from node to node; empty: bgp")
	check := flag.Bool("check", false, "check the mode, and do nothing else")
	root := flag.String("root", ".", "folder of the checkout")
	flag.Parse()
	if *down {
		exit(lab.Remove(labName))
	}
	network, err := cluster.ParseNetwork(*mode, "")
	if err != nil {
		exit(err)
	}
	missing := network.Missing()
	if missing != nil {
		err = bootable(missing, *keep)
	}
	if err != nil || *check {
		exit(err)
	}
	path, err := filepath.Abs(*root)
	if err != nil {
		exit(err)
	}
	install, err := cluster.Shipped(path, network, *byHand)
	if *manifests {
		install, err = cluster.Manifests(path, network)
	}
	if err != nil {
		exit(err)
	}
	if missing != nil {
		exit(boot(path, missing))
	}
	exit(run(install, *keep))
}

func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "\ndemo:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

func run(install cluster.Installation, keep bool) (err error) {
	fmt.Println("Manx in Kubernetes: a control plane, nodes with kubelets, a BIRD router, all in namespaces of one " +
		"machine.")
	fmt.Println("Manx is installed by", install)
	interrupted := make(chan os.Signal, 1)
	signal.Notify(interrupted, os.Interrupt, syscall.SIGTERM)
	go func() {
		<-interrupted
		_ = lab.Remove(labName)
		os.Exit(130)
	}()
	begin := time.Now()
	var w *cluster.World
	if err := step("start the control plane of Kubernetes "+lab.Version, func() error {
		w, err = cluster.New(labName, install, os.Stdout)
		return err
	}); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			fmt.Println(w.Describe())
		}
		if keep {
			err = errors.Join(err, w.Keep())
			nextCommands(w)
			return
		}
		err = errors.Join(err, w.Close())
	}()
	steps := cluster.Steps(install.Network())
	if keep {
		steps = steps[:len(steps)-1] // the last one is the removal
	}
	for _, s := range steps {
		if err := step(s.Name, func() error { return s.Do(w) }); err != nil {
			return err
		}
	}
	fmt.Printf("\nAs promised, in %.0f s.\n", time.Since(begin).Seconds())
	return nil
}

// step calls do and prints its duration.
func step(name string, do func() error) error {
	fmt.Printf("\n... %s\n", name)
	begin := time.Now()
	if err := do(); err != nil {
		fmt.Printf("    failed after %.1fs\n", time.Since(begin).Seconds())
		return fmt.Errorf("%s: %w", name, err)
	}
	fmt.Printf("    done (%.1fs)\n", time.Since(begin).Seconds())
	return nil
}

func nextCommands(w *cluster.World) {
	control := w.Control.Namespace
	fmt.Println("\nThe cluster keeps running. To look around:")
	fmt.Printf("  alias k='ip netns exec %s %s --kubeconfig=%s'\n", control, w.Program("kubectl"), w.Kubeconfig())
	fmt.Println("  k get nodes; k get pods -A -o wide; k exec -n kube-system ds/manx-node -c manxd -- /manxctl status")
	for _, n := range w.Workers {
		fmt.Printf("  nsenter -t %s --all bash      # on %s\n", n.Init(), n.Name)
	}
	fmt.Printf("  ip netns exec %s birdc -s %s/tor1/bird.ctl show protocols\n", w.ToRs[0].Namespace, w.Dir)
	fmt.Println("  logs and files:", w.Dir)
	fmt.Println("When you have seen enough: make demo-kubernetes-down")
}
