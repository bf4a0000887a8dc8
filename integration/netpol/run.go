package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/manxnet/manx/dataplane/ruleset"
	"github.com/manxnet/manx/datastore/model"
)

// The ways in which a case is fed.
const (
	modeSteps    = "steps"    // one action after the other, all cases to the same daemon
	modeSnapshot = "snapshot" // the state of each step to a fresh daemon
)

// subject is the object under test: the kernel of a node, or Eval alone.
type subject interface {
	// attach creates and removes pods, so that exactly those of a cluster exist.
	attach(c cluster) error
	// apply makes changes one by one, as they happen in a cluster, and returns when they are in force.
	apply(ctx context.Context, writes []write) error
	// load replaces the whole state, and returns when the new state is in force.
	load(ctx context.Context, state model.Set) error
	measure(ctx context.Context, s *step) (reachability, error)
}

// runner feeds the cases of a table to Eval and, unless that is nil, to the subject.
type runner struct {
	table   *table
	writer  writer
	subject subject
	out     io.Writer
	traces  int // wrong cells of a step that are explained

	tally tally
	state model.Set // that was written last, in mode steps
	eval  *evaluator
}

// tally counts the work done.
type tally struct {
	cases, steps, cells int
	wrongEval, wrong    int
	wrongSteps          int
	took                time.Duration
}

func (t *tally) failed() bool { return t.wrong+t.wrongEval > 0 }

func (t *tally) String() string {
	return fmt.Sprintf("%d cases, %d steps, %d cells: %d wrong in the kernel, %d wrong by Eval, in %d steps; %.1f s",
		t.cases, t.steps, t.cells, t.wrong, t.wrongEval, t.wrongSteps, t.took.Seconds())
}

// run feeds the cases in one mode.
func (r *runner) run(ctx context.Context, mode string, cases []tcase) error {
	start := time.Now()
	defer func() { r.tally.took += time.Since(start) }()
	r.state, r.eval = nil, nil
	for i := range cases {
		var err error
		if mode == modeSteps {
			err = r.steps(ctx, &cases[i])
		} else {
			err = r.snapshots(ctx, &cases[i])
		}
		if err != nil {
			return fmt.Errorf("%s, case %s: %w", mode, cases[i].ID, err)
		}
		r.tally.cases++
		if done := i + 1; done%20 == 0 || done == len(cases) {
			fmt.Fprintf(r.out, "IPv%d %s: %d of %d cases, %.0f s\n", r.table.family(), mode, done, len(cases),
				time.Since(start).Seconds())
		}
	}
	return nil
}

func (r *runner) steps(ctx context.Context, c *tcase) error {
	now := c.initialCluster()
	if err := r.become(ctx, now); err != nil {
		return err
	}
	for i := range c.Steps {
		s := &c.Steps[i]
		for _, a := range s.Actions {
			if err := now.do(a); err != nil {
				return err
			}
			if err := r.become(ctx, now); err != nil {
				return err
			}
		}
		if d := now.differs(s.cluster()); d != "" {
			return fmt.Errorf("step %d: its actions do not lead to its state: %s", i+1, d)
		}
		if err := r.check(ctx, modeSteps, c, i); err != nil {
			return err
		}
	}
	return nil
}

// become writes the changes from the last state to this one.
func (r *runner) become(ctx context.Context, c cluster) error {
	want := r.writer.objects(c)
	first := r.state == nil
	writes := difference(r.state, want)
	r.state = want
	if first {
		var err error
		if r.eval, err = newEvaluator(r.writer.nodes, want); err != nil {
			return err
		}
	} else if err := r.eval.apply(writes); err != nil {
		return err
	}
	if r.subject == nil {
		return nil
	}
	if err := r.subject.attach(c); err != nil {
		return err
	}
	if first {
		return r.subject.load(ctx, want)
	}
	if len(writes) == 0 {
		return nil
	}
	return r.subject.apply(ctx, writes)
}

func (r *runner) snapshots(ctx context.Context, c *tcase) error {
	for i := range c.Steps {
		var err error
		want := r.writer.objects(c.Steps[i].cluster())
		if r.eval, err = newEvaluator(r.writer.nodes, want); err != nil {
			return err
		}
		if r.subject != nil {
			if err := r.subject.attach(c.Steps[i].cluster()); err != nil {
				return err
			}
			if err := r.subject.load(ctx, want); err != nil {
				return err
			}
		}
		if err := r.check(ctx, modeSnapshot, c, i); err != nil {
			return err
		}
	}
	return nil
}

// check probes all cells of a step and prints the wrong ones.
func (r *runner) check(ctx context.Context, mode string, c *tcase, i int) error {
	s := &c.Steps[i]
	r.tally.steps++
	r.tally.cells += s.cells()
	heading := fmt.Sprintf("%s, %s, step %d", c.ID, mode, i+1)
	evaluated := r.eval.measure(s)
	wrong := r.report(heading+", Eval", s, evaluated, evaluated)
	r.tally.wrongEval += wrong
	if r.subject != nil {
		got, err := r.subject.measure(ctx, s)
		if err != nil {
			return err
		}
		n := r.report(heading+", kernel", s, got, evaluated)
		r.tally.wrong += n
		wrong += n
	}
	if wrong > 0 {
		r.tally.wrongSteps++
	}
	return nil
}

// report prints the wrong cells, the first ones with a packet's path through the rules. If Eval's result differs, the
// kernel does not follow the rules.
func (r *runner) report(heading string, s *step, got, evaluated reachability) int {
	wrong := s.wrongCells(got)
	if len(wrong) > 0 {
		fmt.Fprintf(r.out, "WRONG: %s: %d of %d cells\n", heading, len(wrong), s.cells())
	}
	for n, c := range wrong {
		fmt.Fprintf(r.out, "  %s", s.describe(c, got))
		if e := evaluated.at(c); e != got.at(c) {
			fmt.Fprintf(r.out, "; %s by Eval", verdict(e))
		}
		fmt.Fprintln(r.out)
		if n < r.traces {
			var trace ruleset.Trace
			r.eval.evaluate(s, c.from, c.to, s.Expected[c.expectation], &trace)
			fmt.Fprintln(r.out, indent(trace.String()))
		}
	}
	return len(wrong)
}
