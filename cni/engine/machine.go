package engine

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/containernetworking/cni/pkg/types"
	"go.uber.org/zap"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/manxnet/manx/cni"
	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/ipam"
)

// A virtual machine of KubeVirt runs in pods, one after the other, and its addresses stay: they have the handle of the
// machine. The attributes of an address name the last pod. They are left when it ends, so that the garbage collector
// can find out that the machine is gone.

// KubeVirt's names.
const (
	launcherPrefix   = "virt-launcher-" // of the names of its pods
	kubeVirtGroup    = "kubevirt.io/"
	machineKind      = "VirtualMachine"
	instanceKind     = "VirtualMachineInstance"
	machineResource  = "virtualmachines"
	instanceResource = "virtualmachineinstances"
)

// machine is the virtual machine that a pod runs.
type machine struct {
	name   string
	handle string
	attrs  map[string]string // beside those of the pod
	// destination is set if a live migration moves the machine to this pod.
	destination bool
}

// findMachine finds out whether the container is a pod of a virtual machine that keeps its addresses.
func (c *call) findMachine(ctx context.Context) error {
	if !strings.HasPrefix(c.work.Pod, launcherPrefix) || !c.conf.OwnIPAM() || c.machine != nil || c.Kubernetes == nil {
		return nil
	}
	if kept, err := c.keepsMachines(ctx); err != nil || !kept {
		return err
	}
	k, err := c.Kubernetes(c.conf)
	if err != nil {
		if !c.conf.OfKubernetes() && !c.store.Keeps(model.KindNamespace) {
			return nil // the containers of another orchestrator
		}
		return fmt.Errorf("which virtual machine does the pod run: %w", err)
	}
	pod, err := k.Pod(ctx, c.work.Namespace, c.work.Pod)
	if errors.Is(err, datastore.ErrNotFound) {
		return nil // ADD fails for other reasons; the garbage collector releases what a DEL leaves
	}
	if err != nil {
		return err
	}
	owner := controllerOf(pod.OwnerReferences, instanceKind)
	if owner == nil {
		return nil
	}
	m := &machine{name: owner.Name, handle: ipam.MachineHandle(c.conf.Name, c.work.Namespace, owner.Name),
		attrs:       map[string]string{"vmi-name": owner.Name, "vmi-uid": string(owner.UID)},
		destination: pod.Labels[model.LabelMigrationJob] != ""}
	if c.q.Step == cni.StepAdd || c.q.Step == cni.StepIPAMAdd {
		instance, served, err := k.KubeVirt(ctx, instanceResource, c.work.Namespace, owner.Name)
		if err != nil || !served {
			return err
		}
		if err := c.checkInstance(m, owner, instance); err != nil {
			return err
		}
	}
	c.machine = m
	return nil
}

// checkInstance compares the owner that the pod names with the real instance, nil for none: the pod of
// an earlier machine of that name gets no address of this one.
func (c *call) checkInstance(m *machine, owner *metav1.OwnerReference, instance *metav1.PartialObjectMetadata) error {
	if instance == nil || instance.Name != owner.Name || instance.UID != owner.UID {
		return types.NewError(types.ErrTryAgainLater, fmt.Sprintf("pod %s/%s is not of the virtual machine %s",
			c.work.Namespace, c.work.Pod, owner.Name),
			"its owner is another VirtualMachineInstance, or one that is gone")
	}
	if vm := controllerOf(instance.OwnerReferences, machineKind); vm != nil {
		m.attrs["vm-uid"] = string(vm.UID)
	}
	return nil
}

func controllerOf(owners []metav1.OwnerReference, kind string) *metav1.OwnerReference {
	for i := range owners {
		o := &owners[i]
		if o.Kind == kind && strings.HasPrefix(o.APIVersion, kubeVirtGroup) && o.Controller != nil && *o.Controller {
			return o
		}
	}
	return nil
}

