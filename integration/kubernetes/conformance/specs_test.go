package main

import (
	"encoding/xml"
	"testing"
)

// Outcomes as Kubernetes' tests write them.
func TestOutcomes(t *testing.T) {
	const text = `<testsuites><testsuite name="Kubernetes e2e suite">
<testcase name="[It] a" status="passed"></testcase>
<testcase name="[It] b" status="skipped"><skipped message="skipped"></skipped></testcase>
<testcase name="[It] c" status="skipped"><skipped message="skipped - needs 3 nodes"></skipped></testcase>
<testcase name="[It] d" status="failed"><failure>[FAILED] no client&#xA;In [It] at: x.go:1</failure></testcase>
<testcase name="[It] e" status="panicked"><error>[PANICKED] Test Panicked&#xA;In y.go:2</error></testcase>
<testcase name="[It] f" status="timedout"><failure>[TIMEDOUT] A suite timeout occurred</failure></testcase>
<testcase name="[It] g" status="interrupted"></testcase>
</testsuite></testsuites>`
	var r report
	if err := xml.Unmarshal([]byte(text), &r); err != nil {
		t.Fatal(err)
	}
	for i, want := range []string{"passed ", "", "skipped skipped - needs 3 nodes", "failed no client",
		"failed [PANICKED] Test Panicked", "failed [TIMEDOUT] A suite timeout occurred", "failed interrupted"} {
		got := ""
		if outcome, why, ran := r.Cases[i].outcome(); ran {
			got = outcome + " " + oneLine(why)
		}
		if got != want {
			t.Errorf("%s: %q, want %q", r.Cases[i].Name, got, want)
		}
	}
}
