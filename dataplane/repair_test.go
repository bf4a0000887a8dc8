package dataplane

import (
	"testing"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/manxnet/manx/dataplane/kernel"
)

// The log has a line for each route that other programs removed or changed, with the found state.
func TestRepairsAreLogged(t *testing.T) {
	w := newWorld(t)
	core, logs := observer.New(zapcore.WarnLevel)
	w.agent.log = zap.New(core)
	for _, e := range w.events() {
		e()
	}
	w.run()
	logs.TakeAll() // of these events one is a route that another puts there
	routes, err := w.fake.ListRoutes()
	if err != nil {
		t.Fatal(err)
	}
	var harmed kernel.Route
	for _, r := range routes {
		if r.Protocol == kernel.ProtocolBIRD && r.Dst.Addr().Is4() {
			harmed = r
		}
	}
	w.fake.DropRoute(harmed.Key())
	w.run()
	repairs := logs.FilterMessageSnippet("repaired").All()
	if len(repairs) != 1 {
		t.Fatalf("%d lines: %v", len(repairs), repairs)
	}
	f := repairs[0].ContextMap()
	if f["target"] != "route" || f["key"] != harmed.Key().String() || f["found"] != "nothing" ||
		f["wanted"] != harmed.String() {
		t.Errorf("the line is %v, harmed was %s", f, harmed)
	}
}
