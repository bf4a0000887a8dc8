package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/manxnet/manx/datastore/table"
	manxv1 "github.com/manxnet/manx/proto/manx/v1"
)

func (c *cli) statusCommand() *cobra.Command {
	var output string
	var allSessions bool
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show the health of this node",
		Long: "Show the health of this node, from the local manxd.\n\n" +
			"The exit code is 4 if the node is not ready, manxd does not answer, a route or endpoint failed, or all " +
			"BGP sessions\n" +
			"are down. A session that is down is listed, but does not change the exit code without --all-sessions.",
		Example: "  manxctl status\n  manxctl status --all-sessions",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			format, err := table.ParseFormat(output, table.Table, table.Wide, table.JSON, table.YAML)
			if err != nil {
				return usagef("%v", err)
			}
			return c.status(cmd.Context(), format, allSessions)
		},
	}
	outputFlag(cmd, &output, table.Table, table.Wide, table.JSON, table.YAML)
	cmd.Flags().BoolVar(&allSessions, "all-sessions", false, "exit code 4 if any BGP session is down")
	return cmd
}

func (c *cli) status(ctx context.Context, format table.Format, allSessions bool) error {
	s, peers, notices, err := c.queryStatus(ctx)
	var none *noDaemonError
	if errors.As(err, &none) {
		return &exitErr{exitUnhealthy, err.Error()}
	}
	if err != nil {
		return err
	}
	if format == table.Table || format == table.Wide {
		var b strings.Builder
		err = writeStatus(&b, s, peers, notices, time.Now())
		if err == nil && format == table.Wide {
			b.WriteByte('\n')
			err = kindGrid(s.GetDatastore().GetKinds(), time.Now()).Write(&b, true)
		}
		if err == nil {
			_, err = io.WriteString(c.out, c.colorVerdicts(b.String()))
		}
	} else {
		err = table.Value(c.out, format, statusData(s, peers, notices))
	}
	if err == nil && (len(unhealthy(s)) > 0 || allSessions && len(downSessions(peers)) > 0) {
		return &exitErr{exitUnhealthy, ""}
	}
	return err
}

// statusData is the output of "status -o json": the daemon's status, and the sessions and notices that the text shows.
func statusData(s *manxv1.GetStatusResponse, peers []*manxv1.Peer, notices []*manxv1.Notice) any {
	sessions, texts := []any{}, []any{}
	for _, p := range peers {
		if troubled(p) {
			sessions = append(sessions, view(p))
		}
	}
	for _, n := range notices {
		texts = append(texts, view(n))
	}
	return append(viewMessage(s.ProtoReflect()).(fields), field{"troubledSessions", sessions},
		field{"noticeList", texts})
}

// troubled reports whether a session is not up, or has a warning.
func troubled(p *manxv1.Peer) bool { return p.GetState() != established || p.GetWarning() != "" }

func (c *cli) queryStatus(
	ctx context.Context,
) (s *manxv1.GetStatusResponse, peers []*manxv1.Peer, notices []*manxv1.Notice, err error) {
	err = c.daemon(ctx, func(ctx context.Context, m manxv1.ManxClient) error {
		if s, err = m.GetStatus(ctx, &manxv1.GetStatusRequest{}); err != nil {
			return err
		}
		p, err := listPeersOf(ctx, m, s)
		if err != nil {
			return err
		}
		n, err := m.ListNotices(ctx, &manxv1.ListNoticesRequest{})
		peers, notices = p.GetPeers(), n.GetNotices()
		return err
	})
	return s, peers, notices, err
}

// listPeersOf lists the sessions of the node with a status: none without BGP.
func listPeersOf(ctx context.Context, m manxv1.ManxClient, s *manxv1.GetStatusResponse) (*manxv1.ListPeersResponse,
	error) {
	if s.GetBgpOff() != "" {
		return &manxv1.ListPeersResponse{}, nil
	}
	return m.ListPeers(ctx, &manxv1.ListPeersRequest{})
}

const established = "Established"

// unhealthy lists the problems of the node itself.
func unhealthy(s *manxv1.GetStatusResponse) []string {
	var wrong []string
	for _, c := range s.GetChecks() {
		if !c.GetOk() {
			wrong = append(wrong, c.GetName()+": "+c.GetReason())
		}
	}
	if !s.GetReady() && len(wrong) == 0 {
		wrong = append(wrong, "not ready")
	}
	if n := s.GetRoutes()[phaseFailed]; n > 0 {
		wrong = append(wrong, fmt.Sprintf("%s failed: see manxctl routes --phase %s", plural(n, "route"), phaseFailed))
	}
	if n := s.GetEndpoints()[phaseFailed]; n > 0 {
		wrong = append(wrong, fmt.Sprintf("%s failed: see manxctl node endpoints", plural(n, "workload endpoint")))
	}
	if total := sum(s.GetPeers()); total > 0 && s.GetPeers()[established] == 0 {
		wrong = append(wrong, fmt.Sprintf("none of %d BGP sessions is up", total))
	}
	return wrong
}

func sum(counts map[string]uint32) uint32 {
	var n uint32
	for _, c := range counts {
		n += c
	}
	return n
}

