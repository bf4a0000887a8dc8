package check

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Report is the file that "ipam check -o" writes and "ipam release --from-report" reads, in calicoctl's form.
type Report struct {
	Version                    string                   `json:"version"`
	ClusterGUID                string                   `json:"clusterGUID"`
	DatastoreLocked            bool                     `json:"datastoreLocked"`
	ClusterInformationRevision string                   `json:"clusterInformationRevision"`
	ClusterType                string                   `json:"clusterType"`
	Allocations                map[string][]*Allocation `json:"allocations"`
	LeakedHandles              []Handle                 `json:"leakedHandles,omitempty"`
}

// Usable returns why the reports do not allow a release in the cluster of now, a report without allocations. force
// accepts a datastore that is not locked, and reports of other versions or of an earlier lock; never those of another
// cluster.
func Usable(reports []Report, now Report, force bool) error {
	current := false
	for _, r := range reports {
		switch {
		case r.ClusterGUID != now.ClusterGUID:
			return fmt.Errorf("a report is of another cluster: its clusterGUID is %q, not %q", r.ClusterGUID,
				now.ClusterGUID)
		case r.Version != now.Version && !force:
			return fmt.Errorf("a report is of another version, %q and not %q: check again, or use --force", r.Version,
				now.Version)
		}
		current = current || r.ClusterInformationRevision == now.ClusterInformationRevision
	}
	switch {
	case force:
		return nil
	case !now.DatastoreLocked:
		return errors.New("the datastore is not locked, so an address may be assigned meanwhile: use \"manxctl " +
			"datastore lock\" and check again, or --force")
	case !current:
		return errors.New("no report was made since the datastore was locked: check again, or use --force")
	}
	return nil
}

// Common returns the leaked addresses and the idle handles that all reports have, unchanged.
func Common(reports []Report) (leaked []*Allocation, idle []Handle) {
	seen, handles := map[string]int{}, map[Handle]int{}
	for _, r := range reports {
		for _, list := range r.Allocations {
			for _, a := range list {
				if !a.InUse && !a.CoolingDown {
					seen[a.identity()]++
				}
			}
		}
		for _, h := range r.LeakedHandles {
			handles[h]++
		}
	}
	if len(reports) == 0 {
		return nil, nil
	}
	for _, ip := range slices.Sorted(maps.Keys(reports[0].Allocations)) {
		for _, a := range reports[0].Allocations[ip] {
			if seen[a.identity()] == len(reports) {
				leaked = append(leaked, a)
			}
		}
	}
	for _, h := range reports[0].LeakedHandles {
		if handles[h] == len(reports) {
			idle = append(idle, h)
		}
	}
	return leaked, idle
}

// identity is the same for one assignment of an address.
func (a *Allocation) identity() string {
	sequence := "none"
	if a.SequenceNumber != nil {
		sequence = fmt.Sprint(*a.SequenceNumber)
	}
	return strings.Join([]string{a.IP, a.Handle, sequence}, "\n")
}
