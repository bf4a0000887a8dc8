package loadbalancer

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/ipam"
)

// owner is the owner of the blocks of load balancer addresses.
const owner = "load-balancer"

// Controller assigns the addresses. Any number may run concurrently: after a conflict of two, the next pass of either
// leads to the same result.
type Controller struct {
	Services      corev1client.CoreV1Interface
	IPAM          *ipam.Allocator
	Log           *zap.Logger
	RequestedOnly bool
	Now           func() time.Time
	// Period is the interval between complete passes; default five minutes. Retry is the pause after a failure; default
	// 15 s.
	Period, Retry time.Duration

	services cache.Store
	pools    pools
	blocks   map[netip.Prefix][]allocation
	handles  map[string]map[netip.Addr]bool
	owners   map[string]name // of handles that have addresses
	logged   map[name]string
	pending  map[name]bool // those to be processed next
}

// name is that of a Service.
type name struct{ namespace, name string }

func (n name) String() string { return n.namespace + "/" + n.name }

// allocation is an address of a Service.
type allocation struct {
	address netip.Addr
	handle  string
	service name
}

// Run works until ctx ends. tables must have IPPools and IPAMBlocks.
func (c *Controller) Run(ctx context.Context, tables *datastore.Tables) error {
	c.pools, c.blocks, c.handles = pools{}, map[netip.Prefix][]allocation{}, map[string]map[netip.Addr]bool{}
	c.owners, c.logged, c.pending = map[string]name{}, map[name]string{}, map[name]bool{}
	touched := make(chan name, 1024)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	informer := c.informer(ctx, touched)
	go informer.RunWithContext(ctx)
	if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
		return ctx.Err()
	}
	var was *datastore.Snapshot
	var next time.Time
	for ctx.Err() == nil {
		now := tables.Snapshot()
		dirty := c.take(now, was)
		was = now
		drain(touched, dirty)
		maps.Copy(dirty, c.pending)
		c.pending = map[name]bool{}
		if now.InSync() {
			if !time.Now().Before(next) {
				c.all(dirty)
				next = time.Now().Add(orElse(c.Period, 5*time.Minute))
			}
			if c.pass(ctx, dirty) {
				next = time.Now().Add(orElse(c.Retry, 15*time.Second))
			}
		}
		c.wait(ctx, tables, now, touched, next)
	}
	return ctx.Err()
}

func orElse(d, other time.Duration) time.Duration {
	if d > 0 {
		return d
	}
	return other
}

// informer follows the Services.
func (c *Controller) informer(ctx context.Context, touched chan<- name) cache.Controller {
	touch := func(o any) {
		if d, ok := o.(cache.DeletedFinalStateUnknown); ok {
			o = d.Obj
		}
		if s, ok := o.(*corev1.Service); ok {
			select {
			case touched <- name{s.Namespace, s.Name}:
			case <-ctx.Done():
			}
		}
	}
	services := c.Services.Services(metav1.NamespaceAll)
	store, informer := cache.NewInformerWithOptions(cache.InformerOptions{ObjectType: &corev1.Service{},
		Transform: slim,
		Handler: cache.ResourceEventHandlerFuncs{AddFunc: touch, UpdateFunc: func(_, o any) { touch(o) },
			DeleteFunc: touch},
		ListerWatcher: &cache.ListWatch{
			ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
				return services.List(ctx, o)
			},
			WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
				return services.Watch(ctx, o)
			},
		}})
	c.services = store
	return informer
}

// slim drops the unused fields of a Service.
func slim(o any) (any, error) {
	s, ok := o.(*corev1.Service)
	if !ok {
		return o, nil
	}
	k := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: s.Namespace, Name: s.Name, UID: s.UID,
		ResourceVersion: s.ResourceVersion}}
	for _, a := range []string{annotationPools4, annotationPools6, annotationAddresses} {
		if text, ok := s.Annotations[a]; ok {
			metav1.SetMetaDataAnnotation(&k.ObjectMeta, a, text)
		}
	}
	k.Spec.Type, k.Spec.LoadBalancerClass = s.Spec.Type, s.Spec.LoadBalancerClass
	k.Spec.LoadBalancerIP = s.Spec.LoadBalancerIP
	k.Spec.IPFamilies, k.Status.LoadBalancer = s.Spec.IPFamilies, s.Status.LoadBalancer
	return k, nil
}

