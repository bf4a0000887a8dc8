package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/manxnet/manx/cmd/manxctl/archive"
	"github.com/manxnet/manx/datastore/table"
	manxv1 "github.com/manxnet/manx/proto/manx/v1"
)

// diagsTimeout bounds a program that shows a part of the kernel's state.
const diagsTimeout = 30 * time.Second

func (c *cli) diagsCommand() *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "diags -o FILE.tar.gz",
		Short: "Collect the state of a node, or of all nodes of a cluster, in one file for a report",
		Long: `Collect what this node knows and what its kernel has in one archive: status, settings, BGP sessions and their
history, routes, policies and rules, endpoints, notices, released addresses, and the output of "nft list table inet
manx" and of ip(8).

A part that cannot be had is a file NAME.error with the reason, and a line on standard error. manxd sends no passwords,
keys and tokens, and the rest of its answers is text about addresses, names and policies of your cluster: read it before
you give it away. The image of Manx has neither ip nor nft: in a pod their parts are missing, and ruleset.txt and
routes.json have what manxd wants and sees.

FILE must not exist, is readable by you alone (0600), and "-" is standard output. With all nodes of a cluster it has an
archive for each node.

Exit codes: 0 written, also if parts are missing; 1 error, such as an existing file; 2 usage; 4 written, but a node of
the cluster did not answer.`,
		Example: "  manxctl diags -o n2.tar.gz",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return c.writeDiags(output, func(w io.Writer) error {
				a := archive.New(w, "manx-diags", time.Now())
				c.collect(cmd.Context(), a)
				return a.Close()
			})
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "", "file to write, or - for standard output")
	_ = cmd.MarkFlagFilename("output", "tar.gz")
	return c.onNodes(cmd, everyNode, func(r nodesRun, cmd *cobra.Command, _ []string) error {
		return diagsOfNodes(r, cmd, output)
	})
}

// nodeDiagsCommand is diags under calicoctl's name: without -o it chooses the name of the file.
func (c *cli) nodeDiagsCommand() *cobra.Command {
	cmd := c.diagsCommand()
	cmd.Use, cmd.Example = "diags [-o FILE.tar.gz]", ""
	cmd.Long += "\n\nWithout -o the file is manx-diags-TIME.tar.gz in this folder."
	write := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if cmd.Flags().Changed("output") {
			return write(cmd, args)
		}
		file := "manx-diags-" + time.Now().UTC().Format("20060102T150405Z") + ".tar.gz"
		if err := cmd.Flags().Set("output", file); err != nil {
			return err
		}
		err := write(cmd, args)
		if _, e := os.Stat(file); e == nil { // also if a node did not answer
			err = errors.Join(err, c.printf("%s", file))
		}
		return err
	}
	return cmd
}

// clusterCommand has calicoctl's command about all nodes.
func (c *cli) clusterCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "cluster",
		Short: "Collect the state of all nodes",
		Args:  onlyCommands,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	diags := c.nodeDiagsCommand()
	diags.PreRunE = func(cmd *cobra.Command, _ []string) error {
		if cmd.Flags().Changed("node") {
			return nil
		}
		return cmd.Flags().Set("all-nodes", "true")
	}
	cmd.AddCommand(diags)
	return cmd
}

// writeDiags passes a new file, or standard output, to a function.
func (c *cli) writeDiags(output string, write func(io.Writer) error) error {
	switch {
	case output == "":
		return usagef("name the file to write with -o FILE.tar.gz")
	case output != "-":
		return archive.Create(output, write)
	case isTerminal(c.out):
		return usagef("-o - writes an archive, and standard output is a terminal")
	}
	return write(c.out)
}

// part is a file of the archive.
type part struct {
	name string
	read func(context.Context) ([]byte, error)
}

