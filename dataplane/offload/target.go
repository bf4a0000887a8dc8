package offload

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/manxnet/manx/dataplane/hoststate"
	"github.com/manxnet/manx/dataplane/kernel"
	"github.com/manxnet/manx/dataplane/overlay"
	"github.com/manxnet/manx/dataplane/reconcile"
	"github.com/manxnet/manx/dataplane/route"
	"github.com/manxnet/manx/dataplane/vtep"
)

const (
	// probesPerSecond bounds the packets of this host, timeout is the time for an answer.
	probesPerSecond = 5
	timeout         = time.Second
	// mostProbed is how many nodes are probed in a measurement at most, and enough how many have to answer: the
	// hardware is this host's, whichever node the packets go to.
	mostProbed, enough = 8, 3
	// every is the time between two measurements of a device, with a tenth more or less. Where no node answers they are
	// probed again after retryFirst, and after twice the time each further time.
	every, retryFirst = time.Hour, 5 * time.Minute
	// settle is how long a changed device has before it is measured.
	settle = 2 * time.Second
)

// Prober sends another node a datagram, and reports whether it answers.
type Prober interface {
	// InterfaceTo names the interface by which packets to an address with a mark leave; empty: no route leads there.
	InterfaceTo(a netip.Addr, mark uint32) (name string, direct bool, err error)
	// Probe reports whether a packet is answered, with a checksum that is left to the hardware or the kernel's own.
	Probe(ctx context.Context, from, to netip.Addr, offload bool, timeout time.Duration) (bool, error)
	// Hardware describes an interface: the name and the version of its driver, and the kernel.
	Hardware(device string) string
}

// Config has the parameters of a Target.
type Config struct {
	// Prober is nil if nothing is measured.
	Prober Prober
	// Repair has a device compute its checksums itself where that helps; otherwise there is a notice alone.
	Repair bool
	// Way returns how packets get to a host, by the routes of others.
	Way func(netip.Addr) route.Way
	// Devices returns the devices of the node's overlays that exist.
	Devices func() []overlay.Device
	// Avoid is called with the devices that shall leave no checksums to the hardware, by name, when they have changed.
	// The map is not changed any more.
	Avoid func(map[string]bool)
	// Release is that of the kernel.
	Release string
	Loop    *reconcile.Loop
	Now     func() time.Time
}

// Target measures the tunnels. Not safe for concurrent use.
type Target struct {
	config  Config
	host    *hoststate.Host
	tunnels map[string]*tunnel // by device
	stale   bool               // ways may differ
	decided overlay.Offload    // by the settings or the age of the kernel
	limiter *rate.Limiter
	ctx     context.Context
	close   func()
	busy    bool // a tunnel is being measured

	mu     sync.Mutex // guards the field below
	result *result
}

// tunnel is the device of an overlay.
type tunnel struct {
	due      time.Time
	answered answer // the last one that counts
	way      route.Way
	err      error // why the last measurement has no result
	fails    int   // in a row
	since    time.Time
	avoided  bool // it shall leave no checksums to the hardware
	// found is the answer for which it does not; useless is set if that did not help.
	found   answer
	useless bool
}

// answer is what packets to a node have shown.
type answer struct {
	verdict
	vtep.VTEP
	nic, hardware string
}

type result struct {
	device string
	answer
	err error
}

// New makes a Target.
func New(c Config) *Target {
	t := &Target{config: c, tunnels: map[string]*tunnel{}, limiter: rate.NewLimiter(probesPerSecond, 1)}
	t.ctx, t.close = context.WithCancel(context.Background())
	return t
}

// Close ends what is under way.
func (t *Target) Close() { t.close() }

// Name implements dataplane.Target.
func (*Target) Name() string { return "checksum-offload" }

// SetState follows the settings and the tunnel addresses of the nodes.
func (t *Target) SetState(h *hoststate.Host) {
	t.host = h
	if decided := overlay.ChecksumOffload(&h.Felix, t.config.Release); decided != t.decided {
		t.decided = decided
		t.beginAgain()
	}
	if !h.VTEPsChanged {
		return
	}
	for _, x := range t.tunnels {
		if x.answered.verdict == unknown && x.fails > 0 { // there may be a node now that answers
			x.fails, x.due = 0, t.soon()
		}
	}
}

// beginAgain forgets what was found out: the offload of the devices is decided in another way.
func (t *Target) beginAgain() {
	for _, x := range t.tunnels {
		*x = tunnel{due: t.soon(), since: t.config.Now()}
	}
	t.avoid()
}

// soon is the time of a measurement after a change.
func (t *Target) soon() time.Time { return t.config.Now().Add(settle + rand.N(settle)) }

// RoutesChanged has the ways determined again.
func (t *Target) RoutesChanged() { t.stale = true }

