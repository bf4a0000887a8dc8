package controllers

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/manxnet/manx/controllers/calicotest"
	"github.com/manxnet/manx/controllers/mistakes"
	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/kubernetes"
	"github.com/manxnet/manx/datastore/model"
)

// reports has the newest report of the controllers.
type reports struct {
	mu   sync.Mutex
	last map[string]string
}

func (r *reports) take(list map[corev1.ObjectReference]string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.last = map[string]string{}
	for ref, text := range list {
		if ref.UID == "" || ref.APIVersion != "projectcalico.org/v3" {
			text = "not about the object: " + ref.String()
		}
		r.last[ref.Kind+"/"+ref.Name] = text
	}
}

func (r *reports) get() map[string]string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.last
}

// The controllers report the objects that the API server has taken although they break a rule, alone or with others.
// They do not report objects that Manx itself makes, and objects that cannot be used at all. A report ends when the
// object is mended, or the other object.
func TestMistakesAreReported(t *testing.T) {
	t.Parallel()
	f := newFinalized(t)
	var r reports
	m := f.manager("first")
	m.Report = r.take
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); _ = m.Run(ctx) }()
	defer func() { cancel(); <-done }()

	f.create("ippools", "IPPool", "pods", `{"cidr":"10.7.0.0/24"}`)
	f.create("tiers", "Tier", "default", `{"order":1000000,"defaultAction":"Deny"}`)
	f.create("globalnetworkpolicies", "GlobalNetworkPolicy", "good", `{"tier":"default","selector":"all()"}`)
	f.create("bgppeers", "BGPPeer", "unusable", `{"peerSelector":"has("}`)
	f.create("globalnetworkpolicies", "GlobalNetworkPolicy", "nowhere.deny", `{"tier":"nowhere"}`)
	f.create("globalnetworkpolicies", "GlobalNetworkPolicy", "bits",
		`{"tier":"default","ingress":[{"action":"Allow","source":{"nets":["10.1.2.3/8"]}}]}`)
	f.create("bgppeers", "BGPPeer", "tor", `{"peerIP":"10.0.1.1","asNumber":65001,"filters":["missing"]}`)
	time.Sleep(time.Second) // creation timestamps have whole seconds
	f.create("ippools", "IPPool", "inside", `{"cidr":"10.7.0.0/25"}`)
	reported := func(want map[string]string) func() bool {
		return func() bool {
			have := r.get()
			for object, text := range want {
				if !strings.Contains(have[object], text) {
					return false
				}
			}
			return len(have) == len(want)
		}
	}
	check := func(what string, want map[string]string) {
		t.Helper()
		defer func() {
			if t.Failed() {
				have := r.get()
				t.Logf("reported: %v", have)
			}
		}()
		calicotest.Eventually(t, what, reported(want))
	}
	check("each mistake", map[string]string{
		"GlobalNetworkPolicy/nowhere.deny": `spec.tier = "nowhere": must be a tier that exists`,
		"GlobalNetworkPolicy/bits":         "must not have host bits set",
		"BGPPeer/tor":                      `spec.filters[0] = "missing": must be a BGPFilter that exists`,
		"IPPool/inside":                    "overlaps the older pool pods",
	})
	f.create("tiers", "Tier", "nowhere", `{"order":5}`)
	f.create("bgpfilters", "BGPFilter", "missing", `{}`)
	f.api.Request(t, http.MethodDelete, native+"ippools/pods", nil)
	f.api.Request(t, http.MethodPatch, native+"globalnetworkpolicies/bits", fmt.Appendf(nil,
		`{"spec":{"ingress":[{"action":"Allow","source":{"nets":[%q]}}]}}`, "10.0.0.0/8"))
	check("all are mended", map[string]string{})
}

// A kind that cannot be listed is named in the state, and the objects of the other kinds are reported.
func TestMistakesBesideAnUnreadableKind(t *testing.T) {
	t.Parallel()
	f := newFinalized(t)
	var r reports
	m := f.manager("first")
	m.Store, m.Report = unreadable{f.store, model.KindBGPPeer}, r.take
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); _ = m.Run(ctx) }()
	defer func() { cancel(); <-done }()
	f.create("globalnetworkpolicies", "GlobalNetworkPolicy", "nowhere.deny", `{"tier":"nowhere"}`)
	calicotest.Eventually(t, "the policy is reported", func() bool {
		return strings.Contains(r.get()["GlobalNetworkPolicy/nowhere.deny"], "must be a tier that exists")
	})
	calicotest.Eventually(t, "the state names the kind", func() bool {
		s := m.State()
		return strings.Contains(s.Unread, "bgppeers are not for you") && s.Problem == ""
	})
}

// unreadable is a store that refuses to list a kind.
type unreadable struct {
	*kubernetes.Store
	kind model.Kind
}

func (u unreadable) Watch(ctx context.Context, kinds ...model.Kind) <-chan datastore.Event {
	if !slices.Contains(kinds, u.kind) {
		return u.Store.Watch(ctx, kinds...)
	}
	out := make(chan datastore.Event, 1)
	out <- datastore.Event{Type: datastore.EventLost, Kinds: []model.Kind{u.kind},
		Err: errors.New("bgppeers are not for you")}
	go func() { <-ctx.Done(); close(out) }()
	return out
}

// The tables have all kinds that reports need, also where other programs assign addresses.
func TestTablesHaveTheKindsOfReports(t *testing.T) {
	shared, _ := mistakes.Kinds()
	for _, noIPAM := range []bool{false, true} {
		have, _ := kindsOf(true, noIPAM)
		for _, kind := range shared {
			if !slices.Contains(have, kind) {
				t.Errorf("without IPAM: %t: %s is missing", noIPAM, kind)
			}
		}
	}
}
