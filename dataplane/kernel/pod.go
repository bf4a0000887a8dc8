package kernel

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"
)

// Pod says how one interface of a workload is wired to its host: a veth pair, the addresses of the workload, routes
// through a gateway that exists on no interface and that the host end answers for. It is plain data: the same Pod is
// attached, checked and detached.
type Pod struct {
	Netns      string           // path of the workload's network namespace
	IfName     string           // name of the interface in the workload
	HostIf     string           // name of its other end on the host
	MTU        int              // 0: the kernel's default
	Queues     int              // transmit and receive queues of either end; 0: one
	MAC        net.HardwareAddr // of the workload's end; nil: the kernel chooses
	Addresses  []netip.Addr
	Routes     []netip.Prefix // that go through the gateway of their family
	Forwarding bool           // the workload forwards packets
	HostRoute  PodRoute
	// Exclusive makes it an error that HostIf exists and leads to another namespace. Otherwise it is replaced: a
	// restarted pod has a new namespace and the same interface name on the host.
	Exclusive bool
}

// PodRoute is how the host's routes to a workload's addresses are marked. The agent that looks after them later must
// use the same values, else it would have to replace them.
type PodRoute struct {
	Protocol int // of rtnetlink
	Metric   int
}

// PodGateway4 is the next hop of a workload's IPv4 routes; the host end answers for it by proxy ARP.
var PodGateway4 = netip.AddrFrom4([4]byte{169, 254, 1, 1})

// PodHostMAC is the hardware address of every host end, so that a workload's neighbour entry survives the move of an
// interface. PodGateway6 is the link-local address that follows from it (RFC 4291, appendix A).
var (
	PodHostMAC  = net.HardwareAddr{0xee, 0xee, 0xee, 0xee, 0xee, 0xee}
	PodGateway6 = netip.MustParseAddr("fe80::ecee:eeff:feee:eeee")
)

// PodOptions are the surroundings of AttachPod.
type PodOptions struct {
	Log *zap.Logger // nil: none
	// BeforeStep is called with the name of each step; its error fails the step. Nil: nothing.
	BeforeStep func(step string) error
}

// AttachPod creates and configures the interface and returns the hardware address of the workload's end. An interface
// of that name on the host is replaced if it is a veth. When a step fails nothing of the new interface stays.
func AttachPod(p Pod, o PodOptions) (net.HardwareAddr, error) {
	if o.Log == nil {
		o.Log = zap.NewNop()
	}
	w, err := openPod(p, o.Log)
	if err != nil {
		return nil, err
	}
	defer w.close()
	for _, s := range w.steps() {
		if err := runStep(s, o.BeforeStep); err != nil {
			return nil, errors.Join(fmt.Errorf("%s: %w", s.name, err), w.undo())
		}
	}
	return w.inside.Attrs().HardwareAddr, nil
}

func runStep(s podStep, before func(string) error) error {
	if before != nil {
		if err := before(s.name); err != nil {
			return err
		}
	}
	return s.do()
}

// PodSteps lists the names of the steps that AttachPod takes for p, in order.
func PodSteps(p Pod) []string {
	var names []string
	for _, s := range (&podWiring{Pod: p}).steps() {
		names = append(names, s.name)
	}
	return names
}

type podStep struct {
	name string
	do   func() error
}

// podWiring is the attachment of one Pod while it is made.
type podWiring struct {
	Pod
	log     *zap.Logger
	ns      *podNetns
	host    *netlink.Handle // in our namespace
	pod     *netlink.Handle // in the workload's
	outside netlink.Link    // the host end, once created
	inside  netlink.Link    // the workload's end
}

func openPod(p Pod, log *zap.Logger) (*podWiring, error) {
	ns, err := openPodNetns(p.Netns)
	if err != nil {
		return nil, err
	}
	w := &podWiring{Pod: p, log: log, ns: ns}
	if w.host, err = netlink.NewHandle(unix.NETLINK_ROUTE); err == nil {
		w.pod, err = netlink.NewHandleAt(ns.handle, unix.NETLINK_ROUTE)
	}
	if err != nil {
		w.close()
		return nil, fmt.Errorf("open netlink for %s: %w", p.Netns, err)
	}
	return w, nil
}

func (w *podWiring) close() {
	for _, h := range []*netlink.Handle{w.host, w.pod} {
		if h != nil {
			h.Close()
		}
	}
	w.ns.close()
}

// steps are in this order so that the workload never sends before its host end can answer, and never has an address
// before it has the routes that belong to it.
func (w *podWiring) steps() []podStep {
	v4, v6 := w.families()
	steps := []podStep{
		{"remove the old interface", w.removeOld},
		{"create the interface", w.create},
		{"set the host's sysctls", func() error { return w.hostSysctls(v4, v6) }},
		{"set the workload's sysctls", func() error { return w.ns.do(func() error { return w.podSysctls(v4, v6) }) }},
		{"bring the interface up", w.up},
	}
	if v4 {
		steps = append(steps, podStep{"add the IPv4 gateway", w.gateway4})
	}
	if v6 {
		steps = append(steps, podStep{"add the IPv6 gateway", w.gateway6})
	}
	return append(steps,
		podStep{"add the workload's routes", w.routes},
		podStep{"add the workload's addresses", w.addresses},
		podStep{"check the gateway's hardware address", w.settleMAC},
		podStep{"add the host's routes", w.hostRoutes},
	)
}

func (p Pod) families() (v4, v6 bool) {
	for _, a := range p.Addresses {
		if a.Is4() {
			v4 = true
		} else {
			v6 = true
		}
	}
	return v4, v6
}

// undo removes what was created: with one end goes the other, and its addresses and routes on both sides.
func (w *podWiring) undo() error {
	if w.outside == nil {
		return nil
	}
	if err := w.host.LinkDel(w.outside); err != nil && !podLinkMissing(err) {
		return fmt.Errorf("clean up: remove %s: %w", w.HostIf, err)
	}
	return nil
}