// Handle implements dataplane.Target: RoutesChanged reports what matters.
func (*Target) Handle([]kernel.Event) {}

// Resync implements dataplane.Target.
func (t *Target) Resync() { t.RoutesChanged() }

// Retry measures all tunnels again, also with the hardware's checksums where the kernel's did not help.
func (t *Target) Retry() {
	for _, x := range t.tunnels {
		x.due, x.useless = t.config.Now(), false
	}
}

// Flush takes over a result, and begins to measure a tunnel whose time has come.
func (t *Target) Flush() (steps, failures int, err error) {
	if t.config.Prober == nil || t.host == nil || t.host.PolicyOnly {
		return 0, 0, nil
	}
	t.takeResult()
	t.followDevices()
	if t.stale {
		t.stale = false
		t.followWays()
	}
	if !t.busy {
		t.begin()
	}
	return 0, 0, nil
}

// followDevices has a tunnel for each VXLAN device in use with an address.
func (t *Target) followDevices() {
	there := map[string]bool{}
	for _, d := range t.devices() {
		there[d.Name] = true
		if t.tunnels[d.Name] == nil {
			t.tunnels[d.Name] = &tunnel{due: t.soon(), since: t.config.Now()}
		}
	}
	had := len(t.tunnels)
	maps.DeleteFunc(t.tunnels, func(name string, _ *tunnel) bool { return !there[name] })
	if len(t.tunnels) != had {
		t.avoid()
	}
}

func (t *Target) devices() (list []overlay.Device) {
	for _, d := range t.config.Devices() {
		if d.Kind == overlay.KindVXLAN && !d.Leaving && len(d.Addresses) > 0 {
			list = append(list, d)
		}
	}
	return list
}

// followWays measures soon where the way is another one, and with it perhaps the hardware.
func (t *Target) followWays() {
	for _, x := range t.tunnels {
		if x.answered.verdict == unknown {
			continue
		}
		if way := t.config.Way(x.answered.Address); !way.Equal(x.way) {
			x.way, x.due = way, t.soon()
		}
	}
}

func (t *Target) takeResult() {
	t.mu.Lock()
	r := t.result
	t.result = nil
	t.mu.Unlock()
	if r == nil {
		return
	}
	t.busy = false
	x := t.tunnels[r.device]
	if x == nil {
		return
	}
	now := t.config.Now()
	if x.err = r.err; r.verdict == unknown { // the last answer stays
		x.due = now.Add(min(retryFirst<<min(x.fails, 10), every))
		x.fails++
		return
	}
	if x.fails, x.due = 0, now.Add(every*9/10+rand.N(every/5)); x.answered.verdict != r.verdict {
		x.since = now
	}
	x.answered, x.way = r.answer, t.config.Way(r.Address)
	switch {
	case r.verdict == works && !x.avoided:
		x.useless = false
		return
	case r.verdict == works || t.decided != overlay.Undecided:
		return
	case x.avoided: // for another reason, then
		x.avoided, x.useless = false, true
	case t.config.Repair && !x.useless:
		x.avoided, x.found, x.due = true, r.answer, t.soon()
	default:
		return
	}
	t.avoid()
}

// avoid passes on the devices that shall leave no checksums to the hardware.
func (t *Target) avoid() {
	list := map[string]bool{}
	for name, x := range t.tunnels {
		if x.avoided {
			list[name] = true
		}
	}
	t.config.Avoid(list)
}

// begin measures the tunnel that has waited longest, beside the loop.
func (t *Target) begin() {
	devices := t.devices()
	slices.SortFunc(devices, func(a, b overlay.Device) int {
		return t.tunnels[a.Name].due.Compare(t.tunnels[b.Name].due)
	})
	if len(devices) == 0 || t.tunnels[devices[0].Name].due.After(t.config.Now()) {
		return
	}
	d := devices[0]
	var peers []vtep.VTEP
	for v := range t.host.VTEPs(d.Family).All() {
		if v.Node != t.host.Node {
			peers = append(peers, v)
		}
	}
	rand.Shuffle(len(peers), func(i, j int) { peers[i], peers[j] = peers[j], peers[i] })
	t.busy = true
	t.config.Loop.Go(func() {
		r := result{device: d.Name}
		r.answer, r.err = t.ask(d, peers)
		t.mu.Lock()
		defer t.mu.Unlock()
		t.result = &r
	})
}

