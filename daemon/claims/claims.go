// Package claims confirms addresses that pods of this node have by their annotations alone.
package claims

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/manxnet/manx/daemon/deps"
	"github.com/manxnet/manx/daemon/part"
	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/connect"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/ipam"
	"github.com/manxnet/manx/proto/server"
)

// Part is a part of the daemon. The CNI engine confirms the addresses of the containers that it attaches; the others,
// such as those attached while this process was away, need a record of IPAM. Other claims wait for the kubelet's status
// of the pod.
type Part struct {
	deps.Deps
	log *zap.Logger

	mu   sync.Mutex
	open map[model.Key]*claim
}

// The least times between two reads of the datastore, between two about one endpoint, and between two about one claim:
// whoever may change a pod decides how often it changes.
const (
	claimsPause   = 200 * time.Millisecond
	endpointPause = time.Second
	claimPause    = 10 * time.Second
)

// claim is an endpoint whose addresses are only claimed.
type claim struct {
	endpoint *model.Workload
	since    time.Time
	read     time.Time // of its endpoint, last
	next     time.Time // of the next read
	refused  bool      // there is no such record
}

// New returns the part, nil if endpoints are not pods.
func New(d deps.Deps) *Part {
	if d.Node.Datastore != connect.Kubernetes {
		return nil
	}
	return &Part{Deps: d, log: d.Log.Named("claims"), open: map[model.Key]*claim{}}
}

// Name implements part.Part.
func (c *Part) Name() string { return "claims" }

// Needs implements part.Watcher.
func (c *Part) Needs() part.Needs { return part.OwnOf(model.KindWorkloadEndpoint) }

// Run implements part.Part.
func (c *Part) Run(ctx context.Context) error {
	pause := time.NewTicker(claimsPause)
	defer pause.Stop()
	var seen *datastore.Snapshot
	for {
		now := c.Tables.Snapshot()
		c.follow(now, seen)
		seen = now
		var due <-chan time.Time
		if len(c.open) > 0 {
			due = pause.C
		}
		select {
		case <-due:
			c.readNext(ctx)
		case <-now.Replaced():
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// follow takes over the claims that are new or gone.
func (c *Part) follow(now, before *datastore.Snapshot) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for change := range now.Changes(before) {
		if change.Key.Kind != model.KindWorkloadEndpoint {
			continue
		}
		w := change.New.Workload()
		if w == nil || w.Node != c.Node.Name || w.Claim == nil {
			delete(c.open, change.Key)
			continue
		}
		next := &claim{endpoint: w, since: time.Now()}
		if was := c.open[change.Key]; was != nil {
			next.read, next.next = was.read, was.read.Add(endpointPause)
			if slices.Equal(was.endpoint.Claim.IPNetworks, w.Claim.IPNetworks) {
				next.since, next.next, next.refused = was.since, was.next, was.refused
			}
		}
		c.open[change.Key] = next
	}
}

// readNext reads the record of one claim that is due.
func (c *Part) readNext(ctx context.Context) {
	now := time.Now()
	for key, open := range c.open {
		if open.next.After(now) {
			continue
		}
		err := c.record(ctx, open.endpoint)
		c.mu.Lock()
		open.read, open.next, open.refused = now, now.Add(claimPause), errors.Is(err, errNoRecord)
		c.mu.Unlock()
		if err != nil {
			return
		}
		addresses := open.endpoint.Claim.Addresses()
		c.Tables.Confirm(key, addresses...)
		if c.record(ctx, open.endpoint) != nil { // released between the read and the confirmation
			c.Tables.Withdraw(key, addresses...)
		}
		return
	}
}

var errNoRecord = errors.New("IPAM has no such record")

// record returns nil if IPAM has assigned the claimed addresses to the pod. The pod's name and namespace in the record
// are those of the ADD; the handle would be no proof, since the container in it is named by an annotation, too.
func (c *Part) record(ctx context.Context, w *model.Workload) error {
	allocator := ipam.New(c.Store, c.log, time.Now)
	addresses := w.Claim.Addresses()
	if len(addresses) == 0 {
		return errNoRecord
	}
	for _, a := range addresses {
		has, err := allocator.GetAssignmentAttributes(ctx, a)
		var cooling *ipam.CoolingError
		switch {
		case errors.Is(err, datastore.ErrNotFound), errors.As(err, &cooling):
			return errNoRecord
		case err != nil:
			return err
		case has.Attrs["namespace"] != w.Namespace || has.Attrs["pod"] != w.Pod ||
			has.Attrs["node"] != c.Node.Name:
			return errNoRecord
		}
	}
	return nil
}

// Notices implements server.Noticer.
func (c *Part) Notices() (list []server.Notice) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for key, open := range c.open {
		if open.refused {
			list = append(list, server.Notice{Topic: "endpoints", Subject: key.String(), Since: open.since,
				Text: fmt.Sprintf("annotations of the pod claim %s, which IPAM has not assigned to it: the pod has no "+
					"address before the kubelet reports one", strings.Join(open.endpoint.Claim.IPNetworks, ", "))})
		}
	}
	return list
}
