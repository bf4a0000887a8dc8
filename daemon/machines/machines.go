// Package machines records in IPAM that virtual machines of KubeVirt have moved to this node.
package machines

import (
	"context"
	"iter"
	"maps"
	"time"

	"go.uber.org/zap"
	"k8s.io/apimachinery/pkg/types"

	"github.com/manxnet/manx/daemon/deps"
	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/connect"
	"github.com/manxnet/manx/datastore/livemigration"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/ipam"
	"github.com/manxnet/manx/ipam/hostlocal"
)

// again is the pause before a failed record is tried again.
const again = 5 * time.Second

// labelMachine is the label of a pod with the name of its virtual machine, cut after 63 characters.
const labelMachine = "vm.kubevirt.io/name"

// Part is a part of the daemon. The CNI plugin makes the pod to which a machine moves the next owner of its addresses;
// when the machine runs there, the pod is their owner. A record that fails is tried again until the pod is gone, and
// after a start each pod to which a machine has moved is looked at once.
type Part struct {
	node    string
	tables  *datastore.Tables
	log     *zap.Logger
	moves   func() map[model.Key]livemigration.Phase
	promote func(ctx context.Context, handle, namespace, pod string) error
	wake    chan struct{} // has one token when phases may have changed
	// pending are the machines that are to be recorded, by the endpoints of their pods: a migration may be gone before.
	pending map[model.Key]string
	done    map[model.Key]bool // while they have a phase
	started bool
}

// New returns the part, nil if endpoints are not pods. moves returns the phases of this node's workloads that move.
func New(d deps.Deps, moves func() map[model.Key]livemigration.Phase) *Part {
	if d.Node.Datastore != connect.Kubernetes {
		return nil
	}
	p := &Part{node: d.Node.Name, tables: d.Tables, log: d.Log.Named("machines"), moves: moves,
		promote: ipam.New(d.Store, d.Log.Named("machines"), time.Now).Promote, wake: make(chan struct{}, 1),
		pending: map[model.Key]string{}, done: map[model.Key]bool{}}
	d.Bus.Undecided.Subscribe(func(struct{}) {
		select {
		case p.wake <- struct{}{}:
		default: // a token is enough
		}
	})
	return p
}

// Name implements part.Part.
func (p *Part) Name() string { return "virtual-machines" }

// Run implements part.Part.
func (p *Part) Run(ctx context.Context) error {
	if _, err := p.tables.WaitInSync(ctx); err != nil {
		return err
	}
	for {
		var retry <-chan time.Time
		if !p.record(ctx) {
			retry = time.After(again)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-p.wake:
		case <-retry:
		}
	}
}

// record records the machines that run here now. It returns whether none has to be tried again.
func (p *Part) record(ctx context.Context) (ok bool) {
	phases, r := p.moves(), p.tables.Snapshot()
	p.find(phases, r)
	roles := livemigration.Roles(r, p.pods(r))
	ok = true
	for k, name := range p.pending {
		w, phase := r.Get(k).Workload(), phases[k]
		if _, known := phases[k]; !known { // the dataplane may not have seen it yet
			phase = roles[k].Phase()
		}
		switch {
		case w == nil || name == "":
			delete(p.pending, k)
			continue
		case phase == livemigration.Arriving:
			continue
		}
		handle := ipam.MachineHandle(hostlocal.Network, w.Namespace, name)
		if err := p.promote(ctx, handle, w.Namespace, w.Pod); err != nil {
			p.log.Warn("IPAM does not know yet that a virtual machine has moved here", zap.String("handle", handle),
				zap.Error(err))
			ok = false
			continue
		}
		delete(p.pending, k)
		p.done[k] = true
	}
	return ok
}

// find adds the machines that move here, and, the first time, those that have moved here.
func (p *Part) find(phases map[model.Key]livemigration.Phase, r model.Reader) {
	maps.DeleteFunc(p.done, func(k model.Key, _ bool) bool { return phases[k] == livemigration.None })
	for k, phase := range phases {
		if w := r.Get(k).Workload(); w != nil && phase != livemigration.Leaving && !p.done[k] {
			p.pending[k] = machineOf(r, w)
		}
	}
	if p.started {
		return
	}
	p.started = true
	for k, w := range model.AllWorkloads(r) {
		if w.Node == p.node && w.Labels[model.LabelMigrationJob] != "" && phases[k] != livemigration.Leaving {
			p.pending[k] = machineOf(r, w)
		}
	}
}

// pods visits the endpoints of the pods whose machines are to be recorded.
func (p *Part) pods(r model.Reader) iter.Seq2[model.Key, *model.Workload] {
	return func(yield func(model.Key, *model.Workload) bool) {
		for k := range p.pending {
			if w := r.Get(k).Workload(); w != nil && !yield(k, w) {
				return
			}
		}
	}
}

// machineOf returns the name of the virtual machine of a pod: by the migration to it, or by its label.
func machineOf(r model.Reader, w *model.Workload) string {
	for _, m := range model.All[model.VirtualMachineInstanceMigration](r, model.KindMigration) {
		if m.Namespace == w.Namespace && m.UID == types.UID(w.Labels[model.LabelMigrationJob]) {
			return m.Spec.VMIName
		}
	}
	return w.Labels[labelMachine]
}