// ask measures a tunnel with the first nodes that are reached through it. One to which packets are lost decides.
func (t *Target) ask(d overlay.Device, peers []vtep.VTEP) (best answer, err error) {
	probed, answered := 0, 0
	var failed error
	for _, p := range peers {
		if probed == mostProbed || answered == enough {
			break
		}
		by, _, err := t.config.Prober.InterfaceTo(p.Tunnel, 0)
		if err != nil || by != d.Name {
			continue // it is reached without a tunnel, or by another
		}
		probed++
		v, err := measure(func(offload bool) (bool, error) {
			if err := t.limiter.Wait(t.ctx); err != nil {
				return false, err
			}
			return t.config.Prober.Probe(t.ctx, d.Addresses[0].Addr(), p.Tunnel, offload, timeout)
		})
		if err != nil {
			failed = err // packets to another node may leave this host
			continue
		}
		if v == unknown {
			continue
		}
		answered++
		best = answer{verdict: v, VTEP: p}
		if v == broken {
			best.nic, _, _ = t.config.Prober.InterfaceTo(p.Address, 0)
			best.hardware = t.config.Prober.Hardware(best.nic)
			return best, nil
		}
	}
	switch {
	case probed == 0:
		return best, fmt.Errorf("no other node is reached through %s", d.Name)
	case answered == 0 && failed != nil:
		return best, failed
	case answered == 0:
		return best, fmt.Errorf("%d nodes were probed, and none answered UDP packets to its tunnel address", probed)
	}
	return best, nil
}

// Next returns how long the next measurement has time.
func (t *Target) Next() time.Duration {
	next := every
	if t.busy {
		return next // its end wakes the agent
	}
	for _, x := range t.tunnels {
		next = min(next, x.due.Sub(t.config.Now()))
	}
	return max(next, time.Millisecond)
}

// Health implements dataplane.Target: the network between the nodes is not this host's to repair.
func (*Target) Health() reconcile.Health { return reconcile.Health{} }

// Repairs implements dataplane.Target.
func (*Target) Repairs() ([]reconcile.Repair, int) { return nil, 0 }

// symptom describes packets that are lost.
func (a answer) symptom(device string) string {
	return fmt.Sprintf("packets through it whose checksum is left to interface %s (%s) do not get to node %s (%s), "+
		"and those with a checksum of the kernel do: ping works, and hardly anything else", a.nic, a.hardware,
		a.Node, a.Address)
}

// text describes a tunnel for people, empty if nothing is wrong.
func (t *Target) text(device string, x *tunnel) string {
	line := fmt.Sprintf("ethtool -K %s tx-checksum-ip-generic off", device)
	switch {
	case x.avoided && x.answered.verdict == works:
		return x.found.symptom(device) + ". The kernel computes them now (" + line + "), and they get there"
	case x.avoided:
		return x.found.symptom(device) + ". The kernel shall compute them now (" + line + ")"
	case x.answered.verdict != broken:
		return ""
	case x.useless:
		return x.answered.symptom(device) + ". It did not help that the kernel computes them on this node (" + line +
			"), so that was undone"
	case t.decided != overlay.Undecided:
		return x.answered.symptom(device) + ". featureDetectOverride of FelixConfiguration or the age of the kernel " +
			"decides about the offload, so it stays. Have the kernel compute them: set " +
			"featureDetectOverride to ChecksumOffloadBroken=true"
	}
	return x.answered.symptom(device) + ". Have the kernel compute them: " + line + ", featureDetectOverride with " +
		"ChecksumOffloadBroken=true in FelixConfiguration, or --offload-check=repair"
}

// Notices returns one for each device through which packets are lost, or would be.
func (t *Target) Notices() (list []reconcile.Notice) {
	for _, name := range slices.Sorted(maps.Keys(t.tunnels)) {
		x := t.tunnels[name]
		if text := t.text(name, x); text != "" {
			list = append(list, reconcile.Notice{Subject: "device " + name, Text: text, Since: x.since})
		}
	}
	return list
}

// Rows returns the tunnels: desired and actual is whether packets get to the other nodes.
func (t *Target) Rows() []reconcile.Row {
	var rows []reconcile.Row
	for _, name := range slices.Sorted(maps.Keys(t.tunnels)) {
		x := t.tunnels[name]
		r := reconcile.Row{Key: name, Desired: "received", Status: reconcile.Status{Phase: x.phase(), Since: x.since,
			Reason: t.text(name, x)}}
		switch x.answered.verdict {
		case works:
			r.Actual = "received"
		case broken:
			r.Actual = "lost"
		}
		if x.err != nil {
			r.Reason = cmp.Or(r.Reason, x.err.Error())
		}
		rows = append(rows, r)
	}
	return rows
}

// phase is Blocked where packets are lost, and Pending where it is not known.
func (x *tunnel) phase() reconcile.Phase {
	switch x.answered.verdict {
	case works:
		return reconcile.Applied
	case broken:
		return reconcile.Blocked
	}
	return reconcile.Pending
}

// Counts returns how many tunnels are in each phase.
func (t *Target) Counts() map[reconcile.Phase]int {
	counts := map[reconcile.Phase]int{}
	for _, x := range t.tunnels {
		counts[x.phase()]++
	}
	return counts
}
