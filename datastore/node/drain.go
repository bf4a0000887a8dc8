package node

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/model"
)

// Drainer drains this node, or some of its BGP peers, and brings it back as its annotations request. The advertised
// routes of each phase follow from the Node; the Drainer determines the end of a phase and records it in the Node.
type Drainer struct {
	Store datastore.Store
	Node  string
	// Packets returns the number of packets delivered to workloads so far.
	Packets func() (uint64, error)
	Log     *zap.Logger

	// Interval is the interval between reads of the counters; default one second.
	Interval time.Duration
	// Settle is the minimum time that routes are advertised with the lowest preference, for other routers to react;
	// default 5 s.
	Settle time.Duration

	mu    sync.Mutex
	state DrainState
	peers map[netip.Addr]model.DrainPhase
}

// DrainState is the state of the drain.
type DrainState struct {
	Phase  model.DrainPhase
	Reason string // the condition waited for, or the last action
}

// quietRate is the number of packets per second below which traffic counts as gone: the rest are probes and the like.
const quietRate = 10

// quietReads is the number of consecutive reads without traffic that end a drain.
const quietReads = 3

// State returns the state of the drain.
func (d *Drainer) State() DrainState {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.state
}

// Peers returns the phases of the peers that are drained: Draining or Drained.
func (d *Drainer) Peers() map[netip.Addr]model.DrainPhase {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.peers
}

func (d *Drainer) set(s DrainState) {
	d.mu.Lock()
	changed := d.state.Phase != s.Phase
	d.state = s
	d.mu.Unlock()
	if changed {
		d.Log.Info("drain", zap.String("target", "node"), zap.String("key", d.Node),
			zap.String("phase", string(s.Phase)), zap.String("reason", s.Reason))
	}
}

// Run follows the annotations of the own Node until ctx ends.
func (d *Drainer) Run(ctx context.Context, tables *datastore.Tables) error {
	if d.Interval == 0 {
		d.Interval = time.Second
	}
	if d.Settle == 0 {
		d.Settle = 5 * time.Second
	}
	if _, err := tables.WaitInSync(ctx); err != nil {
		return err
	}
	w, peers := drainWatch{}, map[netip.Addr]time.Time{}
	for {
		snapshot := tables.Snapshot()
		changed, waiting := snapshot.ReplacedOf(model.KindNode), false
		if n := model.Get[model.Node](snapshot, model.ResourceKey(model.KindNode, d.Node)); n != nil {
			d.step(ctx, n, &w)
			waiting = d.stepPeers(ctx, n, peers)
			if n.Annotations[model.AnnotationBGPOff] != "" { // of an earlier daemon
				d.annotate(ctx, model.AnnotationBGPOff, "")
				waiting = true
			}
		}
		var due time.Time
		if w.phase == model.Draining || w.phase == model.Returning || waiting {
			due = time.Now().Add(d.Interval)
		}
		if err := await(ctx, due, changed, nil, nil); err != nil {
			return err
		}
	}
}

// drainWatch is the state of the current phase.
type drainWatch struct {
	phase   model.DrainPhase
	since   time.Time
	readAt  time.Time
	packets uint64
	quiet   int // consecutive reads without traffic
}

// step evaluates the phase once and ends it if it is over.
func (d *Drainer) step(ctx context.Context, n *model.Node, w *drainWatch) {
	now := time.Now()
	if phase := n.DrainPhase(); phase != w.phase {
		*w = drainWatch{phase: phase, since: now}
		if _, err := n.DrainTimeout(); err != nil && phase == model.Draining {
			d.Log.Warn("drain", zap.String("key", d.Node), zap.Error(err))
		}
	}
	switch w.phase {
	case model.InService:
		d.set(DrainState{})
	case model.Drained:
		d.set(DrainState{model.Drained, "routes are withdrawn since " + n.Annotations[model.AnnotationDrained] +
			"; manxctl node undrain brings the node back"})
	case model.Draining:
		rate, known := d.read(w, now)
		over, reason := d.draining(n, w, now, rate, known)
		d.set(DrainState{model.Draining, reason})
		if over {
			d.answer(ctx, now.UTC().Format(time.RFC3339))
		}
	case model.Returning:
		d.set(DrainState{model.Returning, "routes are announced as the last choice until other routers have them"})
		if now.Sub(w.since) >= d.Settle {
			d.answer(ctx, "")
		}
	}
}

