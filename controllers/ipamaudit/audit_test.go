package ipamaudit

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/zap"

	"github.com/manxnet/manx/controllers/memory"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/ipam"
	"github.com/manxnet/manx/ipam/check"
)

// TestAudit: what two looks 20 minutes apart have in common is a notice and a metric, until an audit finds it gone.
func TestAudit(t *testing.T) {
	store := memory.New()
	put := func(k model.Key, v any) { store.Put(model.NewObject(k, v)) }
	put(model.ResourceKey(model.KindIPPool, "p"), &model.IPPool{Spec: model.IPPoolSpec{CIDR: "10.0.0.0/16",
		BlockSize: 26, NodeSelector: "all()"}})
	put(model.ResourceKey(model.KindNode, "n1"), &model.Node{})
	put(model.HandleKey("idle"), &model.Handle{})
	assign := func(address, pod string) {
		if err := ipam.New(store, nil, nil).AssignIP(t.Context(), ipam.AddressRequest{Host: "n1", Handle: pod,
			Address: netip.MustParseAddr(address), Attrs: map[string]string{"node": "n1", "pod": pod}}); err != nil {
			t.Fatal(err)
		}
	}
	assign("10.0.0.1", "gone")
	view := memory.NewView(store)
	var a Auditor
	var pauses []time.Duration
	var reports []string
	looks := 0
	ctx, cancel := context.WithCancel(t.Context())
	look := func() (check.Result, bool, error) {
		switch looks++; looks {
		case 2:
			assign("10.0.0.2", "starting")
		case 4:
			return check.Result{}, false, errors.New("no answer") // the last report stays
		case 5:
			for _, h := range []string{"gone", "starting", "idle"} {
				_, _ = ipam.New(store, nil, nil).ReleaseByHandle(ctx, h)
				_ = ipam.New(store, nil, nil).SettleHandle(ctx, h)
			}
		}
		view.CatchUp(0)
		return look(ctx, store, view.Tables, nil)
	}
	err := a.run(ctx, zap.NewNop(), look, func(_ context.Context, d time.Duration) bool {
		pauses, reports = append(pauses, d), append(reports, a.Last().Text())
		if len(reports) == 3 {
			got := testutil.CollectAndCount(&a, "manx_ipam_problems")
			if got != len(check.Problems) {
				t.Errorf("%d series, want one for each of %d problems", got, len(check.Problems))
			}
		}
		if len(pauses) == 9 {
			cancel()
		}
		return ctx.Err() == nil
	})
	if !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	const both = "1 addresses that are assigned, and that no object uses; 1 handles without addresses"
	// Pauses: start, before the second look, after the audit, and so on; the second audit fails at its second look.
	want := []string{"", "", both, both, both, both, both, ""}
	if got := strings.Join(reports[:8], "|"); got != strings.Join(want, "|") {
		t.Errorf("reports\n%s\nwant\n%s", got, strings.Join(want, "|"))
	}
	for i, d := range pauses {
		if d < 18*time.Minute || d > 44*time.Minute {
			t.Errorf("pause %d lasts %s", i, d)
		}
	}
	if pauses[1] != lasting {
		t.Errorf("the second look comes after %s, want %s", pauses[1], lasting)
	}
	a.set(Report{})
	if n := testutil.CollectAndCount(&a); n != 0 {
		t.Errorf("%d series without an audit", n)
	}
}

// TestUnreadableEndpoint: an address that an unreadable endpoint may have is not leaked.
func TestUnreadableEndpoint(t *testing.T) {
	store := memory.New()
	if err := ipam.New(store, nil, nil).AssignIP(t.Context(), ipam.AddressRequest{Host: "n1", Handle: "h",
		Address: netip.MustParseAddr("10.0.0.1")}); err == nil {
		t.Fatal("an address without a pool")
	}
	store.Put(model.NewObject(model.ResourceKey(model.KindIPPool, "p"), &model.IPPool{Spec: model.IPPoolSpec{
		CIDR: "10.0.0.0/16", BlockSize: 26, NodeSelector: "all()"}}))
	if err := ipam.New(store, nil, nil).AssignIP(t.Context(), ipam.AddressRequest{Host: "n1", Handle: "h",
		Address: netip.MustParseAddr("10.0.0.1")}); err != nil {
		t.Fatal(err)
	}
	for _, broken := range []bool{false, true} {
		if broken {
			o := model.NewObject(model.Key{Kind: model.KindWorkloadEndpoint, Namespace: "a", Name: "w"},
				&model.WorkloadEndpoint{})
			o.Err = errors.New("not valid")
			store.Put(o)
		}
		view := memory.NewView(store)
		view.CatchUp(0)
		r, ok, err := look(t.Context(), store, view.Tables, nil)
		if err != nil || !ok || (len(r.Found[check.Leaked]) == 0) != broken {
			t.Errorf("broken %t: %v, %t, %v", broken, r.Found, ok, err)
		}
	}
}
