package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"time"

	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/etcd"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/integration/lab"
	manxv1 "github.com/manxnet/manx/proto/manx/v1"
)

const (
	// patience bounds steps that usually take milliseconds.
	patience = time.Minute
	// probeWait bounds the wait for a reply; a host under load gets the longer one in a second and third try.
	probeWait  = 250 * time.Millisecond
	probeRetry = time.Second
	retries    = 2
)

// site is a few hosts with manxd, the first of which embeds the datastore, and pods: a subject.
type site struct {
	lab      *lab.Lab
	hosts    []*lab.Node
	controls []*grpc.ClientConn // of the hosts
	store    datastore.Store
	pods     *pods
	closers  []func()
	state    model.Set // in the datastore
	writes   uint64    // marks of writes
	loads    int
	again    int // repeated cells
	// every so many loads the daemons are killed, their tables removed, and they start with the new state; 0: never
	restarts int
}

var _ subject = (*site)(nil)

// newSite starts manxd of the folder bin on every node of a new lab of that name. If bin is empty manxd is built first.
func newSite(ctx context.Context, name, bin string, nodes placement, ports []podPort) (_ *site, err error) {
	spec := lab.Spec{Name: name, Bin: bin, PlainRouters: true, IPv6: true}
	for _, node := range nodes {
		spec.Nodes = append(spec.Nodes, lab.NodeSpec{Name: node})
	}
	n := &site{}
	if n.lab, err = lab.New(spec); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, n.close())
		}
	}()
	n.hosts = n.lab.Nodes
	n.pods = &pods{prefix: name, nodes: nodes, hosts: n.hosts, ports: ports, have: map[string]*prober{}}
	if bin == "" {
		if n.lab.Spec.Bin, err = build(ctx, n.lab.Dir); err != nil {
			return nil, err
		}
	}
	for i, h := range n.hosts {
		datastore := lab.UseDatastore(n.hosts[0])
		if i == 0 {
			datastore = h.EmbedDatastore()
		}
		if err := h.StartManxd(append(datastore, "--no-default-pools")...); err != nil {
			return nil, err
		}
	}
	if err := n.ready(); err != nil {
		return nil, err
	}
	return n, n.connect(ctx)
}

func (n *site) ready() error {
	for _, h := range n.hosts {
		if err := h.Ready(patience); err != nil {
			return err
		}
	}
	return nil
}

// build builds manxd in a folder that is removed with the lab, even if this program is killed.
func build(ctx context.Context, dir string) (bin string, err error) {
	bin = filepath.Join(dir, "bin")
	if err := os.Mkdir(bin, 0o755); err != nil {
		return "", err
	}
	cmd := exec.CommandContext(ctx, "go", "build", "-o", bin, "github.com/manxnet/manx/cmd/manxd")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build manxd: %w: %s", err, out)
	}
	return bin, nil
}

// connect opens the datastore and the control sockets of the daemons.
func (n *site) connect(ctx context.Context) error {
	store, err := etcd.Open(ctx, etcd.Config{Endpoints: []string{n.hosts[0].EtcdSocket()}}, zap.NewNop())
	if err != nil {
		return err
	}
	n.closers = append(n.closers, func() { _ = store.Close() })
	n.store = store
	for _, h := range n.hosts {
		control, err := grpc.NewClient("unix://"+h.Socket(), grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			return err
		}
		n.closers = append(n.closers, func() { _ = control.Close() })
		n.controls = append(n.controls, control)
	}
	return nil
}

func (n *site) close() error {
	for _, f := range slices.Backward(n.closers) {
		f()
	}
	if n.pods != nil {
		n.pods.close()
	}
	return n.lab.Close()
}

// attach makes the pods of the cluster, and no others, exist on the hosts.
func (n *site) attach(c cluster) error { return n.pods.sync(c.pods) }

// apply writes changes one after the other, and waits until the kernel has all of them.
func (n *site) apply(ctx context.Context, writes []write) error {
	revision, err := n.write(ctx, writes)
	if err != nil {
		return err
	}
	return n.programmed(ctx, revision)
}

// load deletes the present state and writes the new one in a random order. From time to time a new daemon finds it.
func (n *site) load(ctx context.Context, state model.Set) error {
	wipe := difference(n.state, nil)
	fresh := difference(nil, state)
	n.loads++
	order := rand.New(rand.NewPCG(uint64(n.loads), 0))
	order.Shuffle(len(fresh), func(i, j int) { fresh[i], fresh[j] = fresh[j], fresh[i] })
	revision, err := n.write(ctx, append(wipe, fresh...))
	if err != nil {
		return err
	}
	if n.restarts > 0 && n.loads%n.restarts == 0 {
		if err := n.restart(); err != nil {
			return err
		}
	}
	return n.programmed(ctx, revision)
}

