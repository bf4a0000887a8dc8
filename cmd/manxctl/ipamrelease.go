package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/ipam"
	"github.com/manxnet/manx/ipam/check"
)

func (c *cli) ipamReleaseCommand() *cobra.Command {
	var address string
	var reports []string
	var force bool
	cmd := &cobra.Command{
		Use:   "release (--ip ADDRESS | --from-report FILE...)",
		Short: "Release an address, or those that no object uses by the reports of ipam check",
		Long: `Release an address that is assigned, or all addresses and handles that reports of "manxctl ipam check -o FILE" have as
unused. With several reports an address has to be in each of them, assigned to the same handle at the same time.

An address that a workload or a node uses is kept, unless --force is set: another pod would get it. For --from-report
the datastore has to be locked ("manxctl datastore lock"), and a report has to be made since, unless --force is set. A
report of another cluster is always refused. An address that was assigned anew since a report is kept.`,
		Example: "  manxctl ipam release --ip 10.244.3.17\n  manxctl ipam release --from-report report.json --force",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			addr, err := netip.ParseAddr(address)
			switch {
			case (address == "") == (len(reports) == 0):
				return usagef("use either --ip ADDRESS or --from-report FILE")
			case address != "" && (err != nil || addr.Zone() != ""):
				return usagef("--ip %q: want an IPv4 or IPv6 address", address)
			}
			store, err := c.open(cmd.Context())
			if err != nil {
				return err
			}
			defer store.Close() //nolint:errcheck // every release has been answered
			if address != "" {
				return c.releaseAddress(cmd.Context(), store, addr.Unmap(), force)
			}
			return c.releaseReported(cmd.Context(), store, reports, force)
		},
	}
	f := cmd.Flags()
	f.StringVar(&address, "ip", "", "the address to release")
	f.StringArrayVar(&reports, "from-report", nil, "a report of \"ipam check\"; may be repeated")
	f.BoolVar(&force, "force", false, "also an address that is used, or without a lock of the datastore")
	_ = cmd.MarkFlagFilename("from-report", "json")
	return cmd
}

// releaseAddress releases one address.
func (c *cli) releaseAddress(ctx context.Context, store datastore.Store, addr netip.Addr, force bool) error {
	_, result, err := c.checkIPAM(ctx, store)
	if err != nil {
		return err
	}
	release := ipam.Release{Address: addr}
	for _, a := range result.Allocations[addr.String()] {
		if len(a.Owners) > 0 && !force {
			return fmt.Errorf("%s is used by %s: delete that first, or use --force", addr, a.Owners[0])
		}
		release.Handle, release.Sequence = a.Handle, a.SequenceNumber // not another pod's, which has got it meanwhile
	}
	done, err := ipam.New(store, nil, nil).ReleaseIPs(ctx, release)
	if err != nil {
		return err
	}
	if len(done.Addresses) == 0 {
		return fmt.Errorf("%s is not assigned", addr)
	}
	return c.printf("Successfully released IP address %s", addr)
}

// releaseReported releases the addresses and handles that all reports have, and that are unused now, too.
func (c *cli) releaseReported(ctx context.Context, store datastore.Store, files []string, force bool) error {
	var reports []check.Report
	for _, file := range files {
		r, err := readReport(file)
		if err != nil {
			return err
		}
		reports = append(reports, r)
	}
	now, result, err := c.checkIPAM(ctx, store)
	if err != nil {
		return err
	}
	if err := check.Usable(reports, now, force); err != nil {
		return err
	}
	leaked, idle := check.Common(append(reports, now))
	allocator := ipam.New(store, nil, nil)
	var errs []error
	released := 0
	for _, a := range leaked {
		addr, err := netip.ParseAddr(a.IP)
		if err != nil {
			continue // now has none of that
		}
		done, err := allocator.ReleaseIPs(ctx, ipam.Release{Address: addr, Handle: a.Handle,
			Sequence: a.SequenceNumber})
		released += len(done.Addresses)
		if err != nil {
			errs = append(errs, err)
		}
	}
	handles := 0
	for _, h := range idle {
		revision, err := strconv.ParseInt(h.Revision, 10, 64)
		if err == nil {
			_, err = store.Delete(ctx, model.HandleKey(h.ID), revision)
		}
		switch {
		case err == nil:
			handles++
		case !errors.Is(err, datastore.ErrNotFound):
			errs = append(errs, err)
		}
	}
	if err := c.printf("Released %d addresses and %d handles; %d unused addresses are not in all reports", released,
		handles, len(result.Found[check.Leaked])-len(leaked)); err != nil {
		return err
	}
	if len(errs) > 0 {
		return c.report(errs)
	}
	return nil
}

func readReport(file string) (r check.Report, err error) {
	text, err := os.ReadFile(file)
	if err == nil {
		err = json.Unmarshal(text, &r)
	}
	if err != nil {
		return r, fmt.Errorf("%s: want a report of \"manxctl ipam check -o\": %w", file, err)
	}
	return r, nil
}
