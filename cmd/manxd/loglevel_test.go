package main

import (
	"context"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/manxnet/manx/daemon/deps"
	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/felixconfig"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/proto/server"
)

// The level of the log follows the datastore while manxd runs, and leaves one that an operator has set as it is until
// the datastore has another one.
func TestLogLevelFollowsTheDatastore(t *testing.T) {
	tables := datastore.NewTables(zap.NewNop(), "")
	revision := int64(0)
	store := func(felix, bgp string) {
		revision++
		f, b := &model.FelixConfiguration{}, &model.BGPConfiguration{}
		f.Name, f.Spec.LogSeverityScreen, b.Name, b.Spec.LogSeverityScreen = "default", felix, "default", bgp
		var events []datastore.Event
		for key, value := range map[model.Key]any{model.ResourceKey(model.KindFelixConfiguration, "default"): f,
			model.ResourceKey(model.KindBGPConfiguration, "default"): b} {
			events = append(events, datastore.Event{Type: datastore.EventUpdate, Key: key, Revision: revision,
				Object: &model.Object{Key: key, Value: value, Revision: revision}})
		}
		tables.Apply(append(events, datastore.Event{Type: datastore.EventInSync, Revision: revision})...)
	}
	level := zap.NewAtomicLevelAt(zap.InfoLevel)
	d := deps.Deps{Tables: tables, Log: zap.NewNop(), Node: deps.Node{Name: "n1"},
		Control: server.New(server.Config{Level: level})}
	store("", "")
	p := newLogLevel(d, logOptions{level: "info"})
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx) }()
	await := func(want zapcore.Level) {
		t.Helper()
		for deadline := time.Now().Add(10 * time.Second); level.Level() != want; time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("the level is %v, want %v", level.Level(), want)
			}
		}
	}
	for _, c := range []struct {
		felix, bgp string
		want       zapcore.Level
	}{{"Debug", "", zap.DebugLevel}, {"Warning", "", zap.WarnLevel}, {"Warning", "Info", zap.InfoLevel},
		{"Fatal", "", zap.ErrorLevel}, {"Info", "Debug", zap.DebugLevel}, {"", "", zap.InfoLevel}} {
		store(c.felix, c.bgp)
		await(c.want)
	}
	level.SetLevel(zap.ErrorLevel) // manxctl loglevel
	store("Info", "")
	store("Trace", "")
	await(zap.DebugLevel)
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if newLogLevel(d, logOptions{level: "warn"}) != nil {
		t.Error("--log-level=warn does not decide")
	}
	d.Node.Felix = felixconfig.NewLocal([]string{"FELIX_LOGSEVERITYSCREEN=WARNING"}, "", "")
	l := &logLevel{Deps: d, bgp: "error"}
	if got := l.severity(tables.Snapshot()); got != zap.WarnLevel {
		t.Errorf("of the environment: %v", got)
	}
}
