package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func both(t *testing.T, f func(t *testing.T, tb *table)) {
	for _, name := range []string{"v4", "v6"} {
		t.Run(name, func(t *testing.T) {
			tb, err := load(filepath.Join("testdata", name+".json.gz"))
			must(t, err)
			f(t, tb)
		})
	}
}

func newRunner(t *testing.T, tb *table, nodes placement, s subject) (*runner, *strings.Builder) {
	var out strings.Builder
	t.Cleanup(func() {
		if t.Failed() {
			t.Log("\n" + out.String())
		}
	})
	return &runner{table: tb, writer: writer{nodes: nodes, ports: tb.PodPorts}, subject: s, out: &out, traces: 1}, &out
}

func TestEvalGivesEveryCell(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, tb *table) {
		if n := len(tb.Cases); n != 230 {
			t.Fatalf("%d cases, want 230", n)
		}
		for _, nodes := range []int{1, 3} {
			for _, mode := range []string{modeSteps, modeSnapshot} {
				r, _ := newRunner(t, tb, place(nodes), nil)
				must(t, r.run(t.Context(), mode, tb.Cases))
				if r.tally.failed() || r.tally.steps != 256 || r.tally.cells != 111_036 {
					t.Errorf("%d nodes, %s: %s", nodes, mode, &r.tally)
				}
			}
		}
	})
}

func TestWrongCellIsFound(t *testing.T) {
	both(t, func(t *testing.T, tb *table) {
		c := tb.Cases[:1]
		e := &c[0].Steps[0].Expected[0]
		for _, flip := range []struct {
			from, to byte
			word     string
		}{{blocked, allowed, "want allowed, got blocked"}, {allowed, blocked, "want blocked, got allowed"}} {
			i := slices.IndexFunc(e.Combined, func(row string) bool { return strings.IndexByte(row, flip.from) >= 0 })
			row := e.Combined[i]
			e.Combined[i] = strings.Replace(row, string(flip.from), string(flip.to), 1)
			r, out := newRunner(t, tb, place(1), nil)
			must(t, r.run(t.Context(), modeSnapshot, c))
			if r.tally.wrongEval != 1 || !strings.Contains(out.String(), flip.word) ||
				!strings.Contains(out.String(), "forward-from-workload") {
				t.Errorf("a wrong cell: %s\n%s", &r.tally, out)
			}
			e.Combined[i] = row
		}
	})
}

func TestSampleHasEveryTag(t *testing.T) {
	both(t, func(t *testing.T, tb *table) {
		tags := func(cases []tcase) (list []string) {
			for _, c := range cases {
				list = append(list, c.Tags...)
			}
			slices.Sort(list)
			return slices.Compact(list)
		}
		some := sample(tb.Cases, sampleSize)
		if have, want := tags(some), tags(tb.Cases); len(some) != sampleSize || !slices.Equal(have, want) {
			t.Errorf("%d cases with tags %v, want %d with %v", len(some), have, sampleSize, want)
		}
		for i, c := range sample(tb.Cases, sampleSize) {
			if c.ID != some[i].ID {
				t.Errorf("case %d is %s, then %s: want the same sample each time", i, some[i].ID, c.ID)
			}
		}
	})
}

func TestTablesThatAreRefused(t *testing.T) {
	good := `{"format":"netpol-tables/1","podPorts":[{"port":80,"protocol":"TCP","name":"web"}],"cases":[{"id":"a","steps":[{
		"namespaces":{"x":{}},"pods":[{"namespace":"x","name":"a","ip":"10.0.0.1"},{"namespace":"x","name":"b","ip":"10.0.0.2"}],
		"expected":[{"protocol":"TCP","port":80,"combined":["#.",".#"],"ingress":["#.",".#"],"egress":["#.",".#"]}]}]}]}`
	for _, c := range []struct{ rule, old, new, want string }{
		{"a good one", "", "", ""},
		{"another format", "tables/1", "tables/2", "format"},
		{"no JSON", "{", "(", "invalid character"},
		{"no case", `"cases":[`, `"cases":[],"x":[`, "no case"},
		{"a port that nobody serves", `"port":80,"combined"`, `"port":81,"combined"`, "no pod serves it"},
		{"a row too few", `"combined":["#.",".#"]`, `"combined":["#."]`, "1 rows for 2 pods"},
		{"a short row", `"egress":["#.",".#"]`, `"egress":["#.","."]`, `row "."`},
		{"mixed families", "10.0.0.2", "fd00::2", "family"},
	} {
		t.Run(c.rule, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "table.json")
			must(t, os.WriteFile(path, []byte(strings.Replace(good, c.old, c.new, 1)), 0o644))
			_, err := load(path)
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}
