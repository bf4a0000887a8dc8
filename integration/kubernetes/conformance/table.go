package main

import (
	"bytes"
	"fmt"
	"os"
	"strings"

	"github.com/manxnet/manx/integration/kubernetes/cluster"
	"github.com/manxnet/manx/integration/kubernetes/lab"
)

// place returns the lines of the document around the table of a network.
func place(n cluster.Network) (begin, end string) {
	command := "make test-k8s-e2e"
	if n.Mode != cluster.BGP {
		command += " MODE=" + string(n.Mode)
	}
	if n.Families != lab.IPv4 {
		command += " FAMILIES=" + string(n.Families)
	}
	return "<!-- written by " + command + ": begin -->\n", "<!-- end -->\n"
}

// writeTable writes the results into the document, or to the standard output if it has no place for this network.
func writeTable(path string, manx cluster.Installation, results []result) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	begin, end := place(manx.Network())
	before, rest, ok := bytes.Cut(text, []byte(begin))
	_, after, ok2 := bytes.Cut(rest, []byte(end))
	if !ok || !ok2 {
		fmt.Printf("%s has no place for this table:\n%s", path, table(fmt.Sprint(manx), results))
		return nil
	}
	var b strings.Builder
	b.Write(before)
	b.WriteString(begin)
	b.WriteString(table(fmt.Sprint(manx), results))
	b.WriteString(end)
	b.Write(after)
	return os.WriteFile(path, []byte(b.String()), 0o644)
}

func table(manx string, results []result) string {
	var b strings.Builder
	fmt.Fprintf(&b, "\nKubernetes %s, %s.\n\n", lab.Version, manx)
	b.WriteString("| tests | run | passed | failed | skipped by themselves | not run |\n|---|---|---|---|---|---|\n")
	for _, g := range groups {
		n, all := map[string]int{}, 0
		for _, r := range results {
			if group("[sig-network] "+r.name) == g {
				n[r.outcome]++
				all++
			}
		}
		if all == 0 {
			continue // such as tests for another network
		}
		fmt.Fprintf(&b, "| %s | %d | %d | %d | %d | %d |\n", strings.TrimSpace(g), n["passed"]+n["failed"], n["passed"],
			n["failed"], n["skipped"], n["not run"])
	}
	b.WriteString("\n| not passed | outcome | why |\n|---|---|---|\n")
	for _, line := range notPassed(results) {
		b.WriteString(line)
	}
	b.WriteString("\n")
	return b.String()
}

// many is the number of tests of one group and reason from which they share a line.
const many = 6

// notPassed returns the lines of the tests that did not pass.
func notPassed(results []result) (lines []string) {
	kind := func(r result) [3]string {
		return [3]string{group("[sig-network] " + r.name), r.outcome, oneLine(r.why)}
	}
	count := map[[3]string]int{}
	for _, r := range results {
		count[kind(r)]++
	}
	for _, r := range results {
		k := kind(r)
		name := r.name
		if r.outcome == "passed" || count[k] == 0 || r.why == notYet {
			continue
		}
		if count[k] >= many {
			name = fmt.Sprintf("%s: %d tests", strings.TrimSpace(k[0]), count[k])
			count[k] = 0
		}
		lines = append(lines, fmt.Sprintf("| %s | %s | %s |\n", name, k[1], k[2]))
	}
	return lines
}

func oneLine(text string) string {
	text, _, _ = strings.Cut(text, "\n")
	return strings.NewReplacer("|", "\\|").Replace(text)
}
