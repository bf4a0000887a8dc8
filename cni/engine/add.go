package engine

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/containernetworking/cni/pkg/types"
	"go.uber.org/zap"

	"github.com/manxnet/manx/cni"
	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/model"
)

// prepare returns the configuration for another IPAM plugin, or the addresses that it assigned before.
func (c *call) prepare(ctx context.Context) error {
	if err := c.unsupported(ctx); err != nil {
		return err
	}
	stored, err := c.storedEndpoint(ctx)
	if err != nil {
		return err
	}
	if ips := c.kept(stored); len(ips) > 0 {
		c.reply.Attachment = &cni.Attachment{Addresses: ips}
	}
	c.reply.Config, err = c.resolvePodCIDRs(ctx)
	return err
}

// add assigns the container's addresses and writes its endpoint. A failure undoes all steps in reverse order, so that
// the container can be attached again from the start.
func (c *call) add(ctx context.Context) (err error) {
	ended, err := c.attach()
	if err != nil {
		return err
	}
	defer func() { ended() }()
	if _, err := c.settle(ctx); err != nil && ctx.Err() != nil {
		return err
	}
	if err := errors.Join(c.unsupported(ctx), c.forget()); err != nil {
		return err
	}
	if err := c.waitForGates(ctx, gatePause, gateTimeout); err != nil {
		return err
	}
	if err := c.waitForRules(ctx); err != nil {
		return err
	}
	stored, err := c.storedEndpoint(ctx)
	if err == nil && stored == nil {
		stored, err = c.newPod(ctx)
	}
	if err == nil {
		err = c.checkInterface(ctx, stored)
	}
	if err != nil {
		return err
	}
	pod, err := c.facts(ctx, stored)
	if err != nil {
		return err
	}
	var undo cni.Undo
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("bug: %v", r)
			c.log.Error("panic", zap.Any("value", r), zap.Stack("stack"))
		}
		if err != nil {
			err = cni.Afterwards(err,
				undo.Run(func(step string) { c.log.Info("taken back", zap.String("step", step)) }))
		}
	}()
	later := &writes{}
	a, err := c.findAddresses(ctx, stored, pod, later, &undo)
	if err != nil {
		return err
	}
	if err := c.describe(a, stored, pod); err != nil {
		return err
	}
	write := func(ctx context.Context, undo *cni.Undo) error {
		return c.step("write the WorkloadEndpoint", func() error { return c.writeEndpoint(ctx, stored, pod, a, undo) })
	}
	c.reply.Attachment = a
	if !c.Lasting {
		return write(ctx, &undo)
	}
	// The agent of this process would conflict with the plugin's routes.
	a.Routed = a.Routed || c.policyWait() > 0
	later.add(func(ctx context.Context) error { return write(ctx, &cni.Undo{}) }) // Abort undoes it
	c.under.Add(1)
	written := ended
	later.start(ctx, func() { written(); c.under.Done() })
	ended = func() {}
	c.own.pending = later
	return nil
}

// finish completes all writes, and waits for policy.
func (c *call) finish(ctx context.Context) error {
	a := c.q.Attachment
	if a == nil {
		return errors.New("the step finish has no attachment")
	}
	was, err := c.settle(ctx)
	if err != nil {
		return err
	}
	if !was && c.Lasting { // another process answered Add
		if err := c.complete(ctx, a); err != nil {
			return err
		}
	}
	mac, err := net.ParseMAC(a.MAC)
	if err != nil {
		return err
	}
	c.waitForPolicy(ctx, mac, a.Addresses)
	c.log.Info("attached", zap.String("hostInterface", a.HostIf), zap.Stringers("addresses", a.Addresses))
	if c.conf.OwnIPAM() { // the routes of another IPAM plugin's result are known to the plugin alone
		c.reply.Result, err = cni.ResultText(c.conf, c.q)
	}
	return err
}

// complete does the writes of an Add whose process may have died before them.
func (c *call) complete(ctx context.Context, a *cni.Attachment) error {
	for _, p := range a.Assigned {
		if err := c.allocator().CountHandle(ctx, c.work.handle(), p.Masked()); err != nil {
			return err
		}
	}
	stored, err := c.storedEndpoint(ctx)
	if err != nil {
		return err
	}
	pod, err := c.facts(ctx, stored)
	if err != nil {
		return err
	}
	return c.writeEndpoint(ctx, stored, pod, a, &cni.Undo{})
}

