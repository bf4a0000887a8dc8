package main_test

import (
	"context"
	"testing"

	"google.golang.org/protobuf/proto"

	manxv1 "github.com/manxnet/manx/proto/manx/v1"
)

func (d *playedDaemon) ListPolicies(
	_ context.Context, r *manxv1.ListPoliciesRequest,
) (*manxv1.ListPoliciesResponse, error) {
	all := []*manxv1.Policy{
		{Kind: "GlobalNetworkPolicy", Name: "security.pass", Tier: "security", Order: "none", Endpoints: 12,
			Packets: proto.Uint64(7), Bytes: proto.Uint64(420),
			Options: []string{"applyOnForward"}, Selector: "app == 'db'",
			Problem:  "spec.selector is wrong in the newest version",
			Selected: []string{"a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l"},
			Rules: []*manxv1.PolicyRule{
				{Direction: "ingress", Number: 1, Text: "Deny IPv4 from 192.0.2.0/24", Packets: proto.Uint64(7),
					Bytes: proto.Uint64(420)},
				{Direction: "ingress", Number: 2, Text: "Pass all"},
				{Direction: "egress", Number: 1, Text: "Allow http", Never: "there is no layer 7 here"},
			}},
		{Kind: "NetworkPolicy", Namespace: "shop", Name: "knp.default.db", Tier: "default", Order: "1000", Endpoints: 1,
			Rules: []*manxv1.PolicyRule{{Direction: "ingress", Number: 1, Text: "Allow all"}}},
		{Kind: "StagedNetworkPolicy", Namespace: "shop", Name: "later", Tier: "default", Order: "none", Staged: true},
	}
	out := &manxv1.ListPoliciesResponse{}
	for _, p := range all {
		if r.GetName() == "" || r.GetName() == p.GetName() && r.GetNamespace() == p.GetNamespace() &&
			r.GetKind() == p.GetKind() {
			out.Policies = append(out.Policies, p)
		}
	}
	return out, nil
}

// TestPolicies pins the output about policies. "policies" with a namespace is short for the networkpolicies of the
// datastore.
func TestPolicies(t *testing.T) {
	s, _ := newPlayedDaemon(t)
	for name, args := range map[string][]string{
		"policies": {"get", "policies"}, "policies-wide": {"get", "policies", "-o", "wide", "--no-headers"},
		"describe-policy": {"describe", "gnp", "security.pass"}, "describe-policy-uncounted": {
			"describe", "np", "knp.default.db", "-n", "shop"},
		"describe-policy-staged": {"describe", "StagedNetworkPolicy", "later", "-n", "shop"},
	} {
		r := s.runWithDaemon(args...)
		if r.code != 0 || r.err != "" {
			t.Errorf("%s: exit code %d, %s", name, r.code, r.err)
		}
		golden(t, name, r.out)
	}
	s.runWithDaemon("describe", "np", "nothing").want(t, 1, "", "there is no NetworkPolicy default/nothing that "+
		"manxd knows")
	s.runWithDaemon("get", "policies", "-n", "shop", "--etcd-endpoints", "http://127.0.0.1:1", "--no-headers").want(t,
		1, "",
		"127.0.0.1:1")
	s.run("get", "policies", "--socket", "/nonexistent/s").want(t, 1, "", "manxctl get networkpolicies -A")
}
