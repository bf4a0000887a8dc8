package main

import (
	"strings"
	"testing"
)

// A node without BGP is described with the reason, not as one whose sessions are down; long names keep their distance.
func TestDescribedNodeWithoutBGP(t *testing.T) {
	var s sections
	(&nodeSummary{Answered: true, BGPOff: "BGP is off (here)"}).writeTo(&s)
	s.line("Pool default-ipv4-ippool", "full")
	for _, want := range []string{"  BGP:              BGP is off (here)\n", "  Pool default-ipv4-ippool: full\n"} {
		if !strings.Contains(s.String(), want) {
			t.Errorf("want %q in\n%s", want, s.String())
		}
	}
}