// restart kills the daemons, deletes their tables and starts them.
func (n *site) restart() error {
	for _, h := range n.hosts {
		h.Manxd().Kill()
		if _, err := h.Run("nft", "delete table inet manx"); err != nil {
			return err
		}
	}
	for _, h := range n.hosts {
		if err := h.StartManxd(); err != nil {
			return err
		}
	}
	return n.ready()
}

// write returns the revision of the last write.
func (n *site) write(ctx context.Context, writes []write) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if n.state == nil {
		n.state = model.Set{}
	}
	for _, w := range writes {
		if _, err := n.put(ctx, w); err != nil {
			return 0, err
		}
		if w.object == nil {
			delete(n.state, w.key)
		} else {
			n.state[w.key] = w.object
		}
	}
	// The API does not return the revision of a deletion: a last write, of an irrelevant object, has one.
	n.writes++
	key := model.ResourceKey(model.KindGlobalNetworkSet, "netpol-mark")
	return n.put(ctx, write{key, mark(key, n.writes)})
}

// put creates or updates one object.
func (n *site) put(ctx context.Context, w write) (int64, error) {
	if w.object == nil {
		_, err := n.store.Delete(ctx, w.key, 0)
		return 0, err
	}
	o := w.object.Clone()
	there, err := n.store.Get(ctx, w.key)
	var done *model.Object
	switch {
	case errors.Is(err, datastore.ErrNotFound):
		done, err = n.store.Create(ctx, o)
	case err == nil:
		o.Revision = there.Revision
		done, err = n.store.Update(ctx, o)
	}
	if err != nil {
		return 0, err
	}
	return done.Revision, nil
}

// programmed waits until the kernels have the datastore's state at a revision. The datastore has one clock here.
func (n *site) programmed(ctx context.Context, revision int64) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for i, h := range n.hosts {
		client := manxv1.NewManxClient(n.controls[i])
		err := programmed(ctx, client, revision)
		if err == nil {
			err = n.routed(ctx, client, h.Name)
		}
		if err != nil {
			return fmt.Errorf("%s: %w; its daemon's log:\n%s", h.Name, err, h.Log())
		}
	}
	return nil
}

func programmed(ctx context.Context, client manxv1.ManxClient, revision int64) error {
	for {
		status, err := client.GetStatus(ctx, &manxv1.GetStatusRequest{}, grpc.WaitForReady(true))
		if err != nil {
			return fmt.Errorf("the daemon does not report its status: %w", err)
		}
		if p := status.GetPolicy(); p.GetInSync() && p.GetRevision() >= revision {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("what the datastore had at revision %d does not get into the kernel (%v): %w", revision,
				status.GetPolicy(), ctx.Err())
		case <-time.After(2 * time.Millisecond):
		}
	}
}

// routed waits until a node has the routes to its pods, which do not wait for policy, nor policy for them.
func (n *site) routed(ctx context.Context, client manxv1.ManxClient, node string) error {
	want := 0
	for _, o := range n.state {
		if w, ok := o.Value.(*model.WorkloadEndpoint); ok && w.Spec.Node == node {
			want++
		}
	}
	var list *manxv1.ListEndpointsResponse
	for {
		next, err := client.ListEndpoints(ctx, &manxv1.ListEndpointsRequest{}, grpc.WaitForReady(true))
		if err != nil {
			return fmt.Errorf("the daemon does not report its endpoints, of which it wants %d; its last report: %v: %w",
				want, list.GetEndpoints(), err)
		}
		list = next
		applied := 0
		for _, e := range list.GetEndpoints() {
			if e.GetPhase() == "applied" {
				applied++
			}
		}
		if applied == want && len(list.GetEndpoints()) == want {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%d of %d pods have their routes: %v: %w", applied, want, list.GetEndpoints(), ctx.Err())
		case <-time.After(2 * time.Millisecond):
		}
	}
}

// measure probes every cell once. A missing answer where one is expected can also come of a busy host: the probe is
// repeated, and counted. An answer where none is expected cannot be an accident.
func (n *site) measure(ctx context.Context, s *step) (reachability, error) {
	got := newReachability(s)
	if err := n.pods.probe(ctx, s, got, s.all(), probeWait); err != nil {
		return nil, err
	}
	for range retries {
		missing := slices.DeleteFunc(s.wrongCells(got), func(c cell) bool { return got.at(c) })
		if len(missing) == 0 {
			break
		}
		n.again += len(missing)
		if err := n.pods.probe(ctx, s, got, missing, probeRetry); err != nil {
			return nil, err
		}
	}
	return got, nil
}
