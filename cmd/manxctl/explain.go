package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/manxnet/manx/cmd/manxctl/policytest"
	"github.com/manxnet/manx/dataplane/policy"
	"github.com/manxnet/manx/dataplane/policy/explain"
	"github.com/manxnet/manx/datastore/table"
	"github.com/manxnet/manx/proto/explanation"
	manxv1 "github.com/manxnet/manx/proto/manx/v1"
)

// explainOptions are the flags of explain.
type explainOptions struct {
	files  files
	output string
	ipv6   bool
	expect string
	live   liveOptions
}

func (c *cli) explainCommand() *cobra.Command {
	var o explainOptions
	cmd := &cobra.Command{
		Use:   "explain SOURCE DESTINATION [PROTOCOL/PORT]",
		Short: "Show, rule by rule, whether policy allows a connection, and the route of its packets",
		Long: `Evaluate policy for the first packet of a connection. The output has for both ends the tiers, policies and rules in
order with the first condition that does not match, then the routes, and last the verdict.

An end is an address, a pod (NAMESPACE/POD, or POD if there is only one), a WorkloadEndpoint, a HostEndpoint or a node.
pod/NAMESPACE/POD, wep/NAMESPACE/NAME, hep/NAME and node/NAME are exact. DESTINATION may be a Service, svc/NAMESPACE/NAME
or NAME.NAMESPACE.svc: then each ready endpoint is evaluated, and the output is about one that policy denies, if there
is any. The flow is tcp/80, udp/53, sctp/5000, icmp,
icmp/TYPE/CODE or the number of a protocol; the default is tcp.

The local manxd evaluates: for this node the rules that it keeps in the kernel ("as programmed"), for the other node
rules that it computes from the same objects. With -f the objects come from files, of Calico's and Kubernetes' kinds
(Pods, Namespaces, NetworkPolicies), without daemon and datastore.

If policy allows the packet, and a base chain of another program on this node drops it, such as Docker's, a line behind
the verdict names the chain and its rule.

With --live the kernel traces the next packet of the flow on this node through the chains of all nftables tables, those
of other programs too, and each verdict is compared with the explanation. Send the packet when the command requests it.
Packets of established connections do not count, since policy is not evaluated for them.

Exit codes: 0 explained, with either verdict, and with --live the kernel agrees; 1 error, such as an end that does not
exist, or with --live the kernel disagrees or no packet came; 2 usage; 5 with --expect the verdict is another.`,
		Example: `  manxctl explain shop/web-0 shop/db-0 tcp/5432
  manxctl explain 10.0.0.7 shop/web-0 tcp/80 -o json
  manxctl explain pod/shop/web-0 node/node-2 icmp
  manxctl explain shop/web-0 shop/db-0 tcp/5432 --live
  manxctl explain shop/web-0 shop/db-0 tcp/5432 --expect allow
  manxctl explain shop/web-0 8.8.8.8 udp/53 -f cluster/`,
		Args: sourceAndDestination,
		RunE: func(cmd *cobra.Command, args []string) error {
			changed := cmd.Flags().Changed("live-timeout") || cmd.Flags().Changed("live-packets")
			if err := o.live.check(len(o.files.paths) > 0, changed); err != nil {
				return err
			}
			if _, err := policytest.ParseVerdict(cmp.Or(o.expect, "allow")); err != nil {
				return usagef("--expect %v", err)
			}
			return c.explainFlow(cmd.Context(), o, args)
		},
	}
	o.files.add(cmd)
	cmd.Flags().BoolVar(&o.live.on, "live", false, "wait for a real packet of the flow on this node and compare what "+
		"the kernel does with it")
	cmd.Flags().DurationVar(&o.live.timeout, "live-timeout", liveTimeout, "how long to wait for packets")
	cmd.Flags().Uint32Var(&o.live.packets, "live-packets", livePackets, "how many packets to wait for")
	cmd.Flags().BoolVarP(&o.ipv6, "ipv6", "6", false, "IPv6 where both ends have both families")
	cmd.Flags().StringVar(&o.expect, "expect", "", "allow or deny: end with exit code 5 if policy does otherwise")
	_ = cmd.RegisterFlagCompletionFunc("expect", cobra.FixedCompletions([]string{"allow", "deny"},
		cobra.ShellCompDirectiveNoFileComp))
	outputFlag(cmd, &o.output, planText, table.JSON, table.YAML)
	return cmd
}

