package main

import (
	"context"
	"errors"

	"github.com/spf13/cobra"

	"github.com/manxnet/manx/daemon/deps"
	"github.com/manxnet/manx/daemon/kubereport"
	"github.com/manxnet/manx/daemon/part"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/proto/server"
)

func controllersCommand(o *options, shown *[]server.Setting) *cobra.Command {
	return &cobra.Command{
		Use:         "controllers",
		Annotations: map[string]string{logsAnnotation: "yes"},
		Short:       "Run the controllers of the cluster alone, without a node",
		Long: `controllers takes part in the election of the controllers, and runs them while it leads, as manxd itself does unless
--controllers is off. It changes nothing on this host, needs no privileges and runs beside manxd: give it another
--run-dir and another port of --http-listen. --node-name is its name in the election, and must be unique.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.check(); err != nil {
				return usage(err)
			}
			return runControllers(cmd.Context(), *o, *shown)
		},
	}
}

// runControllers serves the control API, and runs the controllers until ctx ends or the datastore fails permanently.
func runControllers(ctx context.Context, o options, shown []server.Setting) error {
	ctx, ended := untilMoved(ctx, &o.datastore.kube)
	d, err := newProcess(ctx, o, server.Config{NoNode: true, Settings: shown})
	if err != nil {
		return err
	}
	group := part.NewGroup(d.deps.Log, append(d.listeners(), &controllersAlone{d})...)
	group.Show(d.deps.Control)
	return ended(group.Run(ctx))
}

// controllersAlone connects to the datastore and runs the controllers. Its errors end the process.
type controllersAlone struct{ *daemon }

func (a *controllersAlone) Name() string { return "cluster" }

// Run implements part.Part.
func (a *controllersAlone) Run(ctx context.Context) error { return part.Fatal(a.run(ctx)) }

func (a *controllersAlone) run(ctx context.Context) (err error) {
	deps := a.deps
	if deps.Kube, err = a.options.kubernetesAPI(deps.Log); err != nil {
		return err
	}
	store, closeStore, err := openStore(ctx, a.ofThisNode(), func(err error) {
		deps.Control.Datastore.Show(server.DatastoreSource{Type: deps.Node.Datastore,
			Waiting: "waiting for it: " + err.Error()})
	}, deps.Log)
	if err != nil {
		return err
	}
	defer closeStore()
	deps.Store = store
	if deps.Events, err = kubereport.NewRecorder(deps); err != nil {
		return err
	}
	controllers, err := newControllers(deps, a.options.controllers, a.options.kubernetes())
	if err != nil {
		return err
	}
	if controllers == nil {
		return usage(errors.New("there is nothing to run: --controllers is off, or auto and no Kubernetes API is " +
			"known"))
	}
	deps.Control.Datastore.Show(server.DatastoreSource{Type: deps.Node.Datastore, Tables: deps.Tables, Store: store,
		SourceOf: store.Source})
	parts := []part.Part{&connection{deps}, controllers}
	if deps.Events != nil {
		parts = append(parts, kubereport.Written{Events: deps.Events})
	}
	group := part.NewGroup(deps.Log, parts...)
	group.Show(deps.Control)
	return group.Run(ctx)
}

// connection shows whether the datastore answers, by one small object of it: a leader has the tables that it needs, and
// another candidate waits.
type connection struct{ deps.Deps }

func (c *connection) Name() string        { return "datastore" }
func (c *connection) Ready() server.Check { return c.Control.Datastore.Ready() }

// Run implements part.Part.
func (c *connection) Run(ctx context.Context) error {
	return part.Fatal(c.Tables.Run(ctx, c.Store, model.KindClusterInformation))
}
