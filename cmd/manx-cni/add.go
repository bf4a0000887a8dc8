package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"

	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"go.uber.org/zap"

	"github.com/manxnet/manx/dataplane/kernel"
	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/model"
)

// add attaches the container. Each step that leaves something behind pushes how to take it back, and a failure takes
// everything back in reverse, so that the container can be attached again as if nothing had been.
func (c *call) add(ctx context.Context) (err error) {
	if err := c.unsupported(); err != nil {
		return err
	}
	if err := c.waitForGates(ctx, gatePause, gateTimeout); err != nil {
		return err
	}
	stored, err := c.storedEndpoint(ctx)
	if err != nil {
		return err
	}
	var undo undoStack
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("bug: %v", r)
			c.log.Error("panic", zap.Any("value", r), zap.Stack("stack"))
		}
		if err != nil {
			err = afterwards(err, undo.run(c.log))
		}
	}()
	ips, routes, err := c.findAddresses(ctx, stored, &undo)
	if err != nil {
		return err
	}
	mac, pod, err := c.wire(stored, ips, &undo)
	if err != nil {
		return err
	}
	err = c.step("write the WorkloadEndpoint", func() error { return c.writeEndpoint(ctx, stored, pod.HostIf, mac, ips, &undo) })
	if err != nil {
		return err
	}
	c.waitForPolicy(ctx, mac, ips)
	c.log.Info("attached", zap.String("hostInterface", pod.HostIf), zap.Stringers("addresses", ips))
	return c.step("print the result", func() error { return c.print(attachment(pod, mac, routes)) })
}

// unsupported refuses what this version cannot do, before anything is done.
func (c *call) unsupported() error {
	if c.conf.Policy.Type == "k8s" && c.work.Pod != "" {
		return types.NewError(types.ErrInvalidNetworkConfig, "policy.type = \"k8s\" cannot be used yet",
			fmt.Sprintf("it needs labels and annotations of pod %s/%s from the Kubernetes API, which this version does not read: "+
				"leave policy.type empty", c.work.Namespace, c.work.Pod))
	}
	if c.conf.DeviceType == "netkit" {
		c.log.Info("device_type netkit: a veth pair is used instead")
	}
	return nil
}

// storedEndpoint reads the endpoint that an earlier call left, nil if there is none.
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

func endpointOf(o *model.Object) *model.WorkloadEndpoint {
	if o == nil {
		return nil
	}
	e, _ := o.Value.(*model.WorkloadEndpoint)
	return e
}

// findAddresses keeps the addresses of an earlier ADD of the same container, so that ADD can be repeated; else the IPAM
// plugin is asked.
func (c *call) findAddresses(ctx context.Context, stored *model.Object, undo *undoStack) ([]netip.Addr, []*types.Route, error) {
	if e := endpointOf(stored); e != nil && e.Spec.ContainerID == c.args.ContainerID {
		if ips := endpointAddresses(e); len(ips) > 0 {
			c.log.Info("attached before: the addresses are kept", zap.Stringers("addresses", ips))
			return ips, nil, nil
		}
	}
	takeBack, err := c.prepareRelease(ctx)
	if err != nil {
		return nil, nil, err
	}
	var result *current.Result
	err = c.step("assign addresses", func() (err error) {
		undo.push("release the addresses", takeBack) // also a failed assignment may have left something
		result, err = c.assignAddresses(ctx)
		return err
	})
	if err != nil {
		return nil, nil, err
	}
	ips, err := onePerFamily(result)
	return ips, result.Routes, err
}

// onePerFamily takes the addresses of an IPAM result.
func onePerFamily(r *current.Result) ([]netip.Addr, error) {
	var ips []netip.Addr
	for _, ip := range r.IPs {
		if ip == nil {
			return nil, errors.New("the IPAM plugin gave null in place of an address")
		}
		a, ok := netip.AddrFromSlice(ip.Address.IP)
		if !ok {
			return nil, fmt.Errorf("the IPAM plugin gave %q, which is no address", ip.Address.String())
		}
		a = a.Unmap()
		for _, have := range ips {
			if have.Is4() == a.Is4() {
				return nil, fmt.Errorf("the IPAM plugin gave %s and %s: only one address of each family can be used", have, a)
			}
		}
		ips = append(ips, a)
	}
	if len(ips) == 0 {
		return nil, errors.New("the IPAM plugin gave no address")
	}
	return ips, nil
}

