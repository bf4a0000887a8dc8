package main

import (
	"encoding/json"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/manxnet/manx/cmd/manxctl/fleet"
	"github.com/manxnet/manx/datastore/table"
)

func (c *cli) peersCommand() *cobra.Command {
	var o getOptions
	cmd := &cobra.Command{
		Use:   "peers [ADDRESS|NAME...]",
		Short: "Show the BGP sessions of this node, or of all nodes of a cluster, with reasons",
		Long: "Show the BGP sessions of this node, or of all nodes of a cluster, with the reasons of their " +
			"states.\n\n" +
			"The exit code is 4 if a node does not answer, and with --down if a session is down.",
		Example: "  manxctl peers",
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if o.format, err = table.ParseFormat(o.output); err != nil {
				return usagef("%v", err)
			}
			return c.getPeers(cmd.Context(), o, args)
		},
	}
	f := cmd.Flags()
	f.BoolVar(&o.down, "down", false, "only sessions that are not established")
	f.StringVarP(&o.output, "output", "o", "", "table, wide, yaml, json or name")
	f.BoolVar(&o.noHeaders, "no-headers", false, "tables without the heading")
	return c.onNodes(cmd, everyNode, func(r nodesRun, cmd *cobra.Command, args []string) (err error) {
		if o.format, err = table.ParseFormat(o.output, table.Table, table.Wide, table.JSON,
			table.YAML); err != nil {
			return usagef("%v", err)
		}
		return r.peers(cmd, o, args)
	})
}

// getPeersAnywhere is "get peers": of the local daemon, or of all nodes as plugin of kubectl.
func (c *cli) getPeersAnywhere(cmd *cobra.Command, o getOptions, names []string) error {
	flags := nodeFlags{namespace: fleet.DefaultNamespace, timeout: nodeTimeout}
	wanted, err := c.wantsNodes(flags)
	switch {
	case err != nil:
		return err
	case !wanted:
		return c.getPeers(cmd.Context(), o, names)
	case o.watch:
		return usagef("-w follows the sessions of one node: see \"manxctl watch --peers --node NODE\"")
	}
	if err := o.forPeers(); err != nil {
		return err
	}
	if _, err := table.ParseFormat(string(o.format), table.Table, table.Wide, table.JSON, table.YAML); err != nil {
		return usagef("%v", err)
	}
	r, err := c.openNodes(flags, everyNode)
	if err != nil {
		return err
	}
	return r.peers(cmd, o, names)
}

// nodeSession is what the tables of nodes need of a session in the output of manxctl. A manxd of another version may
// leave out fields.
type nodeSession struct {
	Address  string `json:"address"`
	Port     uint32 `json:"port"`
	Type     string `json:"type"`
	PeerAS   uint32 `json:"peerAs"`
	State    string `json:"state"`
	Phase    string `json:"phase"`
	Reason   string `json:"reason"`
	Warning  string `json:"warning"`
	Since    string `json:"since"`
	Flaps    uint64 `json:"flaps"`
	Prefixes *struct {
		Received uint64 `json:"received"`
		Accepted uint64 `json:"accepted"`
	} `json:"prefixes"`
	RequestedBy []string `json:"requestedBy"`
	LocalAS     uint32   `json:"localAs"`
	Source      string   `json:"source"`
	LastError   string   `json:"lastError"`
	LastErrorBy string   `json:"lastErrorBy"`
	BFD         *struct {
		State string `json:"state"`
	} `json:"bfd"`
}

// wide returns the further columns of -o wide.
func (s nodeSession) wide() (cells []string) {
	bfd := ""
	if s.BFD != nil {
		bfd = s.BFD.State
	}
	for _, text := range []string{utoa(s.LocalAS), s.State, bfd, s.Source, s.LastErrorBy, s.LastError,
		strings.Join(s.RequestedBy, ",")} {
		cells = append(cells, dash(short(text)))
	}
	return cells
}

// name returns the address, and the port if it is not BGP's default.
func (s nodeSession) name() string {
	if s.Port == 0 || s.Port == 179 {
		return s.Address
	}
	return net.JoinHostPort(s.Address, utoa(s.Port))
}

// objects returns the names of the objects that configure the session, without their kind.
func (s nodeSession) objects() (list []string) {
	for _, o := range s.RequestedBy {
		if name, ok := strings.CutPrefix(o, "BGPPeer/"); ok {
			list = append(list, name)
		}
	}
	return list
}

// age returns the time since the last change, by the clocks of both hosts; empty if it is unknown.
func (s nodeSession) age(now time.Time) string {
	t, err := time.Parse(time.RFC3339, s.Since)
	if err != nil {
		return ""
	}
	return duration(now.Sub(t))
}

