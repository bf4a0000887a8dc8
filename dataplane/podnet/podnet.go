package podnet

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"reflect"
	"slices"

	"github.com/vishvananda/netlink"

	"github.com/manxnet/manx/dataplane/kernel/device"
)

// Pod describes how one interface of a workload is wired to its host: a veth pair, the addresses of the workload,
// routes through a gateway that exists on no interface and that the host end answers for. It is plain data: the same
// Pod is attached, checked and detached.
type Pod struct {
	Netns      string           // path of the workload's network namespace
	IfName     string           // name of the interface in the workload
	HostIf     string           // name of its other end on the host
	MTU        int              // 0: the kernel's default
	Queues     int              // transmit and receive queues of either end; 0: one
	MAC        net.HardwareAddr // of the workload's end; nil: the kernel chooses
	Addresses  []netip.Addr
	IPv4, IPv6 bool           // the families of further addresses, which are not known yet: see Begin
	Routes     []netip.Prefix // that go through the gateway of their family
	Forwarding bool           // the workload forwards packets
	HostRoute  Route
	// Routed: another program makes and watches the host's routes to the addresses. Attach does not make them, and
	// Check does not require them.
	Routed bool
	// Exclusive makes it an error that HostIf exists and leads to another namespace. Otherwise it is replaced: a
	// restarted pod has a new namespace and the same interface name on the host.
	Exclusive bool
}

// Route is the marking of the host's routes to a workload's addresses. The agent that maintains them later must use the
// same values, else it would have to replace them.
type Route struct {
	Protocol int // of rtnetlink
	Metric   int
}

// gateway4 is the next hop of a workload's IPv4 routes; the host end answers for it by proxy ARP.
var gateway4 = netip.AddrFrom4([4]byte{169, 254, 1, 1})

// hostMAC is the hardware address of every host end, so that a workload's neighbour entry survives the move of an
// interface. gateway6 is the link-local address that follows from it (RFC 4291, appendix A).
var (
	hostMAC  = net.HardwareAddr{0xee, 0xee, 0xee, 0xee, 0xee, 0xee}
	gateway6 = netip.MustParseAddr("fe80::ecee:eeff:feee:eeee")
)

// Options are the surroundings of Attach.
type Options struct {
	// Warn is called for faults that keep no packet from flowing. Nil: no call.
	Warn func(what string, err error)
	// BeforeStep is called with the name of each step; its error fails the step. Nil: nothing.
	BeforeStep func(step string) error
}

// Attach creates and configures the interface and returns the hardware address of the workload's end. An interface
// of that name on the host is replaced if it is a veth. When a step fails nothing of the new interface stays.
func Attach(p Pod, o Options) (net.HardwareAddr, error) {
	w, err := open(p, o)
	if err != nil {
		return nil, err
	}
	if err := w.run(w.removal(), w.first()); err != nil {
		return nil, err
	}
	return w.finish()
}

// Begun is an interface that is complete but for its addresses.
type Begun struct{ w *wiring }

// Begin is the part of Attach that needs no address. It changes nothing that exists: if there is an interface of the
// host end's name, it fails. When a step fails nothing of the new interface stays.
func Begin(p Pod, o Options) (*Begun, error) {
	w, err := open(p, o)
	if err != nil {
		return nil, err
	}
	if err := w.run(w.first()); err != nil {
		return nil, err
	}
	return &Begun{w}, nil
}

// Fits reports whether Finish makes p of the interface.
func (b *Begun) Fits(p Pod) bool {
	if b.w == nil {
		return false
	}
	was := b.w.Pod
	v4, v6 := p.families()
	fits := v4 == was.IPv4 && v6 == was.IPv6
	was.IPv4, was.IPv6, was.Addresses, was.Routed = p.IPv4, p.IPv6, p.Addresses, p.Routed
	return fits && reflect.DeepEqual(was, p)
}

// Finish completes the interface, as Attach does.
func (b *Begun) Finish(p Pod) (net.HardwareAddr, error) {
	w := b.w
	b.w, w.Pod = nil, p
	return w.finish()
}

// Undo removes the interface, unless Finish was called.
func (b *Begun) Undo() error {
	w := b.w
	if w == nil {
		return nil
	}
	b.w = nil
	defer w.close()
	return w.undo()
}

