package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/manxnet/manx/datastore/table"
	manxv1 "github.com/manxnet/manx/proto/manx/v1"
)

// isPeers reports whether the word is for the sessions of this node, which are no objects of the datastore.
func isPeers(word string) bool {
	w := strings.ToLower(word)
	return w == "peers" || w == "peer"
}

// getPeers prints the BGP sessions of this node, or those named.
func (c *cli) getPeers(ctx context.Context, o getOptions, names []string) error {
	if err := o.forPeers(); err != nil {
		return err
	}
	switch {
	case o.watch && len(names) > 0:
		return usagef("-w is for all peers")
	case o.watch && (o.format == table.YAML || o.format == table.Name):
		return usagef("-w goes with -o table, wide or json")
	case o.watch:
		return c.watchPeers(ctx, o)
	}
	answer := &manxv1.ListPeersResponse{}
	err := c.daemon(ctx, func(ctx context.Context, m manxv1.ManxClient) (err error) {
		if len(names) == 0 {
			answer, err = m.ListPeers(ctx, &manxv1.ListPeersRequest{})
			return err
		}
		for _, name := range names {
			found, err := findPeers(ctx, m, name)
			if err != nil {
				return err
			}
			answer.Peers = append(answer.Peers, found.peers...)
		}
		return nil
	})
	if away := (*noDaemonError)(nil); o.down && errors.As(err, &away) {
		return &exitErr{exitUnhealthy, err.Error()}
	}
	if err != nil {
		return err
	}
	if !o.down {
		return c.printSessions(o, answer)
	}
	answer.Peers = slices.DeleteFunc(answer.GetPeers(), func(p *manxv1.Peer) bool {
		return p.GetState() == established
	})
	if err := c.printSessions(o, answer); err != nil || len(answer.GetPeers()) == 0 {
		return err
	}
	return &exitErr{exitUnhealthy, ""}
}

// forPeers refuses flags for objects of the datastore.
func (o getOptions) forPeers() error {
	if len(o.files.paths) > 0 || o.namespaces.given() || o.selector != "" || o.showLabels {
		return usagef("peers are the BGP sessions of this node: -f, -n, -A, -l and --show-labels are for objects of " +
			"the datastore")
	}
	return nil
}

func (c *cli) printSessions(o getOptions, answer *manxv1.ListPeersResponse) error {
	switch o.format {
	case table.JSON, table.YAML:
		return c.printStructured(o.format, answer)
	case table.Name:
		for _, p := range answer.GetPeers() {
			if _, err := fmt.Fprintln(c.out, "peer/"+p.GetAddress()); err != nil {
				return err
			}
		}
		return nil
	}
	if len(answer.GetPeers()) == 0 {
		fmt.Fprintln(c.err, "No peers found.") //nolint:errcheck // nowhere to report it
		return nil
	}
	return c.colorPhases(peerGrid(answer.GetPeers(), o.format == table.Wide, time.Now())).Write(c.out, !o.noHeaders)
}

// peerGrid returns the table of sessions; its columns are the same for all sessions.
func peerGrid(peers []*manxv1.Peer, wide bool, now time.Time) *table.Grid {
	g := &table.Grid{Heading: []string{"PEER", "TYPE", "AS", "PHASE", "SINCE", "FLAPS", "RECEIVED", "ACCEPTED"}}
	if wide {
		g.Heading = append(g.Heading, "LOCAL-AS", "STATE", "BFD", "SOURCE", "NEXT-ATTEMPT", "LAST-ERROR-AT",
			"LAST-ERROR-BY", "LAST-ERROR", "REQUESTED-BY")
	}
	g.Heading = append(g.Heading, "REASON")
	for _, p := range peers {
		n := p.GetPrefixes()
		row := []string{peerName(p), p.GetType(), utoa(p.GetPeerAs()), p.GetPhase(), ago(p.GetSinceUnixMs(), now),
			fmt.Sprint(p.GetFlaps()), fmt.Sprint(n.GetReceived()), fmt.Sprint(n.GetAccepted())}
		if wide {
			row = append(row, utoa(p.GetLocalAs()), p.GetState(), dash(p.GetBfd().GetState()), dash(p.GetSource()),
				dash(until(p.GetNextAttemptUnixMs(), now)),
				dash(clock(p.GetLastErrorAtUnixMs(), now)), dash(p.GetLastErrorBy()), dash(p.GetLastError()),
				dash(strings.Join(p.GetRequestedBy(), ",")))
		}
		g.Add(append(row, strings.Join(present(p.GetReason(), p.GetWarning()), "; "))...)
	}
	return g
}

func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// until formats the time left. 0 is never.
func until(unixMs int64, now time.Time) string {
	if unixMs == 0 {
		return ""
	}
	return duration(time.UnixMilli(unixMs).Sub(now) + 999*time.Millisecond)
}

// watchPeers prints all sessions and then each one that changes, until it is interrupted.
func (c *cli) watchPeers(ctx context.Context, o getOptions) error {
	var first []*manxv1.Peer
	synced := false
	return stream(ctx, c, watching(&manxv1.WatchRequest{Peers: true}), func(e *manxv1.WatchResponse) error {
		switch changed := e.GetPeer() != nil || e.GetPeerGone() != ""; {
		case changed && o.format == table.JSON:
			return writeLine(c.out, table.JSON, e, nil)
		case o.format == table.JSON:
		case e.GetSynced():
			synced = true
			return peerGrid(first, o.format == table.Wide, time.Now()).Write(c.out, !o.noHeaders)
		case e.GetPeer() != nil && !synced:
			first = append(first, e.GetPeer())
		case changed:
			return writePeerChange(c.out, e, o.format == table.Wide)
		}
		return nil
	})
}

func writePeerChange(w io.Writer, e *manxv1.WatchResponse, wide bool) error {
	if p := e.GetPeer(); p != nil {
		return peerGrid([]*manxv1.Peer{p}, wide, time.Now()).Write(w, false)
	}
	g := peerGrid(nil, wide, time.Now())
	row := slices.Repeat([]string{"-"}, len(g.Heading))
	row[0], row[len(row)-1] = e.GetPeerGone(), "not wanted any more"
	g.Add(row...)
	return g.Write(w, false)
}
