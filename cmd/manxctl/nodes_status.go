package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/manxnet/manx/cmd/manxctl/fleet"
	"github.com/manxnet/manx/datastore/table"
)

// nodeReport is what the table of nodes needs of "status -o json". A manxd of another version may leave out fields.
type nodeReport struct {
	Version struct {
		Manx string `json:"manx"`
	} `json:"version"`
	Ready  bool `json:"ready"`
	Checks []struct {
		Name   string `json:"name"`
		OK     bool   `json:"ok"`
		Reason string `json:"reason"`
	} `json:"checks"`
	Peers     map[string]uint32 `json:"peers"`
	Routes    map[string]uint32 `json:"routes"`
	Endpoints map[string]uint32 `json:"endpoints"`
	Notices   uint32            `json:"notices"`
	Drain     string            `json:"drain"`
	BGPOff    string            `json:"bgpOff"`
	Policy    *struct {
		InSync    bool   `json:"inSync"`
		LastError string `json:"lastError"`
	} `json:"policy"`
	Sessions []nodeSession `json:"troubledSessions"`
	Texts    []struct {
		Subject string `json:"subject"`
		Text    string `json:"text"`
	} `json:"noticeList"`
}

// nodeSummary is a row of the table of nodes, and its data with -o json.
type nodeSummary struct {
	Node    string `json:"node"`
	Version string `json:"version,omitempty"`
	// Answered is set if the node answered; else Troubles has the reason, and the following fields are empty.
	Answered bool              `json:"answered"`
	Healthy  bool              `json:"healthy"` // as "status" on the node
	Ready    bool              `json:"ready"`
	Peers    map[string]uint32 `json:"peers,omitempty"`
	BGPOff   string            `json:"bgpOff,omitempty"` // why the node has no BGP
	Routes   map[string]uint32 `json:"routes,omitempty"`
	Policy   string            `json:"policy,omitempty"`
	Notices  uint32            `json:"notices"`
	Troubles []string          `json:"troubles,omitempty"`
}

// summaryOf reads the answer of a node. Types that another version has changed count as absent.
func summaryOf(a fleet.Answer, now time.Time) nodeSummary {
	s := nodeSummary{Node: a.Name}
	var r nodeReport
	err := lenient(a.Stdout, &r)
	switch {
	case a.Err != nil, len(bytes.TrimSpace(a.Stdout)) == 0:
		s.Troubles = []string{whyNone(a)}
		return s
	case err != nil:
		s.Troubles = []string{short(fmt.Sprintf("its answer cannot be read: %v", err))}
		return s
	}
	s.Version, s.Answered, s.Ready, s.Healthy = short(r.Version.Manx), true, r.Ready, a.Code == exitOK && r.Ready
	s.Peers, s.Routes, s.Notices, s.BGPOff = r.Peers, r.Routes, r.Notices, r.BGPOff
	switch {
	case r.Policy == nil:
		s.Policy = "off"
	case r.Policy.InSync:
		s.Policy = "in sync"
	default:
		s.Policy = "not in sync"
	}
	s.Troubles = r.troubles(a.Name, now)
	return s
}

// lenient decodes JSON, and leaves out values whose types differ.
func lenient(text []byte, into any) error {
	err := json.Unmarshal(text, into)
	var another *json.UnmarshalTypeError
	if errors.As(err, &another) {
		return nil
	}
	return err
}

// mostTroubles bounds the lines of a node.
const mostTroubles = 20

// troubles returns a line for each trouble of a node, most urgent first.
func (r nodeReport) troubles(node string, now time.Time) (lines []string) {
	add := func(format string, args ...any) { lines = append(lines, short(fmt.Sprintf(format, args...))) }
	for _, c := range r.Checks {
		if !c.OK {
			add("%s: %s", c.Name, c.Reason)
		}
	}
	if !r.Ready && len(lines) == 0 {
		add("not ready")
	}
	for _, s := range r.Sessions {
		add("%s", s.trouble(now))
	}
	if n := r.Routes[phaseFailed]; n > 0 {
		add("%s failed: see manxctl routes --phase %s --node %s", plural(n, "route"), phaseFailed, node)
	}
	if n := r.Endpoints[phaseFailed]; n > 0 {
		add("%s failed: see manxctl node endpoints --node %s", plural(n, "workload endpoint"), node)
	}
	if r.Policy != nil && r.Policy.LastError != "" {
		add("policy: %s", r.Policy.LastError)
	}
	if r.Drain != "" {
		add("drain: its routes are %s",
			map[bool]string{true: "the last choice", false: "withdrawn"}[r.Drain == "draining"])
	}
	for _, n := range r.Texts {
		add("%s: %s", n.Subject, n.Text)
	}
	if more := len(lines) - mostTroubles; more > 0 {
		lines = append(lines[:mostTroubles], fmt.Sprintf("and %d more: see manxctl status --node %s", more, node))
	}
	return lines
}

