package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"sync"

	"github.com/spf13/cobra"

	"github.com/manxnet/manx/cmd/manxctl/fleet"
	"github.com/manxnet/manx/datastore/table"
)

// mostStreams is the number of nodes whose events are followed at a time.
const mostStreams = 100

// dropsOfNodes prints the drops of all nodes as they come, each with its node, until it is interrupted or all nodes
// have ended.
func dropsOfNodes(r nodesRun, cmd *cobra.Command, args []string) error {
	ctx := cmd.Context()
	word, _ := cmd.Flags().GetString("output")
	format, err := table.ParseFormat(word, table.Table, table.JSON)
	if err != nil {
		return usagef("%v", err)
	}
	nodes, err := r.nodes(ctx)
	if err != nil {
		return err
	}
	if len(nodes) > mostStreams {
		return usagef("the cluster has %d nodes, and drops of at most %d can be followed: name one with --node",
			len(nodes), mostStreams)
	}
	words := r.words(cmd, args, "")
	answers := make([]fleet.Answer, len(nodes))
	var printing sync.Mutex
	var group sync.WaitGroup
	for i, n := range nodes {
		group.Go(func() {
			answers[i] = r.followDrops(ctx, n, words, format, &printing)
			if ctx.Err() != nil {
				return
			}
			printing.Lock()
			defer printing.Unlock()
			for _, line := range troublesOf(answers[i : i+1]) {
				fmt.Fprintln(r.errs, line) //nolint:errcheck // nowhere to report it
			}
		})
	}
	group.Wait()
	if ctx.Err() != nil {
		return nil // interrupted, the normal end
	}
	return endOf(answers)
}

func (r nodesRun) followDrops(ctx context.Context, n fleet.Node, words []string, format table.Format,
	printing *sync.Mutex) fleet.Answer {
	lines := &nodeLines{node: n.Name, format: format, to: r.out, printing: printing}
	var errs bytes.Buffer
	code, err := r.cluster.Run(ctx, n, fleet.Command{Args: words, Stdout: lines, Stderr: &errs})
	a := fleet.Answer{Node: n, Code: code, Err: err}
	if err == nil { // else the command may write on
		a.Stderr = errs.Bytes()
	}
	return a
}

// nodeLines prints the lines of a node with its name.
type nodeLines struct {
	node     string
	format   table.Format
	to       io.Writer
	printing *sync.Mutex // of all nodes
	rest     []byte      // a line that has no end yet
	skip     bool        // the rest of a line that was too long
}

// mostLine bounds a line, in bytes.
const mostLine = 64 << 10

// Write implements io.Writer.
func (l *nodeLines) Write(p []byte) (int, error) {
	for line := range bytes.Lines(p) {
		end := line[len(line)-1] == '\n'
		if !l.skip {
			l.rest = append(l.rest, line[:min(len(line), mostLine-len(l.rest))]...)
		}
		if full := len(l.rest) >= mostLine; end || full && !l.skip {
			if !l.skip {
				if err := l.print(bytes.TrimRight(l.rest, "\n")); err != nil {
					return 0, err
				}
			}
			l.rest, l.skip = l.rest[:0], full && !end
		}
	}
	return len(p), nil
}

func (l *nodeLines) print(line []byte) error {
	l.printing.Lock()
	defer l.printing.Unlock()
	if l.format != table.JSON {
		_, err := fmt.Fprintf(l.to, "%s  %s\n", l.node, line)
		return err
	}
	if !json.Valid(line) {
		return nil
	}
	with, err := json.Marshal(struct {
		Node string          `json:"node"`
		Drop json.RawMessage `json:"drop"`
	}{l.node, line})
	if err == nil {
		_, err = fmt.Fprintf(l.to, "%s\n", with)
	}
	return err
}
