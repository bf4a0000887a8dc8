package check

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/ipam"
)

// Step is one step of a repair.
type Step struct {
	Do     string `json:"do"`
	Reason string `json:"reason"`

	of Finding
}

// Kept is a finding that a repair leaves alone, and why.
type Kept struct {
	Finding
	Why string `json:"why"`
}

// Plan returns the steps that repair the findings, and the findings that stay. An address is released only if it is a
// pod's, its age is known and at least grace, nothing uses it, and all addresses of its handle are like that.
func (r Result) Plan(now time.Time, grace time.Duration) (steps []Step, kept []Kept) {
	held := r.heldHandles(now, grace)
	for _, p := range Problems {
		for _, f := range r.Found[p] {
			do, why := r.step(f, now, grace, held)
			if why != "" {
				kept = append(kept, Kept{f, why})
			} else {
				steps = append(steps, Step{Do: do, Reason: f.Line(now), of: f})
			}
		}
	}
	return steps, kept
}

// heldHandles returns why the addresses of a handle stay, by handle: one of them stays.
func (r Result) heldHandles(now time.Time, grace time.Duration) map[string]string {
	held := map[string]string{}
	for _, list := range r.Allocations {
		for _, a := range list {
			if why := r.holds(a, now, grace); why != "" && a.Handle != "" && held[a.Handle] == "" {
				held[a.Handle] = "its handle has " + a.IP + " too, which stays: " + why
			}
		}
	}
	return held
}

// holds returns why an address is not released, empty if it may be.
func (r Result) holds(a *Allocation, now time.Time, grace time.Duration) string {
	since := parseTime(a.Created)
	switch {
	case a.InUse || len(r.Allocations[a.IP]) > 1:
		return "it is in use"
	case len(r.Unreadable) > 0:
		return "an address of " + r.Unreadable[0] + " cannot be read, it may be this one"
	case slices.ContainsFunc(r.pinned, func(p netip.Prefix) bool { return p.Contains(a.addr) }):
		return "an endpoint claims it"
	case a.Pod == "" || a.machine != "" || a.Handle == "":
		return "it is not known that it was a pod's alone: manxctl ipam release --ip " + a.IP + " releases it"
	case since.IsZero():
		return "its age is unknown: manxctl ipam release --ip " + a.IP + " releases it"
	case now.Sub(since) < grace:
		return fmt.Sprintf("it is younger than the grace period of %s", grace)
	}
	return ""
}

// step returns the step for a finding, or why there is none.
func (r Result) step(f Finding, now time.Time, grace time.Duration, held map[string]string) (do, why string) {
	aff := f.fix.affinity
	switch {
	case f.fix.leak != nil:
		if why = r.holds(f.fix.leak, now, grace); why == "" {
			why = held[f.fix.leak.Handle]
		}
		return "release address " + f.Subject, why
	case f.fix.handle != "":
		return "correct the counts of handle " + f.fix.handle, ""
	case f.fix.useless.IsValid():
		return "delete block " + f.fix.useless.String(), ""
	case !aff.CIDR.IsValid():
		return "", cmp.Or(f.Evidence, "it is not assigned") + ", which needs a decision: delete or restart what has " +
			"the wrong address"
	case !wellFormed(aff):
		return "", "its owner has no valid name"
	case f.fix.vacate && (f.Since.IsZero() || now.Sub(f.Since) < grace):
		return "", "the age of the claim is unknown or below the grace period"
	case f.fix.vacate && r.inBlock(aff.CIDR):
		return "", "the block has addresses"
	case f.fix.vacate:
		return "release the empty block " + aff.CIDR.String() + " of " + aff.String(), ""
	}
	return "correct the affinity of " + aff.String() + " to " + aff.CIDR.String(), ""
}

// wellFormed reports whether an affinity is the one that its key names, and no other.
func wellFormed(aff model.Affinity) bool {
	again, ok := model.AffinityKey(aff).Affinity()
	return ok && again == aff && aff.Host != "" && aff.Type != ""
}

