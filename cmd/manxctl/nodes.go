package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/manxnet/manx/cmd/manxctl/fleet"
	"github.com/manxnet/manx/datastore/connect"
	"github.com/manxnet/manx/datastore/kubernetes"
	"github.com/manxnet/manx/datastore/table"
)

// nodeFlags select the nodes of a command about daemons.
type nodeFlags struct {
	node, namespace string
	all             bool
	timeout         time.Duration
}

// nodeTimeout is the time in which a node answers.
const nodeTimeout = 15 * time.Second

// mostBytes bounds the answer of a node, which is kept in memory.
const mostBytes = 8 << 20

// scope is the nodes of a command if none is named.
type scope int

const (
	everyNode  scope = iota
	namedNodes       // none: the user names one with --node, or all
	oneNode          // none, and never all: the command changes the node, or follows it
	ownNode          // the command finds it by itself
)

// hostFlags are the names of nodeFlags: they are for this host, and not for a node.
var hostFlags = []string{"node", "all-nodes", "manx-namespace", "node-timeout"}

func (f *nodeFlags) add(cmd *cobra.Command, s scope) {
	g := cmd.Flags()
	g.StringVar(&f.node, "node", "", "run this on a node of a Kubernetes cluster, in the pod of manx-node there")
	if s == everyNode || s == namedNodes {
		g.BoolVarP(&f.all, "all-nodes", "A", false, "run this on all nodes of a Kubernetes cluster")
	}
	g.StringVar(&f.namespace, "manx-namespace", fleet.DefaultNamespace, "with --node, or for all nodes: namespace of "+
		"manx-node")
	g.DurationVar(&f.timeout, "node-timeout", nodeTimeout, "with --node, or for all nodes: how long each may take")
}

// nodesRun is a command that runs on nodes of a cluster.
type nodesRun struct {
	*cli
	flags   nodeFlags
	scope   scope
	cluster *fleet.Cluster
	// out and errs print what nodes return.
	out, errs io.Writer
}

type runOnNodes func(r nodesRun, cmd *cobra.Command, args []string) error

// onNodes lets a command about the local daemon run on nodes of a cluster: if --node or --all-nodes is given, as plugin
// of kubectl, and where a kubeconfig but no daemon is.
func (c *cli) onNodes(cmd *cobra.Command, s scope, run runOnNodes) *cobra.Command {
	var f nodeFlags
	f.add(cmd, s)
	local := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		wanted, err := c.wantsNodes(f)
		switch {
		case err != nil:
			return err
		case !wanted || fromFiles(cmd):
			return local(cmd, args)
		case f.all && f.node != "":
			return usagef("use either --node or --all-nodes")
		case f.timeout <= 0:
			return usagef("--node-timeout %s: want more than 0s", f.timeout)
		}
		r, err := c.openNodes(f, s)
		if err != nil {
			return err
		}
		return run(r, cmd, args)
	}
	return cmd
}

// fromFiles reports whether a command uses files instead of a daemon.
func fromFiles(cmd *cobra.Command) bool {
	f := cmd.Flags().Lookup("filename")
	return f != nil && f.Changed
}

// wantsNodes reports whether a command is for nodes of a cluster, and not for one daemon.
func (c *cli) wantsNodes(f nodeFlags) (bool, error) {
	remote, err := c.remote()
	named := f.node != "" || f.all
	switch {
	case err != nil:
		return false, err
	case remote != nil || c.socketFlag.Changed:
		if named {
			return false, usagef("--node and --all-nodes run commands in pods, through the Kubernetes API: they do " +
				"not go with --socket and --server")
		}
		return false, nil
	case named || c.plugin:
		return true, nil
	}
	// A manxd that runs here, or ran, is meant.
	if _, err := os.Stat(filepath.Dir(c.socket)); !errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	kube, err := c.kubeconfig()
	return err == nil && kube.Set(), nil
}

// kubeconfig returns the settings of the Kubernetes API: those of flags, of calicoctl's file or the environment, or
// ~/.kube/config.
func (c *cli) kubeconfig() (kubernetes.Config, error) {
	s, err := connect.FromFile(c.etcd.config, c.env)
	k := s.Kube.With(c.etcd.kube).OfUser()
	k.UserAgent = kubernetes.UserAgent("manxctl", version)
	return k, err
}

