package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/manxnet/manx/cmd/manxctl/table"
	manxv1 "github.com/manxnet/manx/proto/manx/v1"
)

func (c *cli) nodePeerCommand() *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "peer ADDRESS",
		Short: "Show all that is known of one BGP session",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			format, err := table.ParseFormat(output, table.Table, table.JSON, table.YAML)
			if err != nil {
				return usagef("%v", err)
			}
			var answer *manxv1.GetPeerResponse
			err = c.daemon(cmd.Context(), func(ctx context.Context, m manxv1.ManxClient) (err error) {
				answer, err = m.GetPeer(ctx, &manxv1.GetPeerRequest{Address: args[0]})
				return err
			})
			if err != nil {
				return err
			}
			if format != table.Table {
				return c.printStructured(format, answer.GetPeer())
			}
			return writePeer(c.out, answer.GetPeer(), time.Now())
		},
	}
	outputFlag(cmd, &output, table.Table, table.JSON, table.YAML)
	return cmd
}

func writePeer(w io.Writer, p *manxv1.Peer, now time.Time) error {
	var b strings.Builder
	line := func(name, format string, args ...any) {
		if text := fmt.Sprintf(format, args...); text != "" {
			fmt.Fprintf(&b, "%-16s%s\n", name+":", text)
		}
	}
	line("Peer", "%s, AS %d", peerName(p), p.GetPeerAs())
	line("Type", "%s", peerType(p.GetType()))
	line("Requested by", "%s", strings.Join(p.GetRequestedBy(), ", "))
	line("Local", "%s", strings.Join(present(p.GetSource(), fmt.Sprintf("AS %d", p.GetLocalAs()), passiveText(p)), ", "))
	line("Password", "%s", p.GetPassword())
	line("State", "%s (%s) for %s", p.GetState(), p.GetPhase(), ago(p.GetSinceUnixMs(), now))
	line("Reason", "%s", p.GetReason())
	line("Warning", "%s", p.GetWarning())
	line("Flaps", "%d", p.GetFlaps())
	if p.GetLastError() != "" {
		line("Last error", "%s, %s ago", p.GetLastError(), ago(p.GetLastErrorAtUnixMs(), now))
	}
	if n := p.GetNegotiated(); n != nil {
		line("Negotiated", "%s, hold time %d s, keepalive %d s, peer's router ID %s", n.GetFamily(), n.GetHoldSeconds(), n.GetKeepaliveSeconds(), n.GetRouterId())
		restart := "not announced by the peer"
		if n.GetGracefulRestart() {
			restart = fmt.Sprintf("the peer keeps routes for %d s", n.GetRestartSeconds())
		}
		line("Restart", "%s", restart)
		line("Capabilities", "%s", strings.Join(n.GetCapabilities(), ", "))
	}
	n := p.GetPrefixes()
	line("Prefixes", "%d received, %d accepted, %d advertised", n.GetReceived(), n.GetAccepted(), n.GetAdvertised())
	_, err := io.WriteString(w, b.String())
	return err
}

func passiveText(p *manxv1.Peer) string {
	if p.GetPassive() {
		return "waits for the peer to connect"
	}
	return ""
}