func (r Result) inBlock(cidr netip.Prefix) bool {
	for _, list := range r.Allocations {
		if cidr.Contains(list[0].addr) {
			return true
		}
	}
	return false
}

// Outcome is the end of a step: done, skipped because its facts have changed, or failed.
type Outcome struct {
	Step
	Skipped string
	Err     error
}

// atOnce is the number of steps after which the facts are read again.
const atOnce = 32

// Repair applies steps. again makes the plan anew: a step that it no longer has is skipped. Each write is a
// compare-and-swap, and before it releases an address, the endpoint that the assignment names is read.
func Repair(
	ctx context.Context, store ipam.Store, steps []Step, again func(context.Context) ([]Step, error),
) (list []Outcome, err error) {
	allocator := ipam.New(store, nil, nil)
	for batch := range slices.Chunk(steps, atOnce) {
		now, err := again(ctx)
		if err != nil {
			return list, err
		}
		for _, s := range batch {
			o := Outcome{Step: s}
			if slices.ContainsFunc(now, s.same) {
				o.Skipped, o.Err = s.apply(ctx, store, allocator)
			} else {
				o.Skipped = "its facts have changed"
			}
			list = append(list, o)
		}
	}
	return list, nil
}

// same reports whether two steps are about the same contradiction, unchanged.
func (s Step) same(t Step) bool {
	a, b := s.of.fix.leak, t.of.fix.leak
	if a == nil || b == nil {
		return a == b && s.Do == t.Do && s.of.Problem == t.of.Problem
	}
	return a.identity() == b.identity()
}

func (s Step) apply(ctx context.Context, store ipam.Store, allocator *ipam.Allocator) (skipped string, err error) {
	switch x := s.of.fix; {
	case x.leak != nil:
		return release(ctx, store, allocator, x.leak)
	case x.handle != "":
		return "", count(ctx, allocator, x.handle, x.blocks)
	case x.useless.IsValid():
		_, err = allocator.CollectCold(ctx, x.useless)
		return "", err
	case x.vacate:
		err = allocator.ReleaseAffinity(ctx, ipam.Owner{Type: x.affinity.Type, Name: x.affinity.Host}, x.affinity.CIDR,
			true)
		if errors.Is(err, ipam.ErrNotEmpty) || errors.Is(err, model.ErrNotFound) {
			return err.Error(), nil
		}
		return "", err
	default:
		return "", allocator.SettleAffinity(ctx, x.affinity)
	}
}

// count corrects a handle. Too few are counted first, since a handle without counts is deleted.
func count(ctx context.Context, allocator *ipam.Allocator, handle string, blocks []netip.Prefix) error {
	for _, b := range blocks {
		if err := allocator.CountHandle(ctx, handle, b); err != nil {
			return err
		}
	}
	return allocator.SettleHandle(ctx, handle)
}

func release(
	ctx context.Context, store ipam.Store, allocator *ipam.Allocator, a *Allocation,
) (skipped string, err error) {
	name, err := model.WorkloadEndpointName(model.WorkloadEndpointIDs{Node: a.Node, Orchestrator: "k8s", Pod: a.Pod,
		Endpoint: "eth0"})
	if err != nil {
		return "its pod has no valid name", nil //nolint:nilerr // it is kept
	}
	o, err := store.Get(ctx, model.Key{Kind: model.KindWorkloadEndpoint, Namespace: a.Namespace, Name: name})
	switch w := o.Workload(); {
	case err != nil && !errors.Is(err, model.ErrNotFound):
		return "", err
	case err == nil && (w == nil || len(w.Networks) == 0 || w.Has(a.addr) || w.Confirmed().Has(a.addr)):
		return "its pod has it by now, or has no address yet", nil
	}
	done, err := allocator.ReleaseIPs(ctx, ipam.Release{Address: a.addr, Handle: a.Handle, Sequence: a.SequenceNumber})
	var other *ipam.MismatchError
	switch {
	case errors.As(err, &other):
		return strings.TrimPrefix(err.Error(), "release "), nil
	case err == nil && len(done.Addresses) == 0:
		return "it is not assigned any more", nil
	}
	return "", err
}
