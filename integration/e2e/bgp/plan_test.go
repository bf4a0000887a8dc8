package bgp

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"google.golang.org/grpc"

	"github.com/manxnet/manx/integration/e2e/world"
	"github.com/manxnet/manx/integration/lab"
	"github.com/manxnet/manx/plan"
	manxv1 "github.com/manxnet/manx/proto/manx/v1"
)

// testPlan dumps the datastore to files, plans each node from them and compares with the daemons' state.
func (c *cluster) testPlan(t *testing.T) {
	c.Settled(t)
	dir := t.TempDir()
	for _, kind := range []string{"nodes", "ippools", "bgpconfigurations", "bgppeers", "bgpfilters",
		"workloadendpoints", "blockaffinities"} {
		args := []string{"get", kind, "-o", "yaml"}
		if kind == "workloadendpoints" {
			args = append(args, "-A")
		}
		out, err := c.N1.Manxctl(args...)
		must(t, err)
		must(t, os.WriteFile(filepath.Join(dir, kind+".yaml"), []byte(out), 0o600))
	}
	plans := map[string]plan.Plan{}
	everybodys := map[string]bool{}
	for _, n := range c.Nodes {
		var p plan.Plan
		out, err := n.Manxctl("plan", "--node", n.Name, "-f", dir, "-o", "json")
		must(t, err)
		must(t, json.Unmarshal([]byte(out), &p))
		plans[n.Name] = p
		for _, o := range p.BGP.Originated {
			everybodys[o.Prefix] = true
		}
	}
	for _, n := range c.Nodes {
		p := plans[n.Name]
		if len(p.BGP.Sessions) < 2 || len(p.BGP.Originated) == 0 {
			t.Errorf("%s: the plan holds too little: %+v", n.Name, p)
		}
		var have, want []string
		for _, s := range world.Peers(t, n) {
			r, err := world.Call(t, n, manxv1.ManxClient.GetPeer, &manxv1.GetPeerRequest{Address: s.GetAddress()})
			must(t, err)
			have = append(have, liveSession(r.GetPeer()))
		}
		for _, s := range p.BGP.Sessions {
			want = append(want, plannedSession(s))
		}
		slices.Sort(have)
		slices.Sort(want)
		if !slices.Equal(have, want) {
			t.Errorf("%s: the daemon has the sessions\n%q\nthe plan\n%q", n.Name, have, want)
		}
		for _, s := range p.BGP.Sessions {
			eventually(t, func() error { return sameExports(t, n, s, p.BGP.Exports[s.Address], everybodys) })
		}
	}
}

// liveSession and plannedSession return the same text for the same session.
func liveSession(p *manxv1.Peer) string {
	w := p.GetWanted()
	return fmt.Sprint(p.GetAddress(), " ", p.GetPort(), " ", p.GetType(), p.GetLocalAs(), p.GetPeerAs(), p.GetPassive(),
		w.GetSource(), p.GetPassword(), p.GetRequestedBy(),
		w.GetMultihopTtl(), w.GetTtlSecurity(), w.GetReflectorClient(), w.GetRestartSeconds(), w.GetAllowOwnAs(),
		w.GetNextHop(), w.GetFilters())
}

func plannedSession(s plan.Session) string {
	return fmt.Sprint(s.Address, " ", s.Port, " ", s.Type, s.LocalAS, s.PeerAS, s.Passive, s.SourceAddress, s.Password,
		s.From,
		s.MultihopTTL, s.TTLSecurity, s.ReflectorClient, s.RestartSeconds, s.AllowOwnAS, s.NextHop, s.Filters)
}

// sameExports compares the routes sent to a peer with the plan. Nodes pass on learned routes to routers, but not to
// each other.
func sameExports(t *testing.T, n *lab.Node, s plan.Session, want []string, everybodys map[string]bool) error {
	routes := func(m manxv1.ManxClient, ctx context.Context, r *manxv1.ListPeerRoutesRequest, _ ...grpc.CallOption) (
		*manxv1.ListPeerRoutesResponse, error) {
		return manxv1.PeerRoutes(ctx, m, r)
	}
	r, err := world.Call(t, n, routes, &manxv1.ListPeerRoutesRequest{Direction: "advertised", Peer: s.Address})
	if err != nil {
		return err
	}
	sent := map[string]bool{}
	for _, x := range r.GetRoutes() {
		if x.GetAccepted() {
			sent[x.GetPrefix()] = true
		}
	}
	for _, p := range want {
		if !sent[p] {
			return fmt.Errorf("%s does not send %s to %s, as it should: %v", n.Name, p, s.Address,
				slices.Sorted(maps.Keys(sent)))
		}
		delete(sent, p)
	}
	for p := range sent {
		if s.LocalAS == s.PeerAS || !everybodys[p] {
			return fmt.Errorf("%s sends %s to %s, which is in no plan", n.Name, p, s.Address)
		}
	}
	return nil
}
