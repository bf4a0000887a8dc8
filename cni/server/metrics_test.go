package server

import (
	"context"
	"maps"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/manxnet/manx/cni"
)

// Requests are counted by step and outcome. Steps that do not exist, which a plugin of another version may send, share
// one series.
func TestRequestsAreCounted(t *testing.T) {
	b := &backend{respond: func(_ context.Context, q *cni.Request) *cni.Response {
		r := &cni.Response{Version: 1}
		if q.Step == cni.StepDel {
			r.Error = types.NewError(types.ErrInternal, "no", "")
		}
		return r
	}}
	s := New(b, zap.NewNop())
	path := serveWith(t, s)
	for _, step := range []cni.Step{cni.StepAdd, cni.StepAdd, cni.StepDel, "dance", "sing"} {
		if _, err := cni.Socket(path).Call(t.Context(), &cni.Request{Version: 1, Step: step,
			Config: []byte("{}")}); err != nil {
			t.Fatal(err)
		}
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(s)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]uint64{}
	for _, m := range families[0].GetMetric() { // labels are in the order of their names
		got[m.GetLabel()[1].GetValue()+" "+m.GetLabel()[0].GetValue()] = m.GetHistogram().GetSampleCount()
	}
	if want := map[string]uint64{"add ok": 2, "del error": 1, "unknown ok": 2}; !maps.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}