// abort undoes the Add of a container that could not be wired.
func (c *call) abort(ctx context.Context) error {
	a := c.q.Attachment
	if a == nil {
		return errors.New("the step abort has no attachment")
	}
	if _, err := c.settle(ctx); err != nil && ctx.Err() != nil {
		return err
	}
	var problems []error
	if !a.Repeated {
		problems = append(problems, c.deleteOwnEndpoint(ctx))
	}
	return errors.Join(append(problems, c.giveBack(ctx, a.Fresh))...)
}

// unsupported refuses unsupported requests, before any other step.
func (c *call) unsupported(context.Context) error {
	if c.conf.DeviceType == "netkit" {
		c.log.Info("device_type netkit: a veth pair is used instead")
	}
	return nil
}

// storedEndpoint reads the endpoint from an earlier call, nil if there is none.
func (c *call) storedEndpoint(ctx context.Context) (*model.Object, error) {
	key, err := c.work.key()
	if err != nil {
		return nil, err
	}
	o, err := c.store.Get(ctx, key)
	if errors.Is(err, datastore.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return o, nil
}

// newPod reads the endpoint of a pod that is missing in the cache from the datastore, nil if it does not exist there
// either: the kubelet may know the pod before this process does.
func (c *call) newPod(ctx context.Context) (*model.Object, error) {
	reader, ok := c.store.(interface {
		Read(context.Context, model.Key) (*model.Object, error)
	})
	if !ok || c.work.Pod == "" || !c.store.Keeps(model.KindNamespace) {
		return nil, nil
	}
	key, err := c.work.key()
	if err != nil {
		return nil, err
	}
	o, err := reader.Read(ctx, key)
	if errors.Is(err, datastore.ErrNotFound) {
		return nil, nil
	}
	return o, err
}

func endpointOf(o *model.Object) *model.WorkloadEndpoint {
	if o == nil {
		return nil
	}
	e, _ := o.Value.(*model.WorkloadEndpoint)
	return e
}

// ours reports whether an endpoint is this container's.
func (c *call) ours(stored *model.Object) bool {
	e := endpointOf(stored)
	return e != nil && e.Spec.ContainerID == c.q.ContainerID
}

// kept returns the addresses of an earlier ADD of the same container, so that ADD is repeatable.
func (c *call) kept(stored *model.Object) []netip.Addr {
	if !c.ours(stored) {
		return nil
	}
	return endpointAddresses(endpointOf(stored))
}

// describe fills in the parameters of the container's wiring.
func (c *call) describe(a *cni.Attachment, stored *model.Object, pod *facts) error {
	mtu, err := c.conf.FindMTU(c.MTUFile)
	if err != nil {
		return err
	}
	a.HostIf, a.MTU, a.Routes = c.work.hostIf(c.prefix()), mtu, podRoutes(c.conf, a.Addresses)
	a.Forwarding, a.Exclusive = c.conf.ContainerSettings.AllowIPForwarding, c.work.Pod == "" || c.exclusive
	a.MAC = hardwareAddress(c.work).String()
	a.Routed = c.machine != nil && c.machine.destination // the machine does not run here yet
	if pod.mac != nil {
		a.MAC = pod.mac.String()
	}
	if !c.ours(stored) {
		return nil
	}
	a.Repeated = true
	if mac, err := net.ParseMAC(endpointOf(stored).Spec.MAC); err == nil {
		a.MAC = mac.String()
	}
	return nil
}

// beginEarly lets the plugin wire the container while its addresses are being assigned, if their families are certain.
// A missing MTU is an error of the ADD, later.
func (c *call) beginEarly(stored *model.Object, pod *facts) {
	if c.q.Begin == nil || !c.Lasting || c.machine != nil || c.ours(stored) ||
		c.extra.IP != nil || len(pod.wanted) > 0 {
		return
	}
	a := &cni.Attachment{}
	if a.IPv4, a.IPv6 = pod.families(c.conf); a.IPv4 {
		a.Addresses = append(a.Addresses, netip.IPv4Unspecified())
	}
	if a.IPv6 {
		a.Addresses = append(a.Addresses, netip.IPv6Unspecified())
	}
	if c.describe(a, stored, pod) != nil {
		return
	}
	a.Addresses = nil // they were for the routes
	c.q.Begin(a)
}

// hardwareAddress returns the MAC address of the container's end. It is chosen here, so that the endpoint can be
// written before the interface exists, and is the same for each repeated ADD. It is locally administered (IEEE 802, bit
// 0x02).
func hardwareAddress(w workload) net.HardwareAddr {
	sum := sha256.Sum256([]byte(w.Network + " " + w.ContainerID + " " + w.IfName))
	mac := net.HardwareAddr(sum[:6])
	mac[0] = mac[0]&^0x01 | 0x02
	return mac
}

// prefix returns the prefix of host interface names: cali, or the configured one of this node.
func (c *call) prefix() string {
	for _, p := range []string{c.q.InterfacePrefix, c.Prefix} {
		if p != "" {
			return p
		}
	}
	return "cali"
}

// podRoutes returns the default routes of the families in use, or the routes of the IPAM section.
func podRoutes(c *cni.Config, ips []netip.Addr) []netip.Prefix {
	var custom, defaults []netip.Prefix
	for _, ip := range ips {
		if ip.Is4() {
			defaults = append(defaults, netip.PrefixFrom(netip.IPv4Unspecified(), 0))
		} else {
			defaults = append(defaults, netip.PrefixFrom(netip.IPv6Unspecified(), 0))
		}
	}
	for _, r := range c.IPAM.Routes {
		a, ok := netip.AddrFromSlice(r.Dst.IP)
		ones, _ := r.Dst.Mask.Size()
		for _, ip := range ips {
			if ok && a.Unmap().Is4() == ip.Is4() {
				custom = append(custom, netip.PrefixFrom(a.Unmap(), ones).Masked())
			}
		}
	}
	if len(custom) == 0 || c.IPAM.Type != "host-local" {
		return defaults
	}
	if c.IncludeDefaults {
		return append(custom, defaults...)
	}
	return custom
}

// writeAttempts is the maximum number of attempts to write an endpoint that other processes change concurrently.
const writeAttempts = 6

// writeEndpoint stores the container's endpoint in the datastore.
func (c *call) writeEndpoint(
	ctx context.Context, stored *model.Object, pod *facts, a *cni.Attachment, undo *cni.Undo,
) error {
	if !c.conf.OfKubernetes() {
		if err := c.ensureProfile(ctx); err != nil {
			return err
		}
	}
	key, err := c.work.key()
	if err != nil {
		return err
	}
	if !c.ours(stored) {
		undo.Push("delete the WorkloadEndpoint", c.deleteOwnEndpoint)
	}
	for range writeAttempts {
		if err := c.mayReplace(stored); err != nil {
			return err
		}
		c.confirm(key, a.Addresses...)
		if stored == nil {
			if pod.live {
				return podGone(c.work)
			}
			_, err = c.store.Create(ctx, model.NewObject(key, c.endpoint(nil, pod, a)))
			if !errors.Is(err, datastore.ErrExists) {
				return err
			}
		} else {
			o := stored.Clone()
			o.Value, o.Err = c.endpoint(endpointOf(stored), pod, a), nil
			_, err = c.store.Update(ctx, o)
			if !errors.Is(err, datastore.ErrConflict) && !errors.Is(err, datastore.ErrNotFound) {
				return err
			}
		}
		if stored, err = c.storedEndpoint(ctx); err != nil {
			return err
		}
	}
	return fmt.Errorf("%s changed %d times while it was being written", key, writeAttempts)
}

// confirm makes the addresses of an endpoint known to the agent in this process.
func (c *call) confirm(endpoint model.Key, addresses ...netip.Addr) {
	if c.Confirm != nil {
		c.Confirm(endpoint, addresses...)
	}
}

// released makes it known to the agent in this process that addresses are not the endpoint's any more.
func (c *call) released(addresses []netip.Addr) {
	if key, err := c.work.key(); err == nil && c.Released != nil {
		c.Released(key, addresses...)
	}
}

// podGone returns the error for a pod that Kubernetes does not have (any more).
func podGone(w workload) error {
	return types.NewError(types.ErrTryAgainLater, fmt.Sprintf("pod %s/%s is not known", w.Namespace, w.Pod),
		"the Kubernetes API has no such pod on node "+w.Node)
}

// ensureProfile creates the profile of a network without policy. It never changes an existing one, which is the user's.
func (c *call) ensureProfile(ctx context.Context) error {
	o := c.work.networkProfile()
	if _, err := c.store.Get(ctx, o.Key); !errors.Is(err, datastore.ErrNotFound) {
		return err
	}
	if _, err := c.store.Create(ctx, o); err != nil && !errors.Is(err, datastore.ErrExists) {
		return err
	}
	return nil
}