func (c *cli) openNodes(f nodeFlags, s scope) (nodesRun, error) {
	kube, err := c.kubeconfig()
	if err != nil {
		return nodesRun{}, err
	}
	rest, err := kube.REST()
	if err != nil {
		return nodesRun{}, err
	}
	cluster, err := fleet.Open(rest, f.namespace)
	return nodesRun{cli: c, flags: f, scope: s, cluster: cluster, out: fleet.Clean(c.out),
		errs: fleet.Clean(c.err)}, err
}

// nodes returns the nodes of the command.
func (r nodesRun) nodes(ctx context.Context) ([]fleet.Node, error) {
	if r.flags.node == "" && !r.flags.all && r.scope != everyNode {
		all := ""
		if r.scope == namedNodes {
			all = ", or all with --all-nodes"
		}
		return nil, usagef("name a node with --node%s", all)
	}
	return r.cluster.Nodes(ctx, r.flags.node)
}

// passOn runs the same command on the nodes. The output of one node is printed as it is there, that of several with
// the name of each.
func passOn(r nodesRun, cmd *cobra.Command, args []string) error {
	ctx := cmd.Context()
	nodes, err := r.nodes(ctx)
	if err != nil {
		return err
	}
	if r.flags.node != "" {
		return r.passOnToOne(ctx, nodes[0], r.words(cmd, args, ""), follows(cmd))
	}
	word, _ := cmd.Flags().GetString("output") // commands without it have text alone
	format, err := table.ParseFormat(word, table.JSON, table.YAML)
	structured := err == nil
	toNodes := table.Format("")
	if structured {
		toNodes = table.JSON
	}
	answers, err := r.cluster.RunOn(ctx, nodes, r.flags.timeout, mostBytes, r.words(cmd, args, toNodes)...)
	if err != nil {
		return err
	}
	if structured {
		err = table.Value(r.out, format, dataOf(answers))
	} else {
		err = writeSections(r.out, answers)
	}
	if err != nil {
		return err
	}
	return endOf(answers)
}

// follows reports whether a command waits for events, so that no timeout ends it.
func follows(cmd *cobra.Command) bool {
	live := cmd.Flags().Lookup("live")
	return cmd.Name() == "watch" || live != nil && live.Changed
}

func (r nodesRun) passOnToOne(ctx context.Context, n fleet.Node, words []string, follows bool) error {
	if !follows {
		var cancel context.CancelFunc
		ctx, cancel = fleet.Within(ctx, r.flags.timeout)
		defer cancel()
	}
	code, err := r.cluster.Run(ctx, n, fleet.Command{Args: words, Stdout: r.out, Stderr: r.errs})
	switch {
	case err != nil && errors.Is(ctx.Err(), context.Canceled):
		return nil // interrupted
	case err != nil:
		return &exitErr{exitUnhealthy, short(fmt.Sprintf("%s: %v", n.Name, err))}
	case code != 0:
		return &exitErr{code, ""}
	}
	return nil
}

// words returns the command line of a command for a node: the names of the command, its flags except those of this
// host, with another output format unless that is empty, and behind "--" its arguments.
func (r nodesRun) words(cmd *cobra.Command, args []string, output table.Format) (words []string) {
	for c := cmd; c.HasParent(); c = c.Parent() {
		words = slices.Insert(words, 0, c.Name())
	}
	cmd.LocalNonPersistentFlags().VisitAll(func(f *pflag.Flag) {
		if !f.Changed || slices.Contains(hostFlags, f.Name) || f.Name == "output" && output != "" {
			return
		}
		values := []string{f.Value.String()}
		if list, ok := f.Value.(pflag.SliceValue); ok {
			values = list.GetSlice()
		}
		for _, v := range values {
			words = append(words, "--"+f.Name+"="+v)
		}
	})
	if f := cmd.Flags().Lookup("namespace"); f != nil && !f.Changed && r.namespace != "" {
		words = append(words, "--namespace="+r.namespace)
	}
	if output != "" {
		words = append(words, "--output="+string(output))
	}
	return append(append(words, "--"), args...)
}
