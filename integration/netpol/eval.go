package main

import (
	"fmt"
	"net/netip"

	"github.com/manxnet/manx/dataplane/policy"
	"github.com/manxnet/manx/dataplane/ruleset"
	"github.com/manxnet/manx/datastore/model"
)

// evaluator answers from the rules that manxd would program, without a kernel. It follows a cluster step by step.
type evaluator struct {
	node string
	set  model.Set // as stored
	calc *policy.Calculator
}

// newEvaluator begins with a state.
func newEvaluator(node string, state model.Set) (*evaluator, error) {
	e := &evaluator{node: node, set: model.Set{}}
	for k, o := range state {
		found, err := stored(o)
		if err != nil {
			return nil, err
		}
		e.set[k] = found
	}
	e.calc = policy.Build(policy.Config{Node: node}, e.set, nil)
	return e, nil
}

// apply takes over what is written.
func (e *evaluator) apply(writes []write) error {
	if len(writes) == 0 {
		return nil // no keys would mean all
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
	e.calc.Update(e.set, keys(writes)...)
	for k, why := range e.calc.Bad() {
		return fmt.Errorf("%s: %s", k, why)
	}
	return nil
}

var protocols = map[string]uint8{"TCP": 6, "UDP": 17, "SCTP": 132}

// answers of one step, in the order of what it expects: who reaches whom.
func (e *evaluator) answers(s *step) answers {
	out := newAnswers(s)
	for x, want := range s.Expected {
		for i := range s.Pods {
			for j := range s.Pods {
				if i != j {
					out[x][i][j] = e.ask(s, i, j, want, nil)
				}
			}
		}
	}
	return out
}

// sourcePort is one that no rule of a table is about.
const sourcePort = 20000

// ask shows the first packet from one pod to another to the rules.
func (e *evaluator) ask(s *step, from, to int, x expectation, trace *ruleset.Trace) bool {
	host := &ruleset.Host{ReturnInterface: func(a netip.Addr) string {
		for _, p := range s.Pods {
			if p.IP == a {
				return interfaceOf(p)
			}
		}
		return ""
	}}
	return e.calc.Table().EvalForward(host, ruleset.Packet{
		In: interfaceOf(s.Pods[from]), Out: interfaceOf(s.Pods[to]), Source: s.Pods[from].IP, Destination: s.Pods[to].IP,
		Protocol: protocols[x.Protocol], SourcePort: sourcePort, DestinationPort: x.Port,
	}, trace).Accepted()
}