// finish does the steps that need the addresses.
func (w *wiring) finish() (net.HardwareAddr, error) {
	if err := w.run(w.last()); err != nil {
		return nil, err
	}
	defer w.close()
	return w.inside.Attrs().HardwareAddr, nil
}

// run does steps. After an error it removes what was created, and closes w.
func (w *wiring) run(lists ...[]step) error {
	for _, s := range slices.Concat(lists...) {
		if err := runStep(s, w.before); err != nil {
			defer w.close()
			return errors.Join(fmt.Errorf("%s: %w", s.name, err), w.undo())
		}
	}
	return nil
}

func runStep(s step, before func(string) error) error {
	if before != nil {
		if err := before(s.name); err != nil {
			return err
		}
	}
	return s.do()
}

type step struct {
	name string
	do   func() error
}

// wiring is the attachment of one Pod while it is made.
type wiring struct {
	Pod
	warn    func(what string, err error)
	before  func(step string) error
	ns      *namespace
	host    device.Handle     // in our namespace
	known   device.Neighbours // the same
	pod     device.Handle     // in the workload's; opened by enter
	outside netlink.Link      // the host end, once created
	inside  netlink.Link      // the workload's end
}

func open(p Pod, o Options) (*wiring, error) {
	ns, err := openNetns(p.Netns)
	if err != nil {
		return nil, err
	}
	w := &wiring{Pod: p, warn: o.Warn, before: o.BeforeStep, ns: ns}
	if w.warn == nil {
		w.warn = func(string, error) {}
	}
	if w.host, err = device.Open(); err == nil {
		w.known, err = device.OpenNeighbours()
	}
	if err != nil {
		w.close()
		return nil, err
	}
	return w, nil
}

// enter runs fn inside the workload's namespace, and opens w.pod there if it is not open yet: each visit costs a
// thread.
func (w *wiring) enter(fn func() error) error {
	return w.ns.do(func() (err error) {
		if !w.pod.IsOpen() {
			if w.pod, err = device.Open(); err != nil {
				return fmt.Errorf("in %s: %w", w.Netns, err)
			}
		}
		return fn()
	})
}

// reach opens w.pod.
func (w *wiring) reach() error {
	if w.pod.IsOpen() {
		return nil
	}
	return w.enter(func() error { return nil })
}

func (w *wiring) close() {
	w.host.Close()
	w.known.Close()
	w.pod.Close()
	w.ns.close()
}

// steps are in this order so that the workload never sends before its host end can answer, and never has an address
// before it has the routes that belong to it.
func (w *wiring) steps() []step { return slices.Concat(w.removal(), w.first(), w.last()) }

func (w *wiring) removal() []step { return []step{{"remove the old interface", w.removeOld}} }

// first are the steps without addresses.
func (w *wiring) first() []step {
	v4, v6 := w.families()
	steps := []step{
		{"create the interface", w.create},
		{"set the host's sysctls", func() error { return w.hostSysctls(v4, v6) }},
		{"set the workload's sysctls", func() error {
			return w.enter(func() error { return w.insideSysctls(v4, v6) })
		}},
		{"bring the interface up", w.up},
	}
	if v4 {
		steps = append(steps, step{"add the IPv4 gateway", w.gateway4})
	}
	if v6 {
		steps = append(steps, step{"add the IPv6 gateway", w.gateway6})
	}
	return append(steps, step{"add the workload's routes", w.routes})
}

// last are the steps with addresses.
func (w *wiring) last() []step {
	steps := []step{
		{"add the workload's addresses", w.addresses},
		{"check the gateway's hardware address", w.settleMAC},
	}
	if !w.Routed {
		steps = append(steps, step{"forget connections of the addresses", w.forgetConnections},
			step{"add the host's routes", w.hostRoutes})
	}
	return append(steps, step{"add the host's neighbours", w.setNeighbours})
}

func (p Pod) families() (v4, v6 bool) {
	v4, v6 = p.IPv4, p.IPv6
	for _, a := range p.Addresses {
		if a.Is4() {
			v4 = true
		} else {
			v6 = true
		}
	}
	return v4, v6
}

// undo removes the created objects: with one end goes the other, and its addresses and routes on both sides.
func (w *wiring) undo() error {
	if w.outside == nil {
		return nil
	}
	if err := w.host.LinkDel(w.outside); err != nil && !device.Missing(err) {
		return fmt.Errorf("clean up: remove %s: %w", w.HostIf, err)
	}
	return nil
}
