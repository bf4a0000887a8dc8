package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/ipam/check"
)

// repairOptions are the flags of "ipam repair".
type repairOptions struct {
	yes, force bool
	grace      time.Duration
}

func (c *cli) ipamRepairCommand() *cobra.Command {
	var o repairOptions
	cmd := &cobra.Command{
		Use:   "repair",
		Short: "Repair the contradictions that ipam check finds, after a confirmation",
		Long: `Show how to repair what "manxctl ipam check" finds, each step with its reason, and do it after a confirmation or with
--yes. Steps release addresses of pods that are gone, correct the counts of handles and the affinities of blocks, and
release empty blocks of nodes that do not exist. The other contradictions are listed with why they stay.

An address is released only if it was assigned to a pod at least --grace ago, no object uses it, and all addresses of
its handle are like that. Before it writes, the command checks again, and each write is a compare-and-swap: a step whose
facts have changed is skipped. To apply steps the datastore has to be locked ("manxctl datastore lock"), unless --force
is set.

Exit codes: 0 nothing is left to repair; 1 error; 2 usage; 4 steps remain: not confirmed, or skipped.`,
		Example: "  manxctl ipam repair\n  manxctl ipam repair --yes --grace 1h",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.grace < time.Minute {
				return usagef("--grace %s: want 1m or more, since an address is assigned before its pod shows it",
					o.grace)
			}
			store, err := c.open(cmd.Context())
			if err != nil {
				return err
			}
			defer store.Close() //nolint:errcheck // every write has been answered
			return c.repairIPAM(cmd.Context(), store, o)
		},
	}
	f := cmd.Flags()
	f.BoolVar(&o.yes, "yes", false, "do it without a confirmation")
	f.BoolVar(&o.force, "force", false, "also without a lock of the datastore")
	f.DurationVar(&o.grace, "grace", 15*time.Minute, "age below which an address is never released")
	return cmd
}

func (c *cli) repairIPAM(ctx context.Context, store datastore.Store, o repairOptions) error {
	report, result, err := c.checkIPAM(ctx, store)
	if err != nil {
		return err
	}
	steps, kept := result.Plan(time.Now(), o.grace)
	if err := c.printPlan(steps, kept); err != nil || len(steps) == 0 {
		return err
	}
	if !report.DatastoreLocked && !o.force {
		return errors.New("nothing was changed: the datastore is not locked, so an address may be assigned " +
			"meanwhile: use \"manxctl datastore lock\" first, or --force")
	}
	if !o.yes && !c.confirmed(fmt.Sprintf("Do these %d steps? [y/N] ", len(steps))) {
		c.complain([]string{"Nothing was changed."})
		return &exitErr{exitUnhealthy, ""}
	}
	done, err := check.Repair(ctx, store, steps, func(ctx context.Context) ([]check.Step, error) {
		now, result, err := c.checkIPAM(ctx, store)
		if err == nil && !now.DatastoreLocked && !o.force {
			err = errors.New("the datastore is not locked any more")
		}
		again, _ := result.Plan(time.Now(), o.grace)
		return again, err
	})
	if outcomes := c.printOutcomes(done); err == nil {
		err = outcomes
	}
	return err
}

func (c *cli) printPlan(steps []check.Step, kept []check.Kept) error {
	var b strings.Builder
	fmt.Fprintf(&b, "Found %d steps to do, and %d problems that stay.\n", len(steps), len(kept))
	for _, s := range steps {
		fmt.Fprintf(&b, "  %s\n    because: %s\n", s.Do, s.Reason)
	}
	for _, k := range kept {
		fmt.Fprintf(&b, "  keep %s: %s\n    because: %s\n", k.Problem, k.Text, k.Why)
	}
	_, err := fmt.Fprint(c.out, b.String())
	return err
}

// printOutcomes returns an error if a step failed or was skipped.
func (c *cli) printOutcomes(list []check.Outcome) error {
	var errs []error
	done := 0
	for _, o := range list {
		switch {
		case o.Err != nil:
			errs = append(errs, fmt.Errorf("%s: %w", o.Do, o.Err))
		case o.Skipped != "":
			if err := c.printf("skipped: %s: %s", o.Do, o.Skipped); err != nil {
				return err
			}
		default:
			done++
		}
	}
	if err := c.printf("Did %d of %d steps.", done, len(list)); err != nil {
		return err
	}
	switch {
	case len(errs) > 0:
		return c.report(errs)
	case done < len(list):
		return &exitErr{exitUnhealthy, ""}
	}
	return nil
}

// confirmed asks a question and reads the answer. The end of the input is a no.
func (c *cli) confirmed(question string) bool {
	fmt.Fprint(c.err, question) //nolint:errcheck // nowhere to report it
	line, _ := bufio.NewReader(c.in).ReadString('\n')
	switch strings.ToLower(strings.TrimSpace(line)) {
	case "y", "yes":
		return true
	}
	return false
}