// keepsMachines reports whether virtual machines keep their addresses: unless either form of the configuration, which
// Calico's programs write in etcd, says Disabled.
func (c *call) keepsMachines(ctx context.Context) (bool, error) {
	own, err := c.allocator().Config(ctx)
	if err != nil || disabled(own.KubeVirtVMAddressPersistence) {
		return false, err
	}
	if c.store.Keeps(model.KindNamespace) { // the Kubernetes API has one form
		return true, nil
	}
	o, err := c.store.Get(ctx, model.ResourceKey(model.KindIPAMConfiguration, "default"))
	if errors.Is(err, datastore.ErrNotFound) {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	shown, ok := o.Value.(*model.IPAMConfiguration)
	return !ok || !disabled(shown.Spec.KubeVirtVMAddressPersistence), nil
}

func disabled(persistence *string) bool { return persistence != nil && *persistence == "Disabled" }

// handle returns the IPAM handle of the container's addresses: its own, or that of its virtual machine.
func (c *call) handle() string {
	if c.machine != nil {
		return c.machine.handle
	}
	return c.work.handle()
}

// takeOver makes the container the owner of the addresses that its virtual machine has, and returns these. The pod to
// which the machine moves is their next owner; its agent makes it the owner when the machine runs there. It has an
// address of its own if the machine has none, such as one that started before machines kept theirs.
func (c *call) takeOver(ctx context.Context) ([]netip.Prefix, error) {
	if c.machine == nil {
		return nil, nil
	}
	set := c.allocator().SetOwner
	if c.machine.destination {
		set = c.allocator().SetNextOwner
	}
	has, err := set(ctx, c.machine.handle, c.attributes())
	if err == nil && len(has) == 0 && c.machine.destination {
		c.machine = nil
		return nil, nil
	}
	if err == nil && len(has) > 0 {
		c.log.Info("the virtual machine keeps its addresses", zap.String("machine", c.machine.name),
			zap.Stringers("addresses", has))
	}
	return has, err
}

// releaseMachine releases the addresses of the container's virtual machine, if that is gone or being deleted, and if
// no other pod has taken them over.
func (c *call) releaseMachine(ctx context.Context) error {
	if c.machine == nil {
		return nil
	}
	if c.machine.destination {
		if err := c.allocator().DropNextOwner(ctx, c.machine.handle, c.work.Namespace, c.work.Pod); err != nil {
			return err
		}
	}
	has, err := c.allocator().AllocationsOf(ctx, c.machine.handle)
	if err != nil || len(has) == 0 {
		return err
	}
	var releases []ipam.Release
	for _, a := range has {
		if a.Attrs["namespace"] != c.work.Namespace || a.Attrs["pod"] != c.work.Pod {
			return nil
		}
		releases = append(releases, ipam.Release{Address: a.Address, Handle: a.Handle, Sequence: &a.Sequence})
	}
	if lives, err := c.machineLives(ctx); err != nil || lives {
		return err
	}
	done, err := c.allocator().ReleaseIPs(ctx, releases...)
	if c.released(done.Addresses); err != nil {
		return fmt.Errorf("release the addresses of virtual machine %s: %w", c.machine.name, err)
	}
	c.log.Info("the virtual machine is gone", zap.String("machine", c.machine.name),
		zap.Stringers("addresses", done.Addresses))
	return nil
}

// machineLives reports whether there is the virtual machine, or an instance without one, and it is not being deleted.
// Without KubeVirt that is unknown: it may come back.
func (c *call) machineLives(ctx context.Context) (bool, error) {
	k, err := c.Kubernetes(c.conf)
	if err != nil {
		return true, err
	}
	vm, served, err := k.KubeVirt(ctx, machineResource, c.work.Namespace, c.machine.name)
	if err != nil || !served || vm != nil {
		return err != nil || !served || vm.DeletionTimestamp == nil, err
	}
	instance, served, err := k.KubeVirt(ctx, instanceResource, c.work.Namespace, c.machine.name)
	if err != nil || !served || instance == nil {
		return err != nil || !served, err
	}
	return instance.DeletionTimestamp == nil && controllerOf(instance.OwnerReferences, machineKind) == nil, nil
}
