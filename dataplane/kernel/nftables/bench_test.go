package nftables

import (
	"fmt"
	"testing"

	"github.com/manxnet/manx/dataplane/ruleset"
)

// benchTable has chains of four rules, a map that leads to each, and a set.
func benchTable(chains, elements int, interval bool) *ruleset.Table {
	w := tableOfMany(elements, interval)
	w.AddMap(ruleset.Map{Name: "m"})
	for i := range chains {
		c := benchChain(i, 0)
		w.SetChain(c)
		w.SetVerdict("m", fmt.Sprint("cali", i), ruleset.Verdict{Action: ruleset.Goto, Chain: c.Name})
	}
	return w
}

func benchChain(i, version int) *ruleset.Chain {
	c := &ruleset.Chain{Name: fmt.Sprint("in/", i)}
	for j := range 4 {
		c.Rules = append(c.Rules, ruleset.Rule{
			Matches: []ruleset.Match{ipv4, {Field: ruleset.Source, Set: "s"}, tcp,
				{Field: ruleset.DestinationPort, Low: uint32(80 + j + version%1000)}},
			Counter: true, Verdict: ruleset.Verdict{Action: ruleset.Accept},
			Comment: fmt.Sprintf("NetworkPolicy/default/web%d ingress %d", i, j+1),
		})
	}
	return c
}

// BenchmarkCommitRules commits a table of many chains at once.
func BenchmarkCommitRules(b *testing.B) {
	for _, chains := range []int{1000, 10_000} {
		b.Run(fmt.Sprintf("%d-chains", chains), func(b *testing.B) {
			_, n := rulesNS(b)
			all := benchTable(chains, 10, false).TakeChanges()
			for b.Loop() {
				commitRules(b, n, all)
				b.StopTimer()
				if err := n.DeleteRules(); err != nil {
					b.Fatal(err)
				}
				b.StartTimer()
			}
		})
	}
}

// BenchmarkCommitOneChain rewrites one chain of many.
func BenchmarkCommitOneChain(b *testing.B) {
	_, n := rulesNS(b)
	w := benchTable(10_000, 10, false)
	commitRules(b, n, w.TakeChanges())
	version := 0
	for b.Loop() {
		version++
		w.SetChain(benchChain(5000, version))
		commitRules(b, n, w.TakeChanges())
	}
}

// BenchmarkCommitOneElement adds an element to a set of 100,000, or removes one.
func BenchmarkCommitOneElement(b *testing.B) {
	for _, interval := range []bool{false, true} {
		b.Run(fmt.Sprintf("interval-%v", interval), func(b *testing.B) {
			_, n := rulesNS(b)
			w := tableOfMany(100_000, interval)
			commitRules(b, n, w.TakeChanges())
			e := ruleset.Element{Prefix: prefix("11.0.0.1/32")}
			there := false
			for b.Loop() {
				if there = !there; there {
					w.AddElement("s", e)
				} else {
					w.RemoveElement("s", e)
				}
				commitRules(b, n, w.TakeChanges())
			}
		})
	}
}

// BenchmarkReadRules reads 10,000 chains and 100,000 elements.
func BenchmarkReadRules(b *testing.B) {
	_, n := rulesNS(b)
	commitRules(b, n, benchTable(10_000, 100_000, false).TakeChanges())
	for b.Loop() {
		if _, err := n.ReadRules(); err != nil {
			b.Fatal(err)
		}
	}
}