// statusOfNodes prints a row for each node and a line for each trouble; one node that is named shows its own status.
func statusOfNodes(r nodesRun, cmd *cobra.Command, args []string) error {
	word, _ := cmd.Flags().GetString("output")
	format, err := table.ParseFormat(word, table.Table, table.JSON, table.YAML)
	switch {
	case err != nil:
		return usagef("%v", err)
	case r.flags.node != "":
		return passOn(r, cmd, args)
	}
	nodes, err := r.nodes(cmd.Context())
	if err != nil {
		return err
	}
	answers, err := r.cluster.RunOn(cmd.Context(), nodes, r.flags.timeout, mostBytes, "status", "--output=json")
	if err != nil {
		return err
	}
	list := make([]nodeSummary, len(answers))
	all, _ := cmd.Flags().GetBool("all-sessions")
	healthy := true
	for i, a := range answers {
		list[i] = summaryOf(a, time.Now())
		healthy = healthy && list[i].Healthy && (!all || list[i].Peers[established] == sum(list[i].Peers))
		for j, t := range list[i].Troubles {
			list[i].Troubles[j] = r.named(t)
		}
	}
	if format == table.Table {
		err = writeSummaries(r.out, list)
	} else {
		err = table.Value(r.out, format, struct {
			Nodes []nodeSummary `json:"nodes"`
		}{list})
	}
	if err == nil && !healthy {
		return &exitErr{exitUnhealthy, ""}
	}
	return err
}

// named returns a text with the name of this program as it was called.
func (c *cli) named(text string) string {
	if c.plugin {
		return inPlugin(text)
	}
	return text
}

func writeSummaries(w io.Writer, list []nodeSummary) error {
	g := &table.Grid{Heading: []string{"NODE", "VERSION", "READY", "BGP", "ROUTES", "POLICY", "NOTICES"}}
	for _, s := range list {
		if !s.Answered {
			g.Add(s.Node, "-", "unknown", "-", "-", "-", "-")
			continue
		}
		notices := "-"
		if s.Notices > 0 {
			notices = utoa(s.Notices)
		}
		g.Add(s.Node, dash(s.Version), map[bool]string{true: "yes", false: "NO"}[s.Ready], s.sessions(),
			phasesText(s.Routes), s.Policy, notices)
	}
	if err := g.Write(w, true); err != nil {
		return err
	}
	for _, s := range list {
		for _, t := range s.Troubles {
			if _, err := fmt.Fprintln(w, s.Node+": "+t); err != nil {
				return err
			}
		}
	}
	return nil
}

// sessions is the state of the BGP sessions.
func (s *nodeSummary) sessions() string {
	if s.BGPOff != "" {
		return "off"
	}
	return sessionsText(s.Peers)
}

// sessionsText returns "2/3 (!)": the sessions that are up, of all.
func sessionsText(by map[string]uint32) string {
	total := sum(by)
	text := fmt.Sprintf("%d/%d", by[established], total)
	if by[established] < total {
		text += " (!)"
	}
	return text
}

// phasesText returns "409 applied, 3 failed", the good phase first.
func phasesText(by map[string]uint32) string {
	parts := []string{utoa(by[phaseDone]) + " " + phaseDone}
	for _, phase := range slices.Sorted(maps.Keys(by)) {
		if phase != phaseDone && by[phase] > 0 {
			parts = append(parts, utoa(by[phase])+" "+phase)
		}
	}
	return short(strings.Join(parts, ", "))
}
