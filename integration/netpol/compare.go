package main

import (
	"fmt"
	"strings"
)

// reachability records for each expectation, source and destination whether the destination was reached.
type reachability [][][]bool

func newReachability(s *step) reachability {
	out := make(reachability, len(s.Expected))
	for x := range out {
		out[x] = make([][]bool, len(s.Pods))
		for i := range out[x] {
			out[x][i] = make([]bool, len(s.Pods))
		}
	}
	return out
}

// cell is one possible probe.
type cell struct{ expectation, from, to int }

// wrongCells lists the cells that differ from the table.
func (s *step) wrongCells(got reachability) []cell {
	var list []cell
	for x, e := range s.Expected {
		for i := range s.Pods {
			for j := range s.Pods {
				if want := e.Combined[i][j]; want != itself && (want == allowed) != got[x][i][j] {
					list = append(list, cell{x, i, j})
				}
			}
		}
	}
	return list
}

func (a reachability) at(c cell) bool { return a[c.expectation][c.from][c.to] }

func verdict(reached bool) string {
	if reached {
		return "allowed"
	}
	return "blocked"
}

// describe names a wrong cell, and the policies at fault if a packet was wrongly allowed or blocked.
func (s *step) describe(c cell, got reachability) string {
	e := s.Expected[c.expectation]
	return fmt.Sprintf("%s -> %s %s/%d: want %s, got %s (the table: ingress of %s %s, egress of %s %s)",
		s.Pods[c.from].id(), s.Pods[c.to].id(), e.Protocol, e.Port,
		verdict(e.Combined[c.from][c.to] == allowed), verdict(got.at(c)),
		s.Pods[c.to].id(), verdict(e.Ingress[c.from][c.to] == allowed), s.Pods[c.from].id(),
		verdict(e.Egress[c.from][c.to] == allowed))
}

// indent moves text below a heading.
func indent(text string) string {
	return "      " + strings.ReplaceAll(strings.TrimRight(text, "\n"), "\n", "\n      ")
}