// trouble returns "tor-b 10.0.1.2 down for 4m: reason".
func (s nodeSession) trouble(now time.Time) string {
	state := "down"
	if s.State == established {
		state = "up"
	}
	if age := s.age(now); age != "" {
		state += " for " + age
	}
	return strings.Join(append(s.objects(), s.name(), state), " ") + ": " +
		strings.Join(present(s.Reason, s.Warning), "; ")
}

// nodePeers are the sessions of a node, or the reason why they are unknown.
type nodePeers struct {
	Node     string            `json:"node"`
	Peers    []json.RawMessage `json:"peers"`
	Error    string            `json:"error,omitempty"`
	sessions []nodeSession
}

// peersOfNode reads the answer of a node. names selects addresses and BGPPeers, all if it is empty.
func peersOfNode(a fleet.Answer, down bool, names []string) nodePeers {
	n := nodePeers{Node: a.Name, Error: whyNone(a), Peers: []json.RawMessage{}}
	if n.Error != "" {
		return n
	}
	var list struct {
		Peers []json.RawMessage `json:"peers"`
	}
	if err := lenient(a.Stdout, &list); err != nil {
		n.Error = short(fmt.Sprintf("its answer cannot be read: %v", err))
		return n
	}
	for _, raw := range list.Peers {
		var s nodeSession
		_ = lenient(raw, &s) // it is valid: it was part of valid JSON
		named := len(names) == 0 || slices.ContainsFunc(names, func(x string) bool {
			return x == s.Address || slices.Contains(s.objects(), x)
		})
		if !named || down && s.State == established {
			continue
		}
		n.Peers, n.sessions = append(n.Peers, raw), append(n.sessions, s)
	}
	return n
}

// peers prints the sessions of all nodes, or of the one that is named.
func (r nodesRun) peers(cmd *cobra.Command, o getOptions, names []string) error {
	nodes, err := r.nodes(cmd.Context())
	if err != nil {
		return err
	}
	answers, err := r.cluster.RunOn(cmd.Context(), nodes, r.flags.timeout, mostBytes, "get", "peers", "--output=json")
	if err != nil {
		return err
	}
	list := make([]nodePeers, len(answers))
	healthy := true
	for i, a := range answers {
		list[i] = peersOfNode(a, o.down, names)
		healthy = healthy && list[i].Error == "" && !(o.down && len(list[i].Peers) > 0)
	}
	if o.format == table.JSON || o.format == table.YAML {
		err = table.Value(r.out, o.format, struct {
			Nodes []nodePeers `json:"nodes"`
		}{list})
	} else {
		err = r.writeNodePeers(list, o.format == table.Wide, !o.noHeaders, time.Now())
	}
	if err == nil && !healthy {
		return &exitErr{exitUnhealthy, ""}
	}
	return err
}

func (r nodesRun) writeNodePeers(list []nodePeers, wide, heading bool, now time.Time) error {
	g := &table.Grid{Heading: []string{"NODE", "PEER", "TYPE", "AS", "PHASE", "SINCE", "FLAPS", "RECEIVED", "ACCEPTED"}}
	if wide {
		g.Heading = append(g.Heading, "LOCAL-AS", "STATE", "BFD", "SOURCE", "LAST-ERROR-BY", "LAST-ERROR",
			"REQUESTED-BY")
	}
	g.Heading = append(g.Heading, "REASON")
	for _, n := range list {
		if n.Error != "" {
			row := slices.Repeat([]string{"-"}, len(g.Heading))
			row[0], row[4], row[len(row)-1] = n.Node, "unknown", n.Error
			g.Add(row...)
		}
		for _, s := range n.sessions {
			received, accepted := uint64(0), uint64(0)
			if s.Prefixes != nil {
				received, accepted = s.Prefixes.Received, s.Prefixes.Accepted
			}
			row := []string{n.Node, short(s.name()), short(s.Type), utoa(s.PeerAS), short(s.Phase), dash(s.age(now)),
				fmt.Sprint(s.Flaps), fmt.Sprint(received), fmt.Sprint(accepted)}
			if wide {
				row = append(row, s.wide()...)
			}
			g.Add(append(row, short(strings.Join(present(s.Reason, s.Warning), "; ")))...)
		}
	}
	if len(g.Rows) == 0 {
		_, err := fmt.Fprintln(r.out, "No peers found.")
		return err
	}
	if !r.colored() {
		return g.Write(r.out, heading)
	}
	return r.colorPhases(g).Write(r.cli.out, heading) // r.out would take colors out; cells cannot have any
}