// collect adds all parts. A missing part does not keep others out.
func (c *cli) collect(ctx context.Context, a *archive.Archive) {
	for _, p := range append(c.daemonParts(), hostParts()...) {
		content, err := p.read(ctx)
		if len(content) > 0 {
			a.Add(p.name, content)
		}
		if err != nil {
			a.Add(p.name+".error", []byte(err.Error()+"\n"))
			// The text may be all that a program printed: the archive has it in full.
			reason := short(err.Error())
			fmt.Fprintf(c.err, "%s is missing: %s\n", p.name, reason) //nolint:errcheck // nowhere to report it
		}
	}
}

// daemonParts are what the daemon knows.
func (c *cli) daemonParts() []part {
	return []part{
		{"versions.json", func(ctx context.Context) ([]byte, error) {
			v := ownVersions()
			c.daemonVersion(ctx, &v)
			return structured(v)
		}},
		ask(c, "status.json", func(ctx context.Context, m manxv1.ManxClient) (*manxv1.GetStatusResponse, error) {
			return m.GetStatus(ctx, &manxv1.GetStatusRequest{})
		}),
		ask(c, "settings.json", func(ctx context.Context, m manxv1.ManxClient) (*manxv1.ListSettingsResponse, error) {
			return m.ListSettings(ctx, &manxv1.ListSettingsRequest{})
		}),
		ask(c, "notices.json", func(ctx context.Context, m manxv1.ManxClient) (*manxv1.ListNoticesResponse, error) {
			return m.ListNotices(ctx, &manxv1.ListNoticesRequest{})
		}),
		ask(c, "peers.json", func(ctx context.Context, m manxv1.ManxClient) (*manxv1.ListPeersResponse, error) {
			return m.ListPeers(ctx, &manxv1.ListPeersRequest{})
		}),
		ask(c, "history.json", func(ctx context.Context, m manxv1.ManxClient) (*manxv1.ListPeerTransitionsResponse,
			error) {
			return m.ListPeerTransitions(ctx, &manxv1.ListPeerTransitionsRequest{})
		}),
		ask(c, "routes.json", func(ctx context.Context, m manxv1.ManxClient) (*manxv1.ListRoutesResponse, error) {
			s, err := m.GetStatus(ctx, &manxv1.GetStatusRequest{})
			if n := uint64(sum(s.GetRoutes())); err == nil && n > mostDiagRoutes {
				err = fmt.Errorf("%d routes are too many here: see manxctl routes --within PREFIX", n)
			}
			if err != nil {
				return nil, err
			}
			return m.ListRoutes(ctx, &manxv1.ListRoutesRequest{})
		}),
		ask(c, "routes-rejected.json", func(ctx context.Context, m manxv1.ManxClient) (
			*manxv1.ListPeerRoutesResponse, error) {
			list, err := m.ListPeers(ctx, &manxv1.ListPeersRequest{})
			n := uint64(0)
			for _, p := range list.GetPeers() {
				n += p.GetPrefixes().GetReceived()
			}
			if err == nil && n > mostDiagRoutes {
				err = fmt.Errorf("%d routes of peers are too many here: see manxctl routes --rejected --peer PEER", n)
			}
			if err != nil {
				return nil, err
			}
			return manxv1.PeerRoutes(ctx, m, &manxv1.ListPeerRoutesRequest{Direction: "rejected"})
		}),
		ask(c, "endpoints.json", func(ctx context.Context, m manxv1.ManxClient) (*manxv1.ListEndpointsResponse,
			error) {
			return m.ListEndpoints(ctx, &manxv1.ListEndpointsRequest{})
		}),
		ask(c, "addresses.json", func(ctx context.Context, m manxv1.ManxClient) (*manxv1.ListAddressesResponse,
			error) {
			return m.ListAddresses(ctx, &manxv1.ListAddressesRequest{})
		}),
		ask(c, "problems.json", func(ctx context.Context, m manxv1.ManxClient) (*manxv1.ListQuarantinedResponse,
			error) {
			return m.ListQuarantined(ctx, &manxv1.ListQuarantinedRequest{})
		}),
		ask(c, "policies.json", func(ctx context.Context, m manxv1.ManxClient) (*manxv1.ListPoliciesResponse, error) {
			return m.ListPolicies(ctx, &manxv1.ListPoliciesRequest{})
		}),
		{"ruleset.txt", func(ctx context.Context) (text []byte, err error) {
			err = c.daemonFor(ctx, routesTimeout, func(ctx context.Context, m manxv1.ManxClient) error {
				r, err := m.GetRuleset(ctx, &manxv1.GetRulesetRequest{Elements: diagsElements})
				text = []byte(r.GetText())
				return err
			})
			return text, err
		}},
		{"ipam-releases.json", func(ctx context.Context) (text []byte, err error) {
			err = c.call(ctx, daemonTimeout, func(ctx context.Context, conn grpc.ClientConnInterface) error {
				r, err := manxv1.NewControllersClient(conn).ListReleases(ctx, &manxv1.ListReleasesRequest{})
				if status.Code(err) == codes.Unimplemented {
					return errors.New(noControllers)
				}
				if err != nil {
					return err
				}
				text, err = structured(view(r))
				return err
			})
			return text, err
		}},
	}
}