// writeStatus prints the summary for people.
func writeStatus(
	w io.Writer, s *manxv1.GetStatusResponse, peers []*manxv1.Peer, notices []*manxv1.Notice, now time.Time,
) error {
	var b strings.Builder
	line := func(name, format string, args ...any) {
		if name != "" {
			name += ":"
		}
		table.Fprintf(&b, "%-12s%s\n", name, fmt.Sprintf(format, args...))
	}
	line("Node", "%s", nodeText(s))
	line("Version", "%s, GoBGP %s, up %s", s.GetVersion().GetManx(), s.GetVersion().GetGobgp(),
		ago(s.GetStartedUnixMs(), now))
	line("Datastore", "%s", datastoreText(s.GetDatastore(), now))
	if off := s.GetBgpOff(); off != "" {
		line("BGP", "%s", off)
	} else {
		line("BGP", "%s", counts(s.GetPeers(), established, "session"))
	}
	for _, p := range peers {
		if troubled(p) {
			line("", "%s %s for %s: %s", peerName(p), p.GetState(), ago(p.GetSinceUnixMs(), now),
				strings.Join(present(p.GetReason(), p.GetWarning()), "; "))
		}
	}
	line("Routes", "%s%s", counts(s.GetRoutes(), phaseDone, "route"),
		whyBlocked(s.GetRoutes(), "routes --phase "+phaseBlocked))
	line("Endpoints", "%s%s", counts(s.GetEndpoints(), phaseDone, "endpoint"),
		whyBlocked(s.GetEndpoints(), "node endpoints"))
	for _, n := range notices {
		line("Notice", "%s: %s", n.GetSubject(), n.GetText())
	}
	wrong := unhealthy(s)
	if len(wrong) == 0 {
		line("Health", "ok")
	}
	for _, x := range wrong {
		line("Health", "%s", x)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// nodeText returns the node's name and, once it is registered, its addresses and AS number.
func nodeText(s *manxv1.GetStatusResponse) string {
	known := present(s.GetIpv4(), s.GetIpv6())
	if s.GetAsNumber() != 0 {
		known = append(known, "AS "+strconv.FormatUint(uint64(s.GetAsNumber()), 10))
	}
	if s.GetRouterId() != "" {
		known = append(known, "router ID "+s.GetRouterId())
	}
	if len(known) == 0 {
		return s.GetNode()
	}
	return s.GetNode() + " (" + strings.Join(known, ", ") + ")"
}

// whyBlocked names the command that shows the reasons.
func whyBlocked(by map[string]uint32, command string) string {
	if by[phaseBlocked] == 0 {
		return ""
	}
	return "; why blocked: see manxctl " + command
}

func datastoreText(d *manxv1.DatastoreStatus, now time.Time) string {
	text := d.GetType() + ", "
	switch {
	case !d.GetConnected():
		text += "not connected"
	case !d.GetInSync():
		text += "not in sync yet"
	default:
		text += "in sync"
		if r := d.GetRevision(); r != 0 { // kinds with clocks of their own have none together
			text += fmt.Sprintf(" at revision %d", r)
		}
		text += ", " + plural(d.GetObjects(), "object")
	}
	if since := ago(d.GetSinceUnixMs(), now); since != "" {
		text += ", for " + since
	}
	if answered := ago(d.GetAnsweredUnixMs(), now); answered != "" {
		text += ", last answer " + answered + " ago"
	}
	if d.GetReason() != "" {
		text += ": " + d.GetReason()
	}
	if n := d.GetQuarantined(); n > 0 {
		text += fmt.Sprintf("; %s cannot be used: see manxctl node problems", plural(n, "object"))
	}
	return text
}

// kindGrid returns the table of the kinds of the datastore.
func kindGrid(kinds []*manxv1.KindStatus, now time.Time) *table.Grid {
	g := &table.Grid{Heading: []string{"KIND", "IN-SYNC", "FOR", "LAST-ANSWER", "OBJECTS", "REVISION", "SOURCE",
		"REASON"}}
	for _, k := range kinds {
		inSync := "no"
		if k.GetInSync() {
			inSync = "yes"
		}
		g.Add(k.GetKind(), inSync, dash(ago(k.GetSinceUnixMs(), now)), dash(ago(k.GetAnsweredUnixMs(), now)),
			utoa(k.GetObjects()), strconv.FormatInt(k.GetRevision(), 10), dash(k.GetSource()), k.GetReason())
	}
	return g
}

// counts formats "3 sessions: 2 Established, 1 Active", the good state first.
func counts(by map[string]uint32, good, what string) string {
	total := sum(by)
	text := plural(total, what)
	var parts []string
	states := slices.SortedFunc(maps.Keys(by), func(a, b string) int {
		if (a == good) != (b == good) {
			if a == good {
				return -1
			}
			return 1
		}
		return strings.Compare(a, b)
	})
	for _, s := range states {
		if by[s] > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", by[s], s))
		}
	}
	if len(parts) == 0 {
		return text
	}
	return text + ": " + strings.Join(parts, ", ")
}

func plural(n uint32, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

func present(words ...string) []string {
	return slices.DeleteFunc(words, func(w string) bool { return w == "" })
}
