package main_test

import (
	"context"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	manxv1 "github.com/manxnet/manx/proto/manx/v1"
)

func (d *playedDaemon) ResetPeer(_ context.Context, r *manxv1.ResetPeerRequest) (*manxv1.ResetPeerResponse, error) {
	for _, p := range d.peers {
		if p.GetAddress() != r.GetPeer() {
			continue
		}
		if p.GetState() != "Established" {
			return nil, status.Errorf(codes.FailedPrecondition,
				"bgp session with %s is not established; there is nothing to reset", r.GetPeer())
		}
		return &manxv1.ResetPeerResponse{Peer: r.GetPeer()}, nil
	}
	return nil, status.Errorf(codes.NotFound, "there is no session with %s. The sessions are with 10.0.0.2, 192.0.2.1",
		r.GetPeer())
}

func (d *playedDaemon) ClearPeer(_ context.Context, r *manxv1.ClearPeerRequest) (*manxv1.ClearPeerResponse, error) {
	return &manxv1.ClearPeerResponse{Peer: r.GetPeer(), Flaps: 3, Restarts: 1}, nil
}

func (d *playedDaemon) Drain(_ context.Context, r *manxv1.DrainRequest) (*manxv1.DrainResponse, error) {
	if r.GetNode() != "" && r.GetNode() != "node-1" {
		return nil, status.Errorf(codes.InvalidArgument,
			"node = %q: this is the daemon of node %q, which drains no other", r.GetNode(), "node-1")
	}
	if len(r.GetPeers()) > 0 {
		before, err := d.movePeer(r.GetPeers()[0], "drained")
		return &manxv1.DrainResponse{Before: before, Peers: r.GetPeers()}, err
	}
	before := d.status.GetDrain()
	d.status.Drain = "withdrawn"
	return &manxv1.DrainResponse{Before: map[string]string{"withdrawn": "drained"}[before]}, nil
}

// movePeer sets the phase of a peer's drain, and returns the one before.
func (d *playedDaemon) movePeer(address, phase string) (before string, err error) {
	for _, p := range d.peers {
		if p.GetAddress() == address {
			before, p.Drain = p.GetDrain(), phase
			return before, nil
		}
	}
	return "", status.Errorf(codes.NotFound, "there is no peer %q: the peers are 10.0.0.2 (mesh)", address)
}

func (d *playedDaemon) Undrain(_ context.Context, r *manxv1.UndrainRequest) (*manxv1.UndrainResponse, error) {
	if len(r.GetPeers()) > 0 {
		before, err := d.movePeer(r.GetPeers()[0], "")
		return &manxv1.UndrainResponse{Before: before, Peers: r.GetPeers()}, err
	}
	before := d.status.GetDrain()
	d.status.Drain = ""
	return &manxv1.UndrainResponse{Before: map[string]string{"withdrawn": "drained"}[before]}, nil
}

func (d *playedDaemon) Retry(context.Context, *manxv1.RetryRequest) (*manxv1.RetryResponse, error) {
	return d.retried, nil
}

