package main

import (
	"fmt"
	"net/netip"

	"github.com/manxnet/manx/dataplane/policy"
	"github.com/manxnet/manx/dataplane/ruleset"
	"github.com/manxnet/manx/datastore/model"
)

// evaluator evaluates the rules that the nodes' daemons would program, without a kernel. It follows a cluster step by
// step.
type evaluator struct {
	nodes placement
	set   model.Set            // as stored
	calcs []*policy.Calculator // of the nodes
}

// newEvaluator begins with a state.
func newEvaluator(nodes placement, state model.Set) (*evaluator, error) {
	e := &evaluator{nodes: nodes, set: model.Set{}}
	for k, o := range state {
		found, err := stored(o)
		if err != nil {
			return nil, err
		}
		e.set[k] = found
	}
	for _, node := range nodes {
		e.calcs = append(e.calcs, policy.Build(policy.Config{Node: node}, e.set, nil))
	}
	return e, e.checkObjects()
}

// checkObjects returns an error if an object cannot be used.
func (e *evaluator) checkObjects() error {
	for _, calc := range e.calcs {
		for k, reason := range calc.Bad() {
			return fmt.Errorf("%s: %s", k, reason)
		}
	}
	return nil
}

// apply applies the writes.
func (e *evaluator) apply(writes []write) error {
	if len(writes) == 0 {
		return nil // no keys would select all
	}
	for _, w := range writes {
		if w.object == nil {
			delete(e.set, w.key)
			continue
		}
		found, err := stored(w.object)
		if err != nil {
			return err
		}
		e.set[w.key] = found
	}
	for _, calc := range e.calcs {
		calc.Update(e.set, keys(writes)...)
	}
	return e.checkObjects()
}

var protocols = map[string]uint8{"TCP": 6, "UDP": 17, "SCTP": 132}

// measure returns the reachability in one step, in the order of its expectations.
func (e *evaluator) measure(s *step) reachability {
	out := newReachability(s)
	for x, want := range s.Expected {
		for i := range s.Pods {
			for j := range s.Pods {
				if i != j {
					out[x][i][j] = e.evaluate(s, i, j, want, nil)
				}
			}
		}
	}
	return out
}

// sourcePort is a port that no rule of a table matches.
const sourcePort = 20000

// uplink is the interface from a node to the others.
const uplink = "eth0"

// evaluate evaluates the first packet from one pod to another with the rules of the nodes on its way.
func (e *evaluator) evaluate(s *step, from, to int, x expectation, trace *ruleset.Trace) bool {
	source, destination := s.Pods[from], s.Pods[to]
	p := ruleset.Packet{
		In: interfaceOf(source), Out: interfaceOf(destination), Source: source.IP, Destination: destination.IP,
		Protocol: protocols[x.Protocol], SourcePort: sourcePort, DestinationPort: x.Port,
	}
	here, there := e.nodes.index(source.Namespace), e.nodes.index(destination.Namespace)
	if here == there {
		return e.forward(s, here, p, trace)
	}
	first, second := p, p
	first.Out, second.In = uplink, uplink
	return e.forward(s, here, first, trace) && e.forward(s, there, second, trace)
}

func (e *evaluator) forward(s *step, node int, p ruleset.Packet, trace *ruleset.Trace) bool {
	host := &ruleset.Host{ReturnInterface: func(a netip.Addr) string {
		for _, p := range s.Pods {
			if p.IP == a && e.nodes.index(p.Namespace) == node {
				return interfaceOf(p)
			}
		}
		return uplink
	}}
	return e.calcs[node].Table().EvalForward(host, p, trace).Accepted()
}
