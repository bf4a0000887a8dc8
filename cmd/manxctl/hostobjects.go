package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/manxnet/manx/datastore/table"
	manxv1 "github.com/manxnet/manx/proto/manx/v1"
)

// isHostObjects reports whether the word is for the objects that the daemon keeps on this host.
func isHostObjects(word string) bool {
	w := strings.ToLower(word)
	return w == "hostobjects" || w == "hostobject"
}

// getHostObjects prints the objects of all targets of the daemon, or of those named.
func (c *cli) getHostObjects(ctx context.Context, o getOptions, targets []string) error {
	if len(o.files.paths) > 0 || o.namespaces.given() || o.selector != "" || o.showLabels || o.format == table.Name ||
		o.template != nil {
		return usagef("host objects are those that manxd keeps on this host: -f, -n, -A, -l, --show-labels, " +
			"templates and -o name are for objects of the datastore")
	}
	if len(targets) == 0 {
		targets = []string{""}
	}
	answer := &manxv1.ListHostObjectsResponse{}
	err := c.daemon(ctx, func(ctx context.Context, m manxv1.ManxClient) error {
		for _, name := range targets {
			part, err := m.ListHostObjects(ctx, &manxv1.ListHostObjectsRequest{Target: name})
			if err != nil {
				return err
			}
			answer.Objects = append(answer.Objects, part.GetObjects()...)
		}
		return nil
	})
	switch {
	case err != nil:
		return err
	case o.format == table.JSON || o.format == table.YAML:
		return c.printStructured(o.format, answer)
	case len(answer.GetObjects()) == 0:
		c.complain([]string{"No host objects found."})
		return nil
	}
	g := hostObjectGrid(answer.GetObjects(), o.format == table.Wide, time.Now())
	return c.colorPhases(g).Write(c.out, !o.noHeaders)
}

func hostObjectGrid(objects []*manxv1.HostObject, wide bool, now time.Time) *table.Grid {
	g := &table.Grid{Heading: []string{"TARGET", "NAME", "PHASE", "SINCE"}}
	if wide {
		g.Heading = append(g.Heading, "DESIRED", "ACTUAL")
	}
	g.Heading = append(g.Heading, "REASON")
	for _, x := range objects {
		row := []string{x.GetTarget(), x.GetName(), x.GetPhase(), ago(x.GetSinceUnixMs(), now)}
		if wide {
			row = append(row, dash(fmt.Sprintf("%.60s", x.GetDesired())), dash(fmt.Sprintf("%.60s", x.GetActual())))
		}
		g.Add(append(row, x.GetReason())...)
	}
	return g
}