// sourceAndDestination is the rule of arguments of explain.
func sourceAndDestination(_ *cobra.Command, args []string) error {
	const example = "for instance \"manxctl explain shop/web shop/db tcp/5432\""
	switch len(args) {
	case 0:
		return usagef("name SOURCE and DESTINATION, %s", example)
	case 1:
		return usagef("name the DESTINATION after SOURCE %q, %s", args[0], example)
	case 2, 3:
		return nil
	}
	return usagef("%q is too much: want SOURCE, DESTINATION and PROTOCOL/PORT, %s", args[3], example)
}

func (c *cli) explainFlow(ctx context.Context, o explainOptions, args []string) error {
	format, err := table.ParseFormat(cmp.Or(o.output, string(planText)), planText, table.JSON, table.YAML)
	if err != nil {
		return usagef("%v", err)
	}
	flow := ""
	if len(args) == 3 {
		flow = args[2]
	}
	parsed, err := explain.ParseFlow(flow)
	if err != nil {
		return usagef("%v", err)
	}
	var answer *manxv1.Explanation
	if len(o.files.paths) > 0 {
		answer, err = c.explainFiles(o, explain.Question{Source: args[0], Destination: args[1], Flow: parsed,
			IPv6: o.ipv6})
	} else {
		err = c.daemon(ctx, func(ctx context.Context, m manxv1.ManxClient) (err error) {
			answer, err = m.Explain(ctx, &manxv1.ExplainRequest{Source: args[0], Destination: args[1], Flow: flow,
				Ipv6: o.ipv6})
			return err
		})
	}
	switch {
	case err != nil:
		return err
	case format != planText && !o.live.on:
		if err := c.printStructured(format, answer); err != nil {
			return err
		}
		return o.asExpected(answer)
	case format == planText:
		var b strings.Builder
		if err := writeExplanation(&b, answer); err != nil {
			return err
		}
		if _, err := io.WriteString(c.out, c.colorVerdicts(b.String())); err != nil {
			return err
		}
		if !o.live.on {
			return o.asExpected(answer)
		}
	}
	err = c.confirm(ctx, o.live, format, &manxv1.TraceFlowRequest{Source: args[0], Destination: args[1], Flow: flow,
		Ipv6: o.ipv6}, answer)
	if err != nil {
		return err
	}
	return o.asExpected(answer)
}

// asExpected compares the verdict of policy with that of --expect. A base chain of another program that drops the
// packet for certain counts as deny.
func (o explainOptions) asExpected(x *manxv1.Explanation) error {
	if o.expect == "" {
		return nil
	}
	want, err := policytest.ParseVerdict(o.expect)
	if err != nil {
		return err
	}
	arrives := x.GetAllowed()
	for _, other := range x.GetOthers() {
		arrives = arrives && !other.GetCertain()
	}
	if arrives == want {
		return nil
	}
	return &exitErr{exitUnexpected, fmt.Sprintf("the verdict is not %s, which --expect wants", o.expect)}
}

// explainFiles evaluates a question from files only.
func (c *cli) explainFiles(o explainOptions, q explain.Question) (*manxv1.Explanation, error) {
	objects, err := c.storedFrom(o.files)
	if err != nil {
		return nil, err
	}
	answer, err := explain.Explain(explain.Computed(objects, policy.Config{Budget: policy.DefaultBudget}), q)
	if err != nil {
		return nil, err
	}
	return explanation.Of(answer), nil
}
