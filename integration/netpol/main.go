package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strconv"
	"syscall"

	"github.com/spf13/pflag"
)

// options of the command line.
type options struct {
	table    string
	mode     string
	family   int
	sample   int
	id       string
	evalOnly bool
	bin      string
	nodes    int
	restarts int
	traces   int
}

func main() {
	var o options
	flags := pflag.NewFlagSet("netpol", pflag.ContinueOnError)
	flags.StringVar(&o.table, "table", "", "file of cases in the format netpol-tables/1, gzip or plain")
	flags.StringVar(&o.mode, "mode", "both", "steps: one change after the other; snapshot: each state anew; both")
	flags.IntVar(&o.family, "family", 0, "4 or 6: do nothing with a table of the other family")
	flags.IntVar(&o.sample, "sample", 0, "only so many cases, the same ones each time; 0: all")
	flags.StringVar(&o.id, "case", "", "only this case")
	flags.BoolVar(&o.evalOnly, "eval-only", false, "only evaluate the rules: no daemon, no kernel")
	flags.StringVar(&o.bin, "bin", "", "folder with manxd; empty: build it")
	flags.IntVar(&o.nodes, "nodes", 1, "nodes that the namespaces are spread over")
	flags.IntVar(&o.restarts, "restarts", 10, "in mode snapshot kill every manxd, remove its table and start it with "+
		"every so-manieth state; 0: never")
	flags.IntVar(&o.traces, "traces", 2, "wrong cells of a step whose way through the rules is printed")
	if err := flags.Parse(os.Args[1:]); err != nil {
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := o.run(ctx, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "netpol:", err)
		stop()
		os.Exit(1)
	}
}

// errWrong is the outcome of a run with wrong cells, which are printed by then.
var errWrong = errors.New("some cells are wrong")

func (o options) run(ctx context.Context, out io.Writer) (err error) {
	modes, err := o.modes()
	if err != nil {
		return err
	}
	if o.nodes < 1 {
		return fmt.Errorf("--nodes=%d: want 1 or more", o.nodes)
	}
	t, err := load(o.table)
	if err != nil {
		return err
	}
	if o.family != 0 && o.family != t.family() {
		fmt.Fprintf(out, "%s is about IPv%d: nothing to do for IPv%d\n", o.table, t.family(), o.family)
		return nil
	}
	cases, err := choose(t.Cases, o.id, o.sample)
	if err != nil {
		return err
	}
	r := &runner{table: t, writer: writer{nodes: place(o.nodes), ports: t.PodPorts}, out: out, traces: o.traces}
	if !o.evalOnly {
		n, err := newSite(ctx, labName(""), o.bin, r.writer.nodes, t.PodPorts)
		if err != nil {
			return err
		}
		n.restarts = o.restarts
		defer func() { err = errors.Join(err, n.close()) }()
		r.subject = n
		defer func() { fmt.Fprintf(out, "%d cells were probed again because an answer was missing\n", n.again) }()
	}
	for _, mode := range modes {
		err := r.run(ctx, mode, cases)
		if ctx.Err() != nil {
			return errors.New("interrupted")
		}
		if err != nil {
			return err
		}
	}
	fmt.Fprintf(out, "IPv%d: %s\n", t.family(), &r.tally)
	if r.tally.failed() {
		return errWrong
	}
	return nil
}

func (o options) modes() ([]string, error) {
	switch o.mode {
	case modeSteps, modeSnapshot:
		return []string{o.mode}, nil
	case "both":
		return []string{modeSteps, modeSnapshot}, nil
	}
	return nil, fmt.Errorf("--mode=%s: want %s, %s or both", o.mode, modeSteps, modeSnapshot)
}

// labName is unique among the labs of all running programs, and short enough for one. kind distinguishes those of one
// program.
func labName(kind string) string { return "np" + strconv.FormatInt(int64(os.Getpid()), 36) + kind }
