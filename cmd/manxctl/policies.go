package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/datastore/table"
	manxv1 "github.com/manxnet/manx/proto/manx/v1"
)

// isAllPolicies reports whether get is for the daemon's state of all policies. "policies" is also a short name of
// networkpolicies: with a name, a namespace, a selector or a format of objects it selects those.
func (o getOptions) isAllPolicies(args []string) bool {
	return len(args) == 1 && strings.EqualFold(args[0], "policies") && len(o.files.paths) == 0 &&
		!o.namespaces.given() && o.match.Empty() &&
		!o.showLabels && (o.format == table.Table || o.format == table.Wide)
}

func (c *cli) getPolicies(ctx context.Context, o getOptions) error {
	var answer *manxv1.ListPoliciesResponse
	err := c.daemon(ctx, func(ctx context.Context, m manxv1.ManxClient) (err error) {
		answer, err = m.ListPolicies(ctx, &manxv1.ListPoliciesRequest{})
		return err
	})
	switch {
	case err != nil:
		return fmt.Errorf("%w (\"manxctl get networkpolicies -A\" reads the datastore)", err)
	case answer.GetCountersProblem() != "":
		c.complain([]string{"Warning: " + answer.GetCountersProblem()})
	}
	if len(answer.GetPolicies()) == 0 {
		c.complain([]string{"No policies found."})
		return nil
	}
	return policyGrid(answer.GetPolicies(), o.format == table.Wide).Write(c.out, !o.noHeaders)
}

func policyGrid(policies []*manxv1.Policy, wide bool) *table.Grid {
	g := &table.Grid{Heading: []string{"TIER", "ORDER", "KIND", "NAME", "ENDPOINTS", "PACKETS", "BYTES", "STAGED"}}
	if wide {
		g.Heading = append(g.Heading, "PROBLEM")
	}
	for _, p := range policies {
		row := []string{dash(p.GetTier()), dash(p.GetOrder()), p.GetKind(), policyName(p), utoa(p.GetEndpoints()),
			count(p.Packets), count(p.Bytes), yesNo(p.GetStaged())}
		if wide {
			row = append(row, dash(p.GetProblem()))
		}
		g.Add(row...)
	}
	return g
}

func policyName(p *manxv1.Policy) string {
	if p.GetNamespace() == "" {
		return p.GetName()
	}
	return p.GetNamespace() + "/" + p.GetName()
}

// count formats a number of packets or bytes; a dash without a counter.
func count(n *uint64) string {
	if n == nil {
		return "-"
	}
	return strconv.FormatUint(*n, 10)
}

// policyKinds are the kinds of describe besides peers.
var policyKinds = []model.Kind{
	model.KindNetworkPolicy, model.KindGlobalNetworkPolicy, model.KindStagedNetworkPolicy,
	model.KindStagedGlobalNetworkPolicy,
	model.KindStagedKubernetesNetworkPolicy,
}

// policyKind finds the kind that a word stands for.
func policyKind(word string) (model.Kind, bool) {
	kind, err := findKind(word)
	return kind.Kind, err == nil && slices.Contains(policyKinds, kind.Kind)
}

func (c *cli) describePolicies(ctx context.Context, kind model.Kind, namespace string, names []string) error {
	if info, _ := model.Lookup(kind); !info.Namespaced {
		namespace = ""
	}
	return c.daemon(ctx, func(ctx context.Context, m manxv1.ManxClient) error {
		for i, name := range names {
			text, err := describePolicy(ctx, m, kind, namespace, name)
			if err != nil {
				return err
			}
			if i > 0 {
				text = "\n" + text
			}
			if _, err := io.WriteString(c.out, text); err != nil {
				return err
			}
		}
		return nil
	})
}

// describePolicy prints the daemon's state of one policy.
func describePolicy(ctx context.Context, m manxv1.ManxClient, kind model.Kind, namespace, name string) (string, error) {
	answer, err := m.ListPolicies(ctx, &manxv1.ListPoliciesRequest{Kind: string(kind), Namespace: namespace, Name: name,
		Rules: true})
	if err != nil {
		return "", err
	}
	if len(answer.GetPolicies()) == 0 {
		return "", fmt.Errorf("there is no %s %s that manxd knows", kind,
			policyName(&manxv1.Policy{Namespace: namespace, Name: name}))
	}
	p := answer.GetPolicies()[0]
	var s sections
	s.heading(string(kind) + " " + policyName(p))
	s.line("Problem", "%s", p.GetProblem())
	s.line("Tier", "%s, order %s", p.GetTier(), orNone(p.GetOrder()))
	s.line("Options", "%s", strings.Join(p.GetOptions(), ", "))
	if p.GetStaged() {
		s.line("Staged", "counted, not enforced")
	}
	s.line("Selector", "%s", p.GetSelector())
	s.line("Endpoints here", "%s", selectedText(p))
	s.line("Counters", "%s", answer.GetCountersProblem())
	describeRules(&s, p)
	return s.String(), nil
}

func selectedText(p *manxv1.Policy) string {
	const most = 10
	list := p.GetSelected()
	if len(list) > most {
		list = append(slices.Clone(list[:most]), fmt.Sprintf("and %d more", len(list)-most))
	}
	return orNone(strings.Join(list, ", "))
}

// describeRules lists the rules with their counters.
func describeRules(s *sections, p *manxv1.Policy) {
	direction, counted := "", false
	for _, r := range p.GetRules() {
		if r.GetDirection() != direction {
			direction = r.GetDirection()
			s.heading(strings.ToUpper(direction[:1]) + direction[1:])
		}
		text := fmt.Sprintf("%d. %s", r.GetNumber(), r.GetText())
		if r.GetNever() != "" {
			text += " (matches nothing: " + r.GetNever() + ")"
		}
		if r.Packets != nil {
			text += fmt.Sprintf(": packets %d, bytes %d", r.GetPackets(), r.GetBytes())
			counted = true
		}
		fmt.Fprintf(s, "  %s\n", table.OneLine(text))
	}
	if !counted && len(p.GetRules()) > 0 && p.GetEndpoints() > 0 {
		s.heading("Nothing is counted: start manxd with --policy-counters")
	}
}
