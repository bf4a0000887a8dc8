package policytest

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/manxnet/manx/dataplane/policy"
	"github.com/manxnet/manx/dataplane/policy/explain"
	"github.com/manxnet/manx/datastore/model"
)

// Result is the verdict about one pair of ends.
type Result struct {
	Test     Expectation
	From, To string // the ends of this pair
	Passed   bool
	Verdict  string // "allow by NetworkPolicy/shop/db ingress 1"; empty if there is none
	Problem  string // why it did not pass
}

// Run evaluates the tests with the policies of r, in their order: for each pair of ends one result. A test without any
// pair fails: it would hold for no reason.
func Run(r model.Reader, tests []Expectation) []Result {
	world := remembered(r)
	var results []Result
	for _, t := range tests {
		sources, destinations := ends(r, t.From), ends(r, t.To)
		before := len(results)
		for _, from := range sources {
			for _, to := range destinations {
				if from == to && (isPattern(t.From) || isPattern(t.To)) {
					continue // a pod reaches itself without policy
				}
				results = append(results, one(world, t, from, to))
			}
		}
		if len(results) == before {
			nobody := t.From
			if len(sources) > 0 {
				nobody = t.To
			}
			results = append(results, Result{Test: t, From: t.From, To: t.To,
				Problem: fmt.Sprintf("no pod matches %q", nobody)})
		}
	}
	return results
}

// remembered is explain's world of objects. It computes the rules of each node once.
func remembered(r model.Reader) explain.World {
	nodes := map[string]*policy.Calculator{}
	return explain.World{Objects: r, Rules: func(node string, use func(*policy.Calculator)) {
		if nodes[node] == nil {
			nodes[node] = explain.Build(r, policy.Config{Budget: policy.DefaultBudget}, node)
		}
		use(nodes[node])
	}}
}

// ends returns the pods that a pattern matches, sorted; another end is itself.
func ends(r model.Reader, name string) []string {
	if !isPattern(name) {
		return []string{name}
	}
	var found []string
	for k, w := range model.AllWorkloads(r) {
		pod := w.Pod
		if pod == "" {
			pod = w.Workload
		}
		full := k.Namespace + "/" + pod
		if ok, _ := path.Match(name, full); ok && pod != "" {
			found = append(found, full)
		}
	}
	slices.Sort(found)
	return slices.Compact(found)
}

func one(w explain.World, t Expectation, from, to string) Result {
	result := Result{Test: t, From: from, To: to}
	a, err := explain.Explain(w, explain.Question{Source: from, Destination: to, Flow: t.flow})
	if err != nil {
		result.Problem = err.Error()
		return result
	}
	result.Verdict = "deny"
	if a.Allowed {
		result.Verdict = "allow"
	}
	if a.By != "" {
		result.Verdict += " by " + a.By
	}
	switch {
	case a.Allowed != t.Allow && t.Allow:
		result.Problem = "want allow, is " + result.Verdict
	case a.Allowed != t.Allow:
		result.Problem = "want deny, is " + result.Verdict
	case t.By != "" && !decided(a, t.By):
		result.Problem = fmt.Sprintf("want it by %s, is %s", t.By, result.Verdict)
	}
	result.Passed = result.Problem == ""
	return result
}

// decided reports whether a rule or policy decided: about a packet that is dropped the one that drops it, else one of
// those that let it pass.
func decided(a *explain.Answer, by string) bool {
	for _, s := range a.Stages {
		if s.Reached && s.Allowed == a.Allowed && (s.By == by || strings.HasPrefix(s.By, by+" ")) {
			return true
		}
	}
	return false
}