// take returns the Services that changes in the tables concern.
func (c *Controller) take(now, was *datastore.Snapshot) map[name]bool {
	dirty := map[name]bool{}
	for ch := range now.Changes(was) {
		switch ch.Key.Kind {
		case model.KindIPPool:
			delete(c.pools, ch.Key.Name)
			if ch.New != nil {
				if p, ok := ch.New.Value.(*model.IPPool); ok && forServices(p) {
					c.pools[ch.Key.Name] = p
				}
			}
			c.all(dirty)
		case model.KindIPAMBlock:
			if cidr, ok := ch.Key.Block(); ok {
				c.block(cidr, ch.New, dirty)
			}
		}
	}
	return dirty
}

// block sets the current state of a block.
func (c *Controller) block(cidr netip.Prefix, o *model.Object, dirty map[name]bool) {
	for _, a := range c.blocks[cidr] {
		if delete(c.handles[a.handle], a.address); len(c.handles[a.handle]) == 0 {
			delete(c.handles, a.handle)
			delete(c.owners, a.handle)
		}
		dirty[a.service] = true
	}
	delete(c.blocks, cidr)
	if o == nil {
		return
	}
	b, ok := o.Value.(*model.Block)
	if !ok {
		return
	}
	if of, ok := ipam.OwnerOf(b); !ok || of.Type != model.AffinityVirtual || of.Name != owner {
		return
	}
	for x := range ipam.Allocations(b) {
		a := allocation{address: x.Address, handle: x.Handle, service: name{x.Attrs["namespace"], x.Attrs["service"]}}
		if a.handle == "" || a.service.namespace == "" || a.service.name == "" {
			continue
		}
		c.blocks[cidr] = append(c.blocks[cidr], a)
		if c.handles[a.handle] == nil {
			c.handles[a.handle] = map[netip.Addr]bool{}
		}
		c.handles[a.handle][a.address], c.owners[a.handle] = true, a.service
		dirty[a.service] = true
	}
}

// all adds every Service that exists or has addresses.
func (c *Controller) all(dirty map[name]bool) {
	for _, o := range c.services.List() {
		s := o.(*corev1.Service)
		dirty[name{s.Namespace, s.Name}] = true
	}
	for _, n := range c.owners {
		dirty[n] = true
	}
}

func drain(touched <-chan name, dirty map[name]bool) {
	for {
		select {
		case n := <-touched:
			dirty[n] = true
		default:
			return
		}
	}
}

var errNoPool = errors.New("there is no IP pool with allowedUses LoadBalancer")

// pass processes Services. again is set if a complete pass is due soon.
func (c *Controller) pass(ctx context.Context, dirty map[name]bool) (again bool) {
	for n := range dirty {
		err := c.settle(ctx, n)
		text := ""
		if err != nil {
			text, again = err.Error(), true
		}
		if text != c.logged[n] && text != "" && ctx.Err() == nil {
			level := zap.WarnLevel
			if text == errNoPool.Error() {
				level = zap.InfoLevel // another program may assign the addresses of Services here
			}
			c.Log.Log(level, "service does not have the addresses that it is to have", zap.Stringer("service", n),
				zap.Error(err))
		}
		if c.logged[n] = text; text == "" {
			delete(c.logged, n)
		}
	}
	return again
}

// wait waits for a change.
func (c *Controller) wait(ctx context.Context, tables *datastore.Tables, s *datastore.Snapshot, touched <-chan name,
	next time.Time,
) {
	changed := tables.Changed()
	if tables.Snapshot() != s {
		return
	}
	timer := time.NewTimer(max(time.Until(next), time.Millisecond))
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	case <-changed:
	case n := <-touched:
		c.pending[n] = true
	}
}

// settle assigns a Service its addresses, and releases the others. The caches are only a hint: it reads the Service
// first.
func (c *Controller) settle(ctx context.Context, n name) error {
	s, err := c.Services.Services(n.namespace).Get(ctx, n.name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		s, err = nil, nil
	}
	if err != nil {
		return err
	}
	var errs []error
	for handle, of := range c.owners {
		if of == n && (s == nil || handle != handleOf(s)) {
			errs = append(errs, c.forget(ctx, n, handle, "the service does not exist any more"))
		}
	}
	if s != nil {
		errs = append(errs, c.serve(ctx, n, s))
	}
	return errors.Join(errs...)
}

// forget releases all addresses of a handle.
func (c *Controller) forget(ctx context.Context, n name, handle, reason string) error {
	list, err := c.IPAM.ReleaseByHandle(ctx, handle)
	if errors.Is(err, datastore.ErrNotFound) {
		return nil
	}
	if len(list) > 0 {
		c.Log.Info("addresses of a service were released", zap.Stringer("service", n), zap.Stringers("addresses", list),
			zap.String("reason", reason))
	}
	return err
}

