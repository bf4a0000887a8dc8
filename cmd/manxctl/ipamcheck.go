package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	"github.com/spf13/cobra"

	"github.com/manxnet/manx/cmd/manxctl/archive"
	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/ipam/check"
)

func (c *cli) ipamCheckCommand() *cobra.Command {
	var file string
	var all, problems, exitCode bool
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Compare the records of addresses with the workloads, nodes and services that use them",
		Long: `Compare the records of IP address management with the objects that use addresses, and count the contradictions:
addresses that are assigned and not used, used and not assigned, handles without addresses, and blocks whose owner does
not claim them. With an etcd datastore the addresses of Services count as used.

An address that is assigned while the check runs may look like a contradiction: "manxctl datastore lock" prevents that.
-o FILE writes the report that "manxctl ipam release --from-report" takes, in calicoctl's form. FILE must not exist.

Exit codes: 0 checked; 1 error; 2 usage; 4 with --exit-code: there are contradictions.`,
		Example: "  manxctl ipam check\n  manxctl ipam check --show-problem-ips\n  manxctl ipam check -o report.json",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			store, err := c.open(cmd.Context())
			if err != nil {
				return err
			}
			defer store.Close() //nolint:errcheck // nothing was written
			report, result, err := c.checkIPAM(cmd.Context(), store)
			if err != nil {
				return err
			}
			if err := c.printCheck(result, all, all || problems); err != nil {
				return err
			}
			if file != "" {
				if err := writeReport(file, report); err != nil {
					return err
				}
			}
			if exitCode && result.Count() > 0 {
				return &exitErr{exitUnhealthy, ""}
			}
			return nil
		},
	}
	f := cmd.Flags()
	f.StringVarP(&file, "output", "o", "", "write a report for \"ipam release\" to this file")
	f.BoolVar(&all, "show-all-ips", false, "show all addresses")
	f.BoolVar(&problems, "show-problem-ips", false, "show each contradiction")
	f.BoolVar(&exitCode, "exit-code", false, "end with exit code 4 if there are contradictions")
	return cmd
}

// checkIPAM reads the objects and checks them. The cluster's own data come first: a lock that ends meanwhile is noticed
// by the release.
func (c *cli) checkIPAM(ctx context.Context, store datastore.Store) (check.Report, check.Result, error) {
	report, err := c.clusterReport(ctx, store)
	if err != nil {
		return report, check.Result{}, err
	}
	objects, unusable, err := readUsable(ctx, store, check.Kinds...)
	if err != nil {
		return report, check.Result{}, err
	}
	if len(unusable) > 0 { // its addresses would count as unused, and another pod would get them
		o := unusable[0]
		return report, check.Result{}, fmt.Errorf("%s cannot be read, and with it the addresses that it uses: %w",
			o.Key, o.Err)
	}
	_, _, err = store.List(ctx, model.KindService, "")
	result := check.Check(objects, err == nil)
	report.Allocations, report.LeakedHandles = result.Allocations, result.Idle
	return report, result, nil
}

// clusterReport is a report without addresses.
func (c *cli) clusterReport(ctx context.Context, store datastore.Store) (check.Report, error) {
	r := check.Report{Version: calicoVersion, Allocations: map[string][]*check.Allocation{}}
	o, err := store.Get(ctx, model.ResourceKey(model.KindClusterInformation, "default"))
	if errors.Is(err, datastore.ErrNotFound) {
		return r, nil // no node has started yet
	}
	if err != nil {
		return r, err
	}
	if info, ok := o.Value.(*v3.ClusterInformation); ok {
		r.ClusterGUID, r.ClusterType = info.Spec.ClusterGUID, info.Spec.ClusterType
		r.DatastoreLocked = model.Locks(o)
		r.ClusterInformationRevision = fmt.Sprint(o.Revision)
	}
	return r, nil
}

func (c *cli) printCheck(r check.Result, all, problems bool) error {
	var b strings.Builder
	addresses := 0
	for _, list := range r.Allocations {
		addresses += len(list)
	}
	fmt.Fprintf(&b, "Checking IPAM for inconsistencies...\n"+
		"Found %d IPAM blocks with %d addresses, and %d enabled pools.\n"+
		"Found %d addresses of workloads, %d of tunnels of nodes and %d of services.\n", r.Blocks, addresses,
		len(r.Pools), r.Endpoints, r.Tunnels, r.Services)
	if all {
		var list []string
		for _, assigned := range r.Allocations {
			for _, a := range assigned {
				used := "not used"
				if a.InUse {
					used = "used by " + strings.Join(a.Owners, ", ")
				}
				list = append(list, "  "+a.Text()+", "+used+"\n")
			}
		}
		slices.Sort(list)
		b.WriteString(strings.Join(list, ""))
	}
	for _, p := range check.Problems {
		fmt.Fprintf(&b, "Found %d %s.\n", len(r.Found[p]), p)
		if problems {
			for _, text := range r.Found[p] {
				fmt.Fprintf(&b, "  %s\n", text)
			}
		}
	}
	fmt.Fprintf(&b, "Check complete; found %d problems.\n", r.Count())
	_, err := fmt.Fprint(c.out, b.String())
	return err
}

func writeReport(file string, r check.Report) error {
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	return archive.Create(file, func(w io.Writer) error {
		_, err := fmt.Fprintf(w, "%s\n", text)
		return err
	})
}
