package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	"github.com/spf13/cobra"

	"github.com/manxnet/manx/cmd/manxctl/archive"
	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/datastore/table"
	"github.com/manxnet/manx/ipam/check"
	manxv1 "github.com/manxnet/manx/proto/manx/v1"
)

func (c *cli) ipamCheckCommand() *cobra.Command {
	var file string
	var all, problems, exitCode, kernel bool
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Compare the records of addresses with the workloads, nodes and services that use them",
		Long: `Compare the records of IP address management with the objects that use addresses, and count the contradictions:
addresses that are assigned and not used, used and not assigned, used twice or by another pod than the one that they
are assigned to; handles that count other addresses than blocks have; blocks whose owner does not claim them; and nodes
that blocks and endpoints name, and that do not exist. With an etcd datastore the addresses of Services count as used.
--kernel adds the routes and addresses in the kernel of this node that nobody has; it asks the node's manxd.
--show-problem-ips shows each contradiction with its evidence and its age, as far as objects have a time.

An address that is assigned while the check runs may look like a contradiction: "manxctl datastore lock" prevents that.
-o json prints the contradictions as JSON. -o FILE writes the report that "manxctl ipam release --from-report" takes, in
calicoctl's form (./json for a file of that name). FILE must not exist. "manxctl ipam repair" repairs.

Exit codes: 0 checked; 1 error; 2 usage; 4 with --exit-code: there are contradictions.`,
		Example: "  manxctl ipam check\n  manxctl ipam check --show-problem-ips\n" +
			"  manxctl ipam check -o report.json\n  manxctl ipam check --kernel -o json",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			store, err := c.open(cmd.Context())
			if err != nil {
				return err
			}
			defer store.Close() //nolint:errcheck // nothing was written
			report, result, err := c.checkIPAM(cmd.Context(), store)
			if err == nil && kernel {
				err = c.checkKernel(cmd.Context(), &result)
			}
			if err != nil {
				return err
			}
			if file == string(table.JSON) {
				err = c.printFindings(result)
			} else if err = c.printCheck(result, all, all || problems); err == nil && file != "" {
				err = writeReport(file, report)
			}
			if err == nil && exitCode && result.Count() > 0 {
				err = &exitErr{exitUnhealthy, ""}
			}
			return err
		},
	}
	f := cmd.Flags()
	f.StringVarP(&file, "output", "o", "", "json, or a file to write a report for \"ipam release\" to")
	f.BoolVar(&all, "show-all-ips", false, "show all addresses")
	f.BoolVar(&problems, "show-problem-ips", false, "show each contradiction")
	f.BoolVar(&kernel, "kernel", false, "also compare with the kernel of this node, which its manxd reads")
	f.BoolVar(&exitCode, "exit-code", false, "end with exit code 4 if there are contradictions")
	return cmd
}

// checkKernel adds what is in the kernel of the daemon's node and belongs to nobody.
func (c *cli) checkKernel(ctx context.Context, result *check.Result) error {
	return c.daemon(ctx, func(ctx context.Context, m manxv1.ManxClient) error {
		routes, err := m.ListRoutes(ctx, &manxv1.ListRoutesRequest{})
		if err != nil {
			return err
		}
		objects, err := m.ListHostObjects(ctx, &manxv1.ListHostObjectsRequest{})
		if err != nil {
			return err
		}
		for _, r := range routes.GetRoutes() {
			for _, text := range r.GetActual() {
				result.AddKernel(r.GetPrefix(), "route "+text, fromUnixMs(r.GetSinceUnixMs()))
			}
		}
		for _, o := range objects.GetObjects() {
			if o.GetActual() == "" {
				continue
			}
			for _, word := range strings.Fields(o.GetName() + " " + o.GetActual()) {
				result.AddKernel(word, "address "+o.GetName(), fromUnixMs(o.GetSinceUnixMs()))
			}
		}
		return nil
	})
}

func fromUnixMs(ms int64) time.Time {
	if ms == 0 {
		return time.Time{}
	}
	return time.UnixMilli(ms).UTC()
}

// printFindings prints the counts and the contradictions as JSON.
func (c *cli) printFindings(r check.Result) error {
	list := []check.Finding{}
	for _, p := range check.Problems {
		list = append(list, r.Found[p]...)
	}
	text, err := json.MarshalIndent(map[string]any{"blocks": r.Blocks, "addresses": r.Addresses(),
		"pools": len(r.Pools), "endpoints": r.Endpoints, "tunnels": r.Tunnels, "services": r.Services,
		"problems": list}, "", "  ")
	if err != nil {
		return err
	}
	return c.printf("%s", text)
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
	result := check.Check(objects, check.Options{Services: err == nil})
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
	fmt.Fprintf(&b, "Checking IPAM for inconsistencies...\n"+
		"Found %d IPAM blocks with %d addresses, and %d enabled pools.\n"+
		"Found %d addresses of workloads, %d of tunnels of nodes and %d of services.\n", r.Blocks, r.Addresses(),
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
	now := time.Now()
	for _, p := range check.Problems {
		fmt.Fprintf(&b, "Found %d %s.\n", len(r.Found[p]), p.Title())
		if problems {
			for _, f := range r.Found[p] {
				fmt.Fprintf(&b, "  %s\n", f.Line(now))
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
