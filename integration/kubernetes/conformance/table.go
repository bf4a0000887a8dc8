package main

import (
	"bytes"
	"fmt"
	"os"
	"strings"

	"github.com/manxnet/manx/integration/kubernetes/lab"
)

// The table is between these lines of the document.
const (
	begin = "<!-- written by make test-k8s-e2e: begin -->\n"
	end   = "<!-- end -->\n"
)

// writeTable puts the results into the document.
func writeTable(path, manx string, results []result) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	before, rest, ok := bytes.Cut(text, []byte(begin))
	_, after, ok2 := bytes.Cut(rest, []byte(end))
	if !ok || !ok2 {
		return fmt.Errorf("%s has no place for the table", path)
	}
	var b strings.Builder
	b.Write(before)
	b.WriteString(begin)
	b.WriteString(table(manx, results))
	b.WriteString(end)
	b.Write(after)
	return os.WriteFile(path, []byte(b.String()), 0o644)
}

func table(manx string, results []result) string {
	var b strings.Builder
	fmt.Fprintf(&b, "\nKubernetes %s, %s.\n\n", lab.Version, manx)
	b.WriteString("| tests | run | passed | failed | skipped by themselves | not run |\n|---|---|---|---|---|---|\n")
	for _, g := range groups {
		n := map[string]int{}
		for _, r := range results {
			if group("[sig-network] "+r.name) == g {
				n[r.outcome]++
			}
		}
		fmt.Fprintf(&b, "| %s | %d | %d | %d | %d | %d |\n", strings.TrimSpace(g), n["passed"]+n["failed"], n["passed"],
			n["failed"], n["skipped"], n["not run"])
	}
	b.WriteString("\n| not passed | outcome | why |\n|---|---|---|\n")
	for _, r := range results {
		if r.outcome != "passed" {
			fmt.Fprintf(&b, "| %s | %s | %s |\n", r.name, r.outcome, oneLine(r.why))
		}
	}
	b.WriteString("\n")
	return b.String()
}

func oneLine(text string) string {
	text, _, _ = strings.Cut(text, "\n")
	return strings.NewReplacer("|", "\\|").Replace(text)
}
