package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/manxnet/manx/cmd/manxctl/fleet"
	"github.com/manxnet/manx/datastore/table"
)

// nodesData is the output of a command on several nodes with -o json.
type nodesData struct {
	Nodes []nodeData `json:"nodes"`
}

// nodeData is the answer of a node, as the command prints it there, or the reason why there is none.
type nodeData struct {
	Node   string          `json:"node"`
	Answer json.RawMessage `json:"answer,omitempty"`
	Error  string          `json:"error,omitempty"`
}

func dataOf(answers []fleet.Answer) nodesData {
	d := nodesData{Nodes: []nodeData{}}
	for _, a := range answers {
		n := nodeData{Node: a.Name, Error: whyNone(a)}
		if json.Valid(a.Stdout) {
			n.Answer = a.Stdout
		}
		d.Nodes = append(d.Nodes, n)
	}
	return d
}

// whyNone returns why a node has not printed what it was asked for; empty if it has.
func whyNone(a fleet.Answer) string {
	switch {
	case a.Err != nil:
		return short(a.Err.Error())
	case a.Code == exitOK || a.Code == exitUnhealthy && len(bytes.TrimSpace(a.Stdout)) > 0:
		return ""
	}
	text := strings.TrimPrefix(strings.TrimSpace(string(a.Stderr)), "Error: ")
	return short(cmp.Or(text, fmt.Sprintf("manxctl ended with exit code %d there", a.Code)))
}

// mostText bounds a text of a node in a line, in characters.
const mostText = 500

// short makes a line of bounded length of a node's text.
func short(text string) string {
	if runes := []rune(table.OneLine(text)); len(runes) > mostText {
		return string(runes[:mostText]) + "..."
	}
	return table.OneLine(text)
}

// writeSections prints the answers of nodes below their names. The lines of a node are indented, so that none can look
// like the name of another one. Nodes with the same error have one line.
func writeSections(w io.Writer, answers []fleet.Answer) error {
	var b bytes.Buffer
	for _, a := range answers {
		if whyNone(a) != "" || len(bytes.TrimSpace(a.Stdout)) == 0 {
			continue
		}
		table.Fprintf(&b, "%s:\n", a.Name)
		for line := range bytes.Lines(a.Stdout) {
			fmt.Fprintf(&b, "  %s\n", bytes.TrimRight(line, "\n"))
		}
	}
	for _, line := range troublesOf(answers) {
		fmt.Fprintln(&b, line)
	}
	_, err := w.Write(b.Bytes())
	return err
}

// troublesOf returns "n1, n2: reason" for each reason, in the order of the nodes.
func troublesOf(answers []fleet.Answer) (lines []string) {
	var reasons []string
	nodes := map[string][]string{}
	for _, a := range answers {
		if why := whyNone(a); why != "" {
			if nodes[why] == nil {
				reasons = append(reasons, why)
			}
			nodes[why] = append(nodes[why], a.Name)
		}
	}
	for _, why := range reasons {
		lines = append(lines, strings.Join(nodes[why], ", ")+": "+why)
	}
	return lines
}

// endOf returns the end of a command on several nodes: 4 if a node does not answer, and the exit code of the nodes if
// it is an error on all of them.
func endOf(answers []fleet.Answer) error {
	code, failed := exitOK, 0
	for _, a := range answers {
		switch {
		case a.Err != nil:
			return &exitErr{exitUnhealthy, ""}
		case a.Code != exitOK:
			code = max(code, a.Code)
			failed++
		}
	}
	if failed == len(answers) {
		return &exitErr{code, ""}
	}
	return nil
}
