package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/spf13/cobra"

	"github.com/manxnet/manx/cmd/manxctl/policytest"
	"github.com/manxnet/manx/dataplane/policy"
	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/manifest"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/datastore/table"
	"github.com/manxnet/manx/plan"
)

// junitFormat is the output for CI systems.
const junitFormat table.Format = "junit"

func (c *cli) testCommand() *cobra.Command {
	var f files
	var output string
	cmd := &cobra.Command{
		Use:   "test [-f FILE|DIR] TESTFILE...",
		Short: "Compare the verdicts of policy with expected ones, for CI",
		Long: `Compare the verdicts of policy with those that files expect. The objects come from the files of -f, as for "explain
-f", without daemon and datastore; without -f from the datastore.

A file of tests is a list:

  - {from: shop/web, to: shop/db, port: tcp/5432, expect: allow}
  - {from: dev/*, to: shop/db, port: tcp/5432, expect: deny, by: GlobalNetworkPolicy/tenants}

"from" and "to" are ends as of explain, or NAMESPACE/POD with * and ? for any letters: then the test is about each such
pod, and fails if there is none. "port" is explain's PROTOCOL/PORT. "by", if it is there, names the policy or rule that
has to decide.

Exit codes: 0 all verdicts are as expected; 1 error, such as a mistake in a file; 2 usage; 5 a verdict is not.`,
		Example: "  manxctl test -f cluster/ policy-tests.yaml\n  manxctl test policy-tests.yaml\n" +
			"  manxctl test -f cluster/ -R policy-tests.yaml -o junit > junit.xml",
		RunE: func(cmd *cobra.Command, args []string) error {
			format, err := table.ParseFormat(cmp.Or(output, string(planText)), planText, junitFormat)
			switch {
			case err != nil:
				return usagef("%v", err)
			case len(args) == 0:
				return usagef("name a file of tests, for instance \"manxctl test -f cluster/ policy-tests.yaml\"")
			}
			return c.test(cmd.Context(), f, args, format)
		},
	}
	f.add(cmd)
	outputFlag(cmd, &output, planText, junitFormat)
	return cmd
}

func (c *cli) test(ctx context.Context, f files, names []string, format table.Format) error {
	var tests []policytest.Expectation
	var errs []error
	for _, name := range names {
		sources, e := manifest.Read(name, c.in, false)
		errs = append(errs, e...)
		for _, s := range sources {
			list, e := policytest.Parse(s.Name, s.Text)
			tests, errs = append(tests, list...), append(errs, e...)
		}
	}
	if len(errs) > 0 {
		return c.report(errs)
	}
	objects, err := c.policyObjects(ctx, f)
	if err != nil {
		return err
	}
	results := policytest.Run(objects, tests)
	failed := policytest.Failed(results)
	if format == junitFormat {
		err = policytest.WriteJUnit(c.out, results)
	} else {
		err = writeResults(c.out, results, failed)
	}
	if err == nil && failed > 0 {
		return &exitErr{exitUnexpected, ""}
	}
	return err
}

func writeResults(w io.Writer, results []policytest.Result, failed int) error {
	g := &table.Grid{}
	for _, r := range results {
		if r.Passed {
			g.Add("ok", r.Name(), r.Verdict)
		} else {
			g.Add("FAIL", r.Name(), fmt.Sprintf("%s (%s:%d)", r.Problem, r.Test.File, r.Test.Line))
		}
	}
	if err := g.Write(w, false); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "%d tested, %d failed\n", len(results), failed)
	return err
}

// policyObjects returns the objects that policy is about: those of files, else those of the datastore.
func (c *cli) policyObjects(ctx context.Context, f files) (model.Reader, error) {
	if len(f.paths) > 0 {
		return c.storedFrom(f)
	}
	store, err := c.open(ctx)
	if err != nil {
		return nil, err
	}
	defer store.Close() //nolint:errcheck // nothing was written
	return c.readKinds(ctx, store, policy.Kinds...)
}

// readKinds returns the objects of these kinds that can be used, and warns of the others. It reads each kind once.
func (c *cli) readKinds(ctx context.Context, store datastore.Store, kinds ...model.Kind) (model.Set, error) {
	objects, unusable, err := readUsable(ctx, store, kinds...)
	for _, o := range unusable {
		c.complain([]string{fmt.Sprintf("Warning: %s cannot be used and is left out: %v", o.Key, o.Err)})
	}
	return objects, err
}

// readUsable returns the objects of these kinds that can be used, and the others.
func readUsable(
	ctx context.Context, store datastore.Store, kinds ...model.Kind,
) (objects model.Set, unusable []*model.Object, err error) {
	objects = model.Set{}
	for _, kind := range kinds {
		list, _, err := store.List(ctx, kind, "")
		switch {
		case errors.Is(err, model.ErrKubernetes), errors.Is(err, model.ErrNotFound):
			continue // etcd has no objects of Kubernetes, and a cluster perhaps no definition of the kind
		case err != nil:
			return nil, nil, err
		}
		for _, o := range list {
			if o.Err == nil {
				objects[o.Key] = o
			} else {
				unusable = append(unusable, o)
			}
		}
	}
	return objects, unusable, nil
}

// storedFrom reads files as a daemon would read its datastore with these objects.
func (c *cli) storedFrom(f files) (model.Reader, error) {
	var sources []manifest.Source
	var errs []error
	for _, p := range f.paths {
		s, e := manifest.Read(p, c.in, f.recursive)
		sources, errs = append(sources, s...), append(errs, e...)
	}
	if len(errs) > 0 {
		return nil, c.report(errs)
	}
	state := plan.Read(sources, "kube-system")
	objects, remarks := state.AsStored()
	c.complain(slices.Concat(state.Remarks, remarks))
	return objects, nil
}