// read reads the counters, at most once in half an interval.
func (d *Drainer) read(w *drainWatch, now time.Time) (rate float64, known bool) {
	packets, err := d.Packets()
	if err != nil {
		d.Log.Warn("interface counters cannot be read: the drain waits for its timeout", zap.Error(err))
		w.readAt = time.Time{}
		return 0, false
	}
	last, before := w.readAt, w.packets
	if !last.IsZero() && now.Sub(last) < d.Interval/2 {
		return 0, false
	}
	w.readAt, w.packets = now, packets
	if last.IsZero() {
		return 0, false
	}
	if packets < before { // a removed interface takes its counter along, so the traffic of the others is unknown
		w.quiet = 0
		return 0, false
	}
	rate = float64(packets-before) / now.Sub(last).Seconds()
	if rate < quietRate {
		w.quiet++
	} else {
		w.quiet = 0
	}
	return rate, true
}

func (d *Drainer) draining(
	n *model.Node, w *drainWatch, now time.Time, rate float64, known bool,
) (over bool, reason string) {
	timeout, _ := n.DrainTimeout()
	waited := now.Sub(w.since)
	switch {
	case waited < d.Settle:
		return false, "routes are announced as the last choice; waiting for other routers to act"
	case waited >= timeout:
		return true, fmt.Sprintf("%s are over; traffic that is left loses its routes", timeout)
	case w.quiet >= quietReads:
		return true, fmt.Sprintf("traffic has left (less than %d packets/s)", quietRate)
	case known:
		return false, fmt.Sprintf("waiting for traffic to leave: %.0f packets/s go to workloads, at most %s more", rate,
			(timeout - waited).Round(time.Second))
	}
	return false, d.State().Reason
}

// stepPeers evaluates the drain of peers once, and answers it. since has the begin of each drain that this process has
// seen. waiting: a further step is needed although no annotation changes.
func (d *Drainer) stepPeers(ctx context.Context, n *model.Node, since map[netip.Addr]time.Time) (waiting bool) {
	now := time.Now()
	requested, _ := n.DrainPeers() // package bgp reports the error
	phases, drained := map[netip.Addr]model.DrainPhase{}, []netip.Addr(nil)
	for _, a := range requested {
		if since[a].IsZero() {
			since[a] = now
		}
		phases[a] = n.PeerDrainPhase(a)
		if phases[a] == model.Drained || now.Sub(since[a]) >= d.Settle {
			drained = append(drained, a)
		}
	}
	maps.DeleteFunc(since, func(a netip.Addr, _ time.Time) bool { return !slices.Contains(requested, a) })
	d.setPeers(phases)
	if answer := model.AddressList(drained); answer != model.AddressList(n.DrainedPeers()) {
		d.annotate(ctx, model.AnnotationDrainedPeers, answer)
		return true
	}
	return len(drained) < len(requested)
}

func (d *Drainer) setPeers(phases map[netip.Addr]model.DrainPhase) {
	d.mu.Lock()
	before := d.peers
	d.peers = phases
	d.mu.Unlock()
	for a, phase := range phases {
		if before[a] != phase {
			d.Log.Info("drain", zap.String("target", "peer"), zap.Stringer("key", a),
				zap.String("phase", string(phase)))
		}
	}
	for a := range before {
		if phases[a] == model.InService {
			d.Log.Info("drain", zap.String("target", "peer"), zap.Stringer("key", a), zap.String("phase", "in service"))
		}
	}
}

// answer writes the annotation, or removes it.
func (d *Drainer) answer(ctx context.Context, drained string) {
	d.annotate(ctx, model.AnnotationDrained, drained)
}

// annotate writes an annotation, or removes it if the value is empty. It only logs a failure: the next step tries
// again.
func (d *Drainer) annotate(ctx context.Context, annotation, value string) {
	key := model.ResourceKey(model.KindNode, d.Node)
	o, err := d.Store.Get(ctx, key)
	if err == nil {
		n, ok := o.Value.(*model.Node)
		switch {
		case !ok:
			err = o.Err
		case value == "":
			delete(n.Annotations, annotation)
		case n.Annotations == nil: // the request is gone meanwhile
			n.Annotations = map[string]string{annotation: value}
		default:
			n.Annotations[annotation] = value
		}
	}
	if err == nil {
		_, err = d.Store.Update(ctx, o)
	}
	if err != nil {
		d.Log.Warn("the drain cannot be noted in the Node, trying again", zap.String("node", d.Node), zap.Error(err))
	}
}