func TestReset(t *testing.T) {
	s, _ := newPlayedDaemon(t)
	s.runWithDaemon("reset", "peer", "10.0.0.2", "--soft-in").want(t, 0, "peer/10.0.0.2 reset (soft-in)\n")
	s.runWithDaemon("reset", "peer/10.0.0.2", "--hard").want(t, 0, "peer/10.0.0.2 reset (hard)\n")
	s.runWithDaemon("reset", "peer", "192.0.2.1", "--hard").want(t, 1, "",
		"Error: bgp session with 192.0.2.1 is not established")
	s.runWithDaemon("reset", "peer", "192.0.2.9", "--soft").want(t, 1, "", "The sessions are with 10.0.0.2, 192.0.2.1")
	for _, c := range []struct {
		args string
		text string
	}{
		{"peer 10.0.0.2", "choose --soft, --soft-in, --soft-out or --hard"},
		{"peer 10.0.0.2 --soft --hard", "use one of"},
		{"peer --hard", "wants one peer"},
		{"peer 10.0.0.2 192.0.2.1 --hard", "wants one peer"},
		{"--hard", `wants "peer" and a name`},
		{"route 10.0.0.2 --hard", `"route": manxctl reset is for peers`},
		{"peer/ --hard", "is for peers"},
		{"peer 10.0.0.2 --softly", "unknown flag: --softly"},
	} {
		s.runWithDaemon(append([]string{"reset"}, strings.Fields(c.args)...)...).want(t, 2, "", c.text,
			"See 'manxctl reset --help'.")
	}
	help := s.runWithDaemon("reset", "--help")
	for _, part := range []string{"--soft-in ", "--soft-out ", "--hard ",
		"peer: traffic without another path is lost", "Traffic\n              continues",
		"Only an established session"} {
		if !strings.Contains(help.out, part) {
			t.Errorf("the help lacks %q:\n%s", part, help.out)
		}
	}
	offers := s.run("__complete", "--socket", strings.TrimPrefix(s.env[0], "MANX_TEST_SOCKET="), "reset", "peer", "")
	for _, a := range []string{"10.0.0.2\tmesh, Established", "192.0.2.1\tglobal, Failed", "2001:db8::1"} {
		if !strings.Contains(offers.out, a) {
			t.Errorf("completion does not offer %q:\n%s", a, offers.out)
		}
	}
}

func TestClear(t *testing.T) {
	s, _ := newPlayedDaemon(t)
	s.runWithDaemon("clear", "peer", "10.0.0.2").want(t, 0, "peer/10.0.0.2 cleared (flaps: 3, graceful restarts: 1)\n")
	if r := s.runWithDaemon("clear", "peers", "--all"); r.code != 0 || strings.Count(r.out, "cleared") != 3 {
		t.Errorf("all: %+v", r)
	}
	s.runWithDaemon("clear", "peers").want(t, 2, "", "wants peers, or --all")
	s.runWithDaemon("clear", "peers", "10.0.0.2", "--all").want(t, 2, "", "either names or --all")
	s.runWithDaemon("clear", "routes", "--all").want(t, 2, "", "is for peers")
}

func TestRetryCommand(t *testing.T) {
	s, d := newPlayedDaemon(t)
	d.change(func() {
		d.retried = &manxv1.RetryResponse{Parts: []*manxv1.RetriedPart{{Name: "routes", Failed: 2}, {Name: "policy"}}}
	})
	if r := s.runWithDaemon("retry"); r.code != 0 || r.err != "" || !strings.Contains(r.out, "routes   2        0") {
		t.Errorf("nothing fails any more: %+v", r)
	}
	d.change(func() {
		d.retried.Parts[0].Failing, d.retried.Parts[0].Reason = 1, "add route: operation not permitted"
	})
	if r := s.runWithDaemon("retry"); r.code != 4 || !strings.Contains(r.out, "operation not permitted") {
		t.Errorf("one still fails: %+v", r)
	}
	if r := s.runWithDaemon("retry", "-o", "json"); r.code != 4 || !strings.Contains(r.out, `"failing": 1`) {
		t.Errorf("as JSON: %+v", r)
	}
	s.runWithDaemon("retry", "routes").want(t, 2, "", `manxctl retry takes no argument: "routes"`)
	s.runWithDaemon("retry", "-o", "wide").want(t, 2, "", "output format")
}

func TestDrainThroughTheDaemon(t *testing.T) {
	s, d := newPlayedDaemon(t)
	s.runWithDaemon("node", "drain").want(t, 0, "node node-1: drained: its routes are withdrawn\n")
	s.runWithDaemon("node", "drain").want(t, 0, "the node is drained already\n")
	s.runWithDaemon("node", "undrain", "--no-wait").want(t, 0, "the node is to come back\n")
	s.runWithDaemon("node", "undrain").want(t, 0, "the node is in service already\n")
	d.change(func() {
		if d.status.GetDrain() != "" {
			t.Errorf("drain is %q", d.status.GetDrain())
		}
	})
	s.run("node", "drain").want(t, 2, "", "wants the name of one node")
	s.runWithDaemon("node", "drain", "a", "b").want(t, 2, "", "wants the name of one node")
}

