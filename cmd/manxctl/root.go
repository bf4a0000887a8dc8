package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/manxnet/manx/cmd/manxctl/fleet"
)

// Exit codes are stable, for scripts.
const (
	exitOK        = 0
	exitError     = 1
	exitUsage     = 2
	exitDifferent = 3
	exitUnhealthy = 4
	// exitUnexpected: policy decides otherwise than --expect or a test wants.
	exitUnexpected = 5
)

// cli is the state that all commands share.
type cli struct {
	in       io.Reader
	out, err io.Writer
	env      func(string) string
	// plugin is set if kubectl runs this program: the cluster of the kubeconfig is meant, not this host. namespace is
	// then that of its context.
	plugin    bool
	namespace string
	color     colorMode

	socket     string // of the local daemon
	socketFlag *pflag.Flag
	server     serverFlags
	etcd       etcdFlags
	calicoctl  calicoctlFlags
}

// exitErr is an error with its own exit code. An empty text has been printed already.
type exitErr struct {
	code int
	text string
}

func (e *exitErr) Error() string { return e.text }

func usagef(format string, args ...any) error {
	return &exitErr{exitUsage, fmt.Sprintf(format, args...)}
}

// run executes the command line and returns the exit code.
func (c *cli) run(ctx context.Context, args []string) int {
	root := c.root()
	root.SetArgs(withoutShortLevel(args, root.PersistentFlags()))
	root.SetIn(c.in)
	root.SetOut(c.out)
	root.SetErr(c.err)
	ran := false
	root.PersistentPreRun = func(*cobra.Command, []string) {
		ran = true
		if c.plugin {
			c.namespace = c.contextNamespace()
		}
	}
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return exitOK
	}
	code := codeOf(err, ran)
	var e *exitErr
	if !errors.As(err, &e) || e.text != "" {
		text := err.Error()
		if c.plugin {
			text = inPlugin(text)
		}
		fmt.Fprintln(fleet.Clean(c.err), "Error:", text) //nolint:errcheck // nowhere to report it
	}
	if code == exitUsage {
		fmt.Fprintf(c.err, "See '%s --help'.\n", cmd.CommandPath()) //nolint:errcheck // nowhere to report it
	}
	return code
}

// codeOf returns the exit code of an error. An error of cobra before a command runs is a usage error.
func codeOf(err error, ran bool) int {
	var e *exitErr
	switch {
	case errors.As(err, &e):
		return e.code
	case !ran:
		return exitUsage
	}
	return exitError
}

func (c *cli) root() *cobra.Command {
	root := &cobra.Command{
		Use: "manxctl",
		Short: "Read and write the objects of a Manx or Calico cluster, and show the state of a node with " +
			"reasons",
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          onlyCommands,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.Version = version
	root.SetVersionTemplate("manxctl " + clientVersion().line())
	root.SetHelpCommand(helpCommand())
	root.SetFlagErrorFunc(flagError)
	f := root.PersistentFlags()
	f.StringVar(&c.socket, "socket", "/run/manx/manxd.sock", "control socket of the local manxd")
	c.socketFlag = f.Lookup("socket")
	c.server.add(f)
	c.etcd.add(f)
	c.calicoctl.add(f)
	c.addColorFlag(root)
	root.AddCommand(
		c.getCommand(), c.onNodes(c.describeCommand(), everyNode, describeOnNodes), c.applyCommand(), c.createCommand(),
		c.replaceCommand(), c.patchCommand(), c.labelCommand(), c.deleteCommand(), c.editCommand(), c.validateCommand(),
		c.diffCommand(), c.planCommand(),
		c.onNodes(c.explainCommand(), ownNode, explainOnNode), c.testCommand(), c.dumpCommand(),
		c.onNodes(c.statusCommand(), everyNode, statusOfNodes), c.waitCommand(), c.healthCommand(), c.nodeCommand(),
		c.peersCommand(), c.onNodes(c.historyCommand(), everyNode, passOn),
		brief(c.nodeDrainCommand()), brief(c.nodeUndrainCommand()),
		c.onNodes(c.routesCommand(), namedNodes, passOn),
		c.onNodes(c.watchCommand(), oneNode, passOn), c.onNodes(c.dropsCommand(), everyNode, dropsOfNodes),
		c.onNodes(c.logLevelCommand(), oneNode, passOn), c.onNodes(c.resyncCommand(), oneNode, passOn),
		c.onNodes(c.resetCommand(), oneNode, passOn), c.onNodes(c.clearCommand(), oneNode, passOn),
		c.onNodes(c.retryCommand(), oneNode, passOn), c.ipamCommand(), c.datastoreCommand(),
		c.diagsCommand(), c.clusterCommand(), c.versionCommand(),
	)
	if c.plugin {
		asPlugin(root)
	}
	return root
}

// brief leaves out the examples of a command that is there under "node", too.
func brief(cmd *cobra.Command) *cobra.Command {
	cmd.Example = ""
	return cmd
}