// wire connects the container, unless an earlier ADD did and all is well.
func (c *call) wire(stored *model.Object, ips []netip.Addr, undo *undoStack) (net.HardwareAddr, kernel.Pod, error) {
	pod, err := c.pod(ips)
	if err != nil {
		return nil, pod, err
	}
	if e := endpointOf(stored); e != nil && e.Spec.ContainerID == c.args.ContainerID {
		if mac, err := net.ParseMAC(e.Spec.MAC); err == nil {
			pod.MAC = mac
			if kernel.CheckPod(pod) == nil {
				return mac, pod, nil
			}
		}
	}
	mac, err := kernel.AttachPod(pod, kernel.PodOptions{Log: c.log, BeforeStep: c.beforeStep})
	if err != nil {
		return nil, pod, err
	}
	undo.push("remove the interface", func(context.Context) error {
		return kernel.DetachPod(c.args.Netns, c.args.IfName, pod.HostIf)
	})
	return mac, pod, nil
}

// hostRoute marks the routes to local containers. Protocol boot is what Calico's plugin writes: no agent takes such a
// route for its own before it knows the WorkloadEndpoint. The metric is the agent's, so that it can then put its own
// route in the same place in one step, without a gap.
var hostRoute = kernel.PodRoute{Protocol: int(kernel.ProtocolBoot), Metric: 1024}

// pod decides how the container is wired.
func (c *call) pod(ips []netip.Addr) (kernel.Pod, error) {
	mtu, err := c.conf.mtu(c.mtuFile)
	if err != nil {
		return kernel.Pod{}, err
	}
	return kernel.Pod{
		Netns: c.args.Netns, IfName: c.args.IfName, HostIf: c.work.hostIf(c.prefix()),
		MTU: mtu, Queues: c.conf.NumQueues,
		Addresses: ips, Routes: c.conf.podRoutes(ips),
		Forwarding: c.conf.ContainerSettings.AllowIPForwarding,
		HostRoute:  hostRoute,
		Exclusive:  c.work.Pod == "",
	}, nil
}

// prefix begins the name of every host end: cali, or what the rest of the node was told.
func (c *call) prefix() string {
	first, _, _ := strings.Cut(c.getenv("FELIX_INTERFACEPREFIX"), ",")
	if first == "" {
		return "cali"
	}
	return first
}

// podRoutes are the default routes of the families in use, or those of the IPAM section.
func (c *netConf) podRoutes(ips []netip.Addr) []netip.Prefix {
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

// writeEndpoint tells the cluster of the container.
func (c *call) writeEndpoint(ctx context.Context, stored *model.Object, hostIf string, mac net.HardwareAddr, ips []netip.Addr, undo *undoStack) error {
	if err := c.ensureProfile(ctx); err != nil {
		return err
	}
	key, err := c.work.key()
	if err != nil {
		return err
	}
	if stored == nil {
		undo.push("delete the WorkloadEndpoint", c.deleteOwnEndpoint)
		o := model.NewObject(key, c.work.endpoint(nil, hostIf, mac, ips))
		_, err = c.store.Create(ctx, o)
		if !errors.Is(err, datastore.ErrExists) {
			return err
		}
		if stored, err = c.store.Get(ctx, key); err != nil {
			return err
		}
	}
	o := stored.Clone()
	o.Value = c.work.endpoint(endpointOf(stored), hostIf, mac, ips)
	o.Err = nil
	if e := endpointOf(stored); e == nil || e.Spec.ContainerID != c.args.ContainerID {
		undo.push("delete the WorkloadEndpoint", c.deleteOwnEndpoint)
	}
	_, err = c.store.Update(ctx, o)
	return err
}

// ensureProfile creates the profile of a network without policy. An existing one is the user's.
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