func TestDrainOfAPeerThroughTheDaemon(t *testing.T) {
	s, _ := newPlayedDaemon(t)
	s.runWithDaemon("node", "drain", "--peer", "10.0.0.2").want(t, 0,
		"peer 10.0.0.2: drained: its routes are the last choice\n")
	s.runWithDaemon("node", "drain", "--peer", "10.0.0.2").want(t, 0, "peer 10.0.0.2: drained already\n")
	if r := s.runWithDaemon("describe", "peer", "10.0.0.2"); !strings.Contains(r.out, "drained: its routes") {
		t.Errorf("describe: %+v", r)
	}
	s.runWithDaemon("node", "undrain", "--peer", "10.0.0.2").want(t, 0, "peer 10.0.0.2: in service\n")
	s.runWithDaemon("node", "undrain", "--peer", "10.0.0.2").want(t, 0, "peer 10.0.0.2: in service already\n")
	s.runWithDaemon("node", "drain", "--peer", "10.0.0.2", "--no-wait").want(t, 0, "peer 10.0.0.2 is to be drained\n")
	s.runWithDaemon("node", "undrain", "--peer", "10.0.0.2", "--no-wait").want(t, 0,
		"peer 10.0.0.2 is to come back\n")
	s.runWithDaemon("node", "drain", "--peer", "tor-9").want(t, 1, "",
		`there is no peer "tor-9": the peers are 10.0.0.2 (mesh)`)
	s.runWithDaemon("node", "drain", "--peer", "10.0.0.2", "--timeout", "1s").want(t, 2, "",
		"--timeout does not go with --peer")
	s.run("node", "drain", "--peer", "10.0.0.2").want(t, 2, "", "wants the name of one node")
}

func TestServerFlags(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "none")
	files := []string{"--ca-file", missing, "--cert-file", missing, "--key-file", missing}
	for _, c := range []struct {
		args []string
		env  []string
		code int
		text string
	}{
		{[]string{"--server", "node-1"}, nil, 2, `--server "node-1": want HOST:PORT`},
		{[]string{"--server", "node-1:9443"}, nil, 2, "--server needs --ca-file"},
		{[]string{"--ca-file", "x"}, nil, 2, "go with --server"},
		{append([]string{"--server", "node-1:9443", "--socket", "/x"}, files...), nil, 2,
			"--socket is for the local manxd"},
		{append([]string{"--server", "node-1:9443"}, files...), nil, 1, "--ca-file: open " + missing},
		{nil, []string{"MANXCTL_SERVER=node-1:9443"}, 2, "--server needs --ca-file"},
		{[]string{"--socket", missing}, []string{"MANXCTL_SERVER=node-1:9443"}, 4, "there is no such socket"},
	} {
		shell{t, c.env}.run(append([]string{"status"}, c.args...)...).want(t, c.code, "", c.text)
	}
}

// A node whose daemon has noted that it speaks no BGP is not drained: nothing is requested, and nothing waited for.
func TestDrainWithoutBGP(t *testing.T) {
	s, _ := newShell(t)
	s.mustPipe(`{apiVersion: projectcalico.org/v3, kind: Node, metadata: {name: n1, annotations: {
		manx.io/bgp-off: BGP is off (here)}}, spec: {bgp: {ipv4Address: 192.0.2.1/24}}}`, "apply", "-f", "-")
	const off = "node n1: BGP is off (here)"
	s.run("node", "drain", "n1").want(t, 1, "", off)
	s.run("node", "drain", "n1", "--no-wait").want(t, 1, "", off)
	s.run("node", "drain", "n1", "--peer", "192.0.2.9").want(t, 1, "", off)
	if out := s.must("get", "node", "n1", "-o", "yaml"); strings.Contains(out, "manx.io/drain") {
		t.Errorf("a drain is requested:\n%s", out)
	}
	s.run("node", "undrain", "n1").want(t, 0, "node n1 is in service already\n")
	s.run("node", "drain", "n2").want(t, 1, "", "n2")
}
