package reconcile

import (
	"fmt"
	"testing"
)

func TestRepairsAreTold(t *testing.T) {
	table, s, _ := newTable(map[string]int{})
	told := func() (lines []string) {
		list, more := table.Repairs()
		for _, r := range list {
			lines = append(lines, fmt.Sprintf("%s: %q %q", r.Key, r.Found, r.Wanted))
		}
		if more > 0 {
			lines = append(lines, fmt.Sprintf("%d more", more))
		}
		return lines
	}
	table.Prune(true)
	s.have["left"] = 1
	if err := table.Resync(); err != nil {
		t.Fatal(err)
	}
	table.Flush()
	expect(t, "what an earlier run left", told())
	for i := range 30 {
		table.Set(fmt.Sprintf("k%02d", i), i)
	}
	table.Flush()
	for k, v := range s.have {
		table.Observe(k, v) // the target's own echo
	}
	table.Flush()
	expect(t, "what the table did itself", told())

	table.Observe("k01", 99)
	table.ObserveGone("k02")
	table.Observe("extra", 5)
	table.Flush()
	expect(t, "what others did", told(), `k01: "99" "1"`, `k02: "" "2"`, `extra: "5" ""`)
	expect(t, "once", told())

	table.ObserveGone("k03")
	table.Unset("k03")
	table.Observe("k04", 98)
	table.Set("k04", 40)
	table.ObserveGone("k05")
	table.Observe("k05", 5)
	table.Flush()
	expect(t, "what is wanted otherwise by then, or is right again", told())

	s.have = map[string]int{}
	if err := table.Resync(); err != nil {
		t.Fatal(err)
	}
	table.Flush()
	if lines := told(); len(lines) != MostRepairs+1 || lines[MostRepairs] != "9 more" {
		t.Errorf("an emptied table: %q", lines)
	}
}
