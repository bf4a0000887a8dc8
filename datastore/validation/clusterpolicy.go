package validation

import (
	"fmt"

	"github.com/manxnet/manx/datastore/model"
)

const (
	maxClusterEntries  = 25
	maxClusterPriority = 1000
	maxClusterName     = 100
)

// checkClusterNetworkPolicy applies the rules of the policy's CRD. Only an unknown tier or subject makes the policy
// unusable. The enforcing program handles an unusable rule, and must then deny its traffic.
func checkClusterNetworkPolicy(c *check, v *model.ClusterNetworkPolicy) {
	s := v.Spec
	if s.Tier != model.ClusterPolicyAdmin && s.Tier != model.ClusterPolicyBaseline {
		c.broken("spec.tier", s.Tier, "must be %s or %s", model.ClusterPolicyAdmin, model.ClusterPolicyBaseline)
	}
	c.failIf(s.Priority < 0 || s.Priority > maxClusterPriority, "spec.priority", s.Priority,
		fmt.Sprintf("must be from 0 to %d", maxClusterPriority))
	if (s.Subject.Namespaces == nil) == (s.Subject.Pods == nil) {
		c.broken("spec.subject", "", "must have exactly one of namespaces and pods")
	}
	c.atMost("spec.ingress", len(s.Ingress))
	c.atMost("spec.egress", len(s.Egress))
	for i, r := range s.Ingress {
		field := at("spec.ingress", i)
		checkClusterRule(c, field, r.Name, r.Action, r.Protocols)
		checkClusterPeers(c, field+".from", r.From, true)
	}
	for i, r := range s.Egress {
		field := at("spec.egress", i)
		checkClusterRule(c, field, r.Name, r.Action, r.Protocols)
		checkClusterPeers(c, field+".to", r.To, false)
	}
}

func (c *check) atMost(field string, n int) {
	c.failIf(n > maxClusterEntries, field, n, fmt.Sprintf("can have at most %d entries", maxClusterEntries))
}

func checkClusterRule(c *check, field, name, action string, protocols []model.ClusterPolicyProtocol) {
	c.failIf(len(name) > maxClusterName, field+".name", name, fmt.Sprintf("must have at most %d characters",
		maxClusterName))
	if action == "" {
		c.fail(field+".action", action, "is required: %s, %s or %s", model.ClusterPolicyAccept, model.ClusterPolicyDeny,
			model.ClusterPolicyPass)
	}
	enum(c, field+".action", action, model.ClusterPolicyAccept, model.ClusterPolicyDeny, model.ClusterPolicyPass)
	c.atMost(field+".protocols", len(protocols))
	for i, p := range protocols {
		f := at(field+".protocols", i)
		set := 0
		for _, x := range []struct {
			name  string
			ports *model.ClusterPolicyPorts
		}{{"tcp", p.TCP}, {"udp", p.UDP}, {"sctp", p.SCTP}} {
			if x.ports == nil {
				continue
			}
			set++
			checkClusterPort(c, f+"."+x.name+".destinationPort", x.ports.DestinationPort)
		}
		if p.DestinationNamedPort != "" {
			set++
		}
		c.failIf(set != 1, f, set, "must have exactly one of tcp, udp, sctp and destinationNamedPort")
	}
}

func checkClusterPort(c *check, field string, p *model.ClusterPolicyPort) {
	switch {
	case p == nil:
	case (p.Number == 0) == (p.Range == nil):
		c.fail(field, "", "must have exactly one of number and range")
	case p.Range == nil:
		c.portNumber(field+".number", p.Number)
	default:
		c.portNumber(field+".range.start", p.Range.Start)
		c.portNumber(field+".range.end", p.Range.End)
		c.failIf(p.Range.Start >= p.Range.End, field+".range.start", p.Range.Start,
			fmt.Sprintf("must be below end, which is %d", p.Range.End))
	}
}

func checkClusterPeers(c *check, field string, peers []model.ClusterPolicyPeer, ingress bool) {
	c.failIf(len(peers) == 0, field, "", "is required: at least one peer")
	c.atMost(field, len(peers))
	for i, p := range peers {
		f := at(field, i)
		set := 0
		for _, is := range []bool{p.Namespaces != nil, p.Pods != nil, len(p.Networks) > 0, p.Nodes != nil,
			len(p.DomainNames) > 0} {
			if is {
				set++
			}
		}
		c.failIf(set != 1, f, set, "must have exactly one kind of peer")
		c.failIf(ingress && (len(p.Networks) > 0 || p.Nodes != nil || len(p.DomainNames) > 0), f, "",
			"only namespaces and pods can be the peers of an ingress rule")
		c.atMost(f+".networks", len(p.Networks))
		for j, n := range p.Networks {
			c.network(at(f+".networks", j), n)
		}
	}
}