// serve settles a Service that exists.
func (c *Controller) serve(ctx context.Context, n name, s *corev1.Service) error {
	handle := handleOf(s)
	have, err := c.IPAM.IPsByHandle(ctx, handle)
	if err != nil && !errors.Is(err, datastore.ErrNotFound) {
		return err
	}
	switch {
	case !managed(s, c.RequestedOnly), len(c.pools) == 0:
		if len(have) == 0 {
			if managed(s, c.RequestedOnly) {
				return errNoPool
			}
			return nil
		}
		if err := c.show(ctx, s, without(s, have)); err != nil {
			return err
		}
		return c.forget(ctx, n, handle, "it is no service that gets addresses of an IP pool")
	}
	p, err := decide(s, have, c.pools)
	if err != nil {
		return err
	}
	given, assignErr := c.assign(ctx, s, handle, p)
	list := append(p.keep, given...)
	if !shows(s, list) {
		if err := c.show(ctx, s, ingress(list)); err != nil {
			return errors.Join(assignErr, err)
		}
	}
	if len(p.release) > 0 {
		var releases []ipam.Release
		for _, a := range p.release {
			releases = append(releases, ipam.Release{Address: a, Handle: handle})
		}
		if _, err := c.IPAM.ReleaseIPs(ctx, releases...); err != nil {
			return errors.Join(assignErr, err)
		}
		c.Log.Info("addresses of a service were released", zap.Stringer("service", n),
			zap.Stringers("addresses", p.release),
			zap.String("reason", "the service requests others"))
	}
	return assignErr
}

// without returns the addresses in the Service's status except these: those of other programs.
func without(s *corev1.Service, list []netip.Addr) []corev1.LoadBalancerIngress {
	return slices.DeleteFunc(slices.Clone(s.Status.LoadBalancer.Ingress), func(i corev1.LoadBalancerIngress) bool {
		a, err := netip.ParseAddr(i.IP)
		return err == nil && slices.Contains(list, a)
	})
}

// show writes the status, unless the Service has changed since it was read.
func (c *Controller) show(ctx context.Context, s *corev1.Service, in []corev1.LoadBalancerIngress) error {
	if s.Spec.Type != corev1.ServiceTypeLoadBalancer || len(in) == 0 && len(s.Status.LoadBalancer.Ingress) == 0 {
		return nil
	}
	next := s.DeepCopy()
	next.Status.LoadBalancer.Ingress = in
	written, err := c.Services.Services(s.Namespace).UpdateStatus(ctx, next, metav1.UpdateOptions{})
	if err != nil {
		return fmt.Errorf("status of the service: %w", err)
	}
	*s = *written
	return nil
}

// assign assigns the missing addresses of a Service.
func (c *Controller) assign(ctx context.Context, s *corev1.Service, handle string, p plan) ([]netip.Addr, error) {
	attrs := map[string]string{"service": s.Name, "namespace": s.Namespace, "type": string(s.Spec.Type),
		"timestamp": c.Now().UTC().String()}
	var given []netip.Addr
	for _, a := range p.assign {
		err := c.IPAM.AssignIP(ctx, ipam.AddressRequest{Address: a, Host: owner, Handle: handle, Attrs: attrs,
			Use: v3.IPPoolAllowedUseLoadBalancer})
		if err != nil {
			return given, err
		}
		given = append(given, a)
	}
	if p.num4+p.num6 == 0 {
		return given, nil
	}
	namespace, err := c.Services.Namespaces().Get(ctx, s.Namespace, metav1.GetOptions{})
	if err != nil {
		return given, err
	}
	labels := namespace.Labels
	if labels == nil {
		labels = map[string]string{}
	}
	r, err := c.IPAM.AutoAssign(ctx, ipam.Request{Host: owner, Handle: handle, Attrs: attrs, Num4: p.num4, Num6: p.num6,
		Pools4: p.pools4, Pools6: p.pools6, Use: v3.IPPoolAllowedUseLoadBalancer, NamespaceLabels: labels})
	for _, list := range [][]netip.Prefix{r.V4.Addresses, r.V6.Addresses} {
		for _, a := range list {
			given = append(given, a.Addr())
		}
	}
	if err == nil {
		err = r.Short()
	}
	if len(given) > 0 {
		c.Log.Info("a service was given addresses", zap.String("service", s.Namespace+"/"+s.Name),
			zap.Stringers("addresses", given))
	}
	return given, err
}
