package check

import (
	"net/netip"
	"reflect"
	"slices"
	"testing"

	"github.com/manxnet/manx/datastore/model"
)

// TestContradictions finds each kind of contradiction once.
func TestContradictions(t *testing.T) {
	block := func(cidr, owner string, handles ...string) *model.Object {
		b := &model.Block{CIDR: netip.MustParsePrefix(cidr), Allocations: make([]*int, 64),
			SequenceNumberForAllocation: map[string]uint64{}}
		if owner != "" {
			b.Affinity = &owner
		}
		for i, h := range handles {
			b.Allocations[i] = &i
			b.Attributes = append(b.Attributes, model.BlockAttribute{HandleID: &h, Secondary: map[string]string{
				"service": map[bool]string{true: "web"}[h == "service"]}})
		}
		return model.NewObject(model.BlockKey(b.CIDR), b)
	}
	affinity := func(host, cidr string, state model.AffinityState) *model.Object {
		return model.NewObject(model.AffinityKey(model.Affinity{Type: model.AffinityHost, Host: host,
			CIDR: netip.MustParsePrefix(cidr)}), &model.BlockAffinity{State: state})
	}
	objects := model.NewSet(
		block("10.0.0.0/26", "host:n1", "used", "leaked", "service"),
		affinity("n1", "10.0.0.0/26", model.StateConfirmed),
		block("10.0.0.64/26", "host:n1"), affinity("n2", "10.0.0.64/26", model.StateConfirmed),
		block("10.0.0.128/26", "host:n3"),
		affinity("n4", "10.0.0.192/26", model.StateConfirmed), affinity("n5", "10.0.1.0/26", model.StatePending),
		model.NewObject(model.HandleKey("used"), &model.Handle{}),
		model.NewObject(model.HandleKey("leaked"), &model.Handle{}),
		model.NewObject(model.HandleKey("idle"), &model.Handle{}),
		model.NewObject(model.ResourceKey(model.KindIPPool, "p"),
			&model.IPPool{Spec: model.IPPoolSpec{CIDR: "10.0.0.0/16"}}),
		model.NewObject(model.Key{Kind: model.KindWorkloadEndpoint, Namespace: "a", Name: "w"}, &model.WorkloadEndpoint{
			Spec: model.WorkloadEndpointSpec{IPNetworks: []string{"10.0.0.0/32", "10.0.0.9/32", "192.0.2.1/32"}}}))
	for _, n := range []string{"n1", "n2", "n3", "n4", "n5"} {
		k := model.ResourceKey(model.KindNode, n)
		objects[k] = model.NewObject(k, &model.Node{})
	}
	want := map[Problem][]string{
		Leaked:      {"10.0.0.1: handle leaked"},
		unassigned:  {"10.0.0.9: WorkloadEndpoint a/w"},
		foreign:     {"192.0.2.1: WorkloadEndpoint a/w"},
		idleHandles: {"idle"},
		missing:     {"service"},
		claims: {"10.0.0.128/26: its owner is host:n3, which has no affinity to it",
			"10.0.0.192/26: host:n4 claims it, and there is no such block",
			"10.0.0.64/26: host:n2 claims it, and its owner is host:n1"},
	}
	want[miscounted] = []string{"leaked", "used"}
	r := Check(objects, Options{})
	if got := textsOf(r); !reflect.DeepEqual(got, want) || r.Count() != 10 {
		t.Errorf("found\n%q\nwant\n%q", got, want)
	}
	if r = Check(objects, Options{Services: true}); len(r.Found[Leaked]) != 2 {
		t.Errorf("where services are known, %v are leaked", r.Found[Leaked])
	}
}

func textsOf(r Result) map[Problem][]string {
	all := map[Problem][]string{}
	for p, list := range r.Found {
		for _, f := range list {
			all[p] = append(all[p], f.Text)
		}
		slices.Sort(all[p])
	}
	return all
}

// TestReports: several reports have in common what did not change, and a report is for one cluster and one lock.
func TestReports(t *testing.T) {
	one, two := uint64(1), uint64(2)
	report := func(list ...*Allocation) Report {
		r := Report{Allocations: map[string][]*Allocation{}, LeakedHandles: []Handle{{ID: "h", Revision: "5"}}}
		for _, a := range list {
			r.Allocations[a.IP] = append(r.Allocations[a.IP], a)
		}
		return r
	}
	a := report(&Allocation{IP: "10.0.0.1", Handle: "x", SequenceNumber: &one}, &Allocation{IP: "10.0.0.2", Handle: "y",
		SequenceNumber: &one}, &Allocation{IP: "10.0.0.3", Handle: "z", InUse: true})
	b := report(&Allocation{IP: "10.0.0.1", Handle: "x", SequenceNumber: &one}, &Allocation{IP: "10.0.0.2", Handle: "y",
		SequenceNumber: &two}, &Allocation{IP: "10.0.0.3", Handle: "z"})
	leaked, idle := Common([]Report{a, b})
	if len(leaked) != 1 || leaked[0].IP != "10.0.0.1" || len(idle) != 1 {
		t.Errorf("in common are %v and %v", leaked, idle)
	}
	b.LeakedHandles[0].Revision = "6"
	if _, idle = Common([]Report{a, b}); len(idle) != 0 {
		t.Errorf("a handle that changed is in common: %v", idle)
	}
	now := Report{Version: "v1", ClusterGUID: "g", ClusterInformationRevision: "7", DatastoreLocked: true}
	same := now
	for _, c := range []struct {
		change       func(report, now *Report)
		usable, past bool // without and with force
	}{
		{func(_, _ *Report) {}, true, true},
		{func(r, _ *Report) { r.ClusterGUID = "other" }, false, false},
		{func(r, _ *Report) { r.Version = "v2" }, false, true},
		{func(r, _ *Report) { r.ClusterInformationRevision = "6" }, false, true},
		{func(_, n *Report) { n.DatastoreLocked = false }, false, true},
	} {
		r, n := same, now
		c.change(&r, &n)
		if ok := Usable([]Report{r}, n, false) == nil; ok != c.usable {
			t.Errorf("%+v: usable is %t", r, ok)
		}
		if ok := Usable([]Report{r}, n, true) == nil; ok != c.past {
			t.Errorf("%+v: usable by force is %t", r, ok)
		}
	}
}
