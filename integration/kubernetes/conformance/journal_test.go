package main

import (
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestJournal ends a run, and resumes it with the same image of Manx and with another one.
func TestJournal(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal.json")
	open := func(manx string, resume bool) *journal {
		t.Helper()
		j, err := openJournal(path, manx, resume)
		if err != nil {
			t.Fatal(err)
		}
		return j
	}
	j := open("v1", true)
	for name, r := range map[string]result{"a": {outcome: "passed"}, "b": {outcome: "failed", why: "no answer"}} {
		if err := j.add(name, r); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		manx    string
		resume  bool
		a, b, c string
	}{
		{"v1", true, "passed", "failed", "not run"},
		{"v1", false, "not run", "not run", "not run"},
		{"v2", true, "not run", "not run", "not run"},
	} {
		j := open(c.manx, c.resume)
		if got := []string{j.result("a").outcome, j.result("b").outcome, j.result("c").outcome}; !slices.Equal(got,
			[]string{c.a, c.b, c.c}) {
			t.Errorf("%s, resumed %v: %q", c.manx, c.resume, got)
		}
	}
}

// TestJournalIsNeverHalfWritten: a new result replaces the journal's file. The file that was open before stays whole.
func TestJournalIsNeverHalfWritten(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal.json")
	j, err := openJournal(path, "v1", false)
	if err != nil {
		t.Fatal(err)
	}
	if err := j.add("a", result{outcome: "passed"}); err != nil {
		t.Fatal(err)
	}
	before, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer before.Close()
	if err := j.add("b", result{outcome: "passed"}); err != nil {
		t.Fatal(err)
	}
	if text, err := io.ReadAll(before); err != nil || !json.Valid(text) || strings.Contains(string(text), `"b"`) {
		t.Errorf("the file that was there was changed to %q (%v)", text, err)
	}
}

// TestTableTellsWhy lists tests that did not pass, many of one reason in a line, and none that passed.
func TestTableTellsWhy(t *testing.T) {
	results := []result{{name: "DNS works", outcome: "passed"},
		{name: "DNS fails", outcome: "failed", why: "a | b\nmore"}}
	for range many {
		results = append(results, result{name: "LoadBalancers x", outcome: "not run", why: "no cloud"})
	}
	want := []string{"| DNS fails | failed | a \\| b |\n", "| LoadBalancers: 6 tests | not run | no cloud |\n"}
	if got := notPassed(results); !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
	text := table("an image", results)
	for _, row := range []string{"| DNS | 2 | 1 | 1 | 0 | 0 |\n", "| LoadBalancers | 0 | 0 | 0 | 0 | 6 |\n",
		"an image"} {
		if !strings.Contains(text, row) {
			t.Errorf("no row %q in %s", row, text)
		}
	}
}