// mostDiagRoutes bounds the routes in the archive: in a pod their text would need the memory that manxd is granted.
const mostDiagRoutes = 50_000

// diagsElements bounds the elements of each set in the archive.
const diagsElements = 1000

// ask is the part with a response of the daemon.
func ask[M proto.Message](c *cli, name string, request func(context.Context, manxv1.ManxClient) (M, error)) part {
	return part{name, func(ctx context.Context) (text []byte, err error) {
		err = c.daemonFor(ctx, routesTimeout, func(ctx context.Context, m manxv1.ManxClient) error {
			answer, err := request(ctx, m)
			if err != nil {
				return err
			}
			text, err = structured(view(answer))
			return err
		})
		return text, err
	}}
}

func structured(v any) ([]byte, error) {
	var b bytes.Buffer
	err := table.Value(&b, table.JSON, v)
	return b.Bytes(), err
}

// hostParts are what the kernel has, by the programs of this host.
func hostParts() []part {
	return []part{
		program("kernel/nft-table.txt", "nft", "list", "table", "inet", "manx"),
		program("kernel/ip-route.txt", "ip", "-4", "route", "show", "table", "all"),
		program("kernel/ip6-route.txt", "ip", "-6", "route", "show", "table", "all"),
		program("kernel/ip-rule.txt", "ip", "-4", "rule", "show"),
		program("kernel/ip6-rule.txt", "ip", "-6", "rule", "show"),
		program("kernel/ip-addr.txt", "ip", "-d", "addr", "show"),
		program("kernel/ip-link.txt", "ip", "-d", "-s", "link", "show"),
		hostFile("kernel/version.txt", "/proc/version"),
		hostFile("os-release.txt", "/etc/os-release"),
	}
}

// program is the part with the output of a program.
func program(name, command string, args ...string) part {
	return part{name, func(ctx context.Context) ([]byte, error) {
		if runtime.GOOS != "linux" {
			return nil, errors.New("this host is no node: it does not run Linux")
		}
		ctx, cancel := context.WithTimeout(ctx, diagsTimeout)
		defer cancel()
		var out, errs archive.Bounded
		cmd := exec.CommandContext(ctx, command, args...)
		cmd.Stdout, cmd.Stderr = &out, &errs
		cmd.WaitDelay = time.Second
		err := cmd.Run()
		if text := bytes.TrimSpace(errs.Bytes()); err != nil && len(text) > 0 {
			err = fmt.Errorf("%s: %w: %s", command, err, text)
		}
		return out.Bytes(), err
	}}
}

func hostFile(name, path string) part {
	return part{name, func(context.Context) ([]byte, error) {
		f, err := os.Open(path)
		if err != nil {
			return nil, err
		}
		defer f.Close() //nolint:errcheck // it was read
		var out archive.Bounded
		_, err = io.Copy(&out, f)
		return out.Bytes(), err
	}}
}
