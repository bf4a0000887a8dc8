package main

import (
	"context"
	"fmt"
	"slices"

	"github.com/manxnet/manx/daemon/deps"
	"github.com/manxnet/manx/daemon/lastrun"
	"github.com/manxnet/manx/daemon/part"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/proto/server"
)

// tablesPart maintains the tables of the datastore, with the kinds that parts need.
type tablesPart struct {
	deps.Deps
	kinds []model.Kind
}

func newTables(d deps.Deps, last *lastrun.Part, parts []part.Part) *tablesPart {
	t := &tablesPart{Deps: d}
	all := append([]part.Part{t}, parts...)
	t.kinds = slices.DeleteFunc(part.Merged(all...).Kinds(), func(k model.Kind) bool {
		return !d.Store.Keeps(k)
	})
	d.Control.Datastore.Show(server.DatastoreSource{Type: d.Node.Datastore, Tables: d.Tables, Store: d.Store,
		SourceOf: d.Store.Source, Last: last.InUse})
	return t
}

func (t *tablesPart) Name() string        { return "datastore" }
func (t *tablesPart) Ready() server.Check { return t.Control.Datastore.Ready() }

// Notices are about the datastore as a whole.
func (t *tablesPart) Notices() (list []server.Notice) {
	for _, text := range t.Store.Notices() {
		list = append(list, server.Notice{Topic: "datastore", Subject: t.Node.Datastore, Text: text})
	}
	list = append(list, locked(t.Tables.Snapshot())...)
	if r := t.Tables.Status().Rollback; r.From != 0 {
		list = append(list, server.Notice{Topic: "datastore", Subject: t.Node.Datastore, Since: r.At,
			Text: fmt.Sprintf("it went back from revision %d to %d: it was restored from an earlier state. The writes "+
				"between the two are lost, addresses of containers too; those in use on this host are not assigned "+
				"again. This notice stays until manxd is restarted", r.From, r.To)})
	}
	return list
}

// locked returns the notice of a datastore that is locked.
func locked(r model.Reader) []server.Notice {
	if !model.Locked(r) {
		return nil
	}
	return []server.Notice{{Topic: "datastore", Subject: "ClusterInformation/default",
		Text: "the datastore is locked (datastoreReady is false), as during a migration: pods are neither attached " +
			"nor detached, and no node that starts joins, until \"manxctl datastore unlock\""}}
}

// Needs returns the kinds that the control API shows for the whole cluster; explanations name whose a block is.
func (t *tablesPart) Needs() part.Needs {
	return part.AllOf(model.KindNode, model.KindClusterInformation, model.KindBlockAffinity)
}

// Run only fails permanently: the store was closed, and is not opened again.
func (t *tablesPart) Run(ctx context.Context) error {
	return part.Fatal(t.Tables.Run(ctx, t.Store, t.kinds...))
}
