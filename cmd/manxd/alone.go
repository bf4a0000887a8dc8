package main

import (
	"context"
	"errors"

	"github.com/spf13/cobra"

	"github.com/manxnet/manx/daemon/kubenode"
	"github.com/manxnet/manx/daemon/part"
	"github.com/manxnet/manx/datastore"
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
	d, err := newProcess(ctx, o, server.Config{NoNode: true, Settings: shown})
	if err != nil {
		return err
	}
	group := part.NewGroup(d.log, newControlSocket(d), newRemoteControl(d), newWeb(d), newWatchdog(d),
		&controllersAlone{d})
	group.Show(d.control)
	return group.Run(ctx)
}

// controllersAlone connects to the datastore and runs the controllers. Its errors end the process.
type controllersAlone struct{ *daemon }

func (a *controllersAlone) Name() string { return "cluster" }

// Run implements part.Part.
func (a *controllersAlone) Run(ctx context.Context) error { return part.Fatal(a.run(ctx)) }

func (a *controllersAlone) run(ctx context.Context) error {
	kube, err := a.kubernetesAPI(a.log)
	if err != nil {
		return err
	}
	store, closeStore, err := openStore(ctx, a.ofThisNode(), func(err error) {
		a.control.Datastore.Show(server.DatastoreSource{Type: a.options.datastore.kind,
			Waiting: "waiting for it: " + err.Error()})
	}, a.log)
	if err != nil {
		return err
	}
	defer closeStore()
	h := &host{daemon: a.daemon, kube: kube, tables: datastore.NewTables(a.log.Named("datastore"), a.name)}
	if h.events, err = newEvents(h); err != nil {
		return err
	}
	j := &joined{host: h, store: store}
	controllers, err := newControllers(j)
	if err != nil {
		return err
	}
	if controllers == nil {
		return usage(errors.New("there is nothing to run: --controllers is off, or auto and no Kubernetes API is " +
			"known"))
	}
	a.control.Datastore.Show(server.DatastoreSource{Type: a.options.datastore.kind, Tables: h.tables, Store: store})
	parts := []part.Part{&connection{j}, controllers}
	if h.events != nil {
		parts = append(parts, writtenEvents{h.events})
	}
	group := part.NewGroup(a.log, parts...)
	group.Show(a.control)
	return group.Run(ctx)
}

// writtenEvents are the Events that the controllers record.
type writtenEvents struct{ *kubenode.Events }

func (w writtenEvents) Name() string             { return "events" }
func (w writtenEvents) Notices() []server.Notice { return refusedEvents(w.Events) }

// Run implements part.Part.
func (w writtenEvents) Run(ctx context.Context) error {
	<-ctx.Done()
	return ctx.Err()
}

// connection shows whether the datastore answers, by one small object of it: a leader has the tables that it needs, and
// another candidate waits.
type connection struct{ *joined }

func (c *connection) Name() string        { return "datastore" }
func (c *connection) Ready() server.Check { return c.control.Datastore.Ready() }

// Run implements part.Part.
func (c *connection) Run(ctx context.Context) error {
	return part.Fatal(c.tables.Run(ctx, c.store, model.KindClusterInformation))
}
