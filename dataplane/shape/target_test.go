package shape

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/manxnet/manx/dataplane/hoststate"
	"github.com/manxnet/manx/dataplane/kernel"
	"github.com/manxnet/manx/dataplane/kernel/kerneltest"
	"github.com/manxnet/manx/dataplane/kernel/tc"
	"github.com/manxnet/manx/datastore/model"
)

type rig struct {
	*testing.T
	kernel *kerneltest.Kernel
	target *Target
	now    time.Time
	synced bool
}

func newRig(t *testing.T) *rig {
	r := &rig{T: t, kernel: kerneltest.New(), now: time.Unix(1000, 0)}
	r.kernel.PutLink(kernel.Link{Index: 2, Name: "cali1", MTU: 1500, Up: true})
	r.kernel.PutLink(kernel.Link{Index: 3, Name: "cali2", MTU: 1500, Up: true})
	r.target = New(r.kernel, func() time.Time { return r.now })
	return r
}

// configure passes a state with these workloads to the target.
func (r *rig) configure(list []endpoint) {
	objects := model.Set{}
	for i, e := range list {
		k := model.Key{Kind: model.KindWorkloadEndpoint, Namespace: "default", Name: fmt.Sprint(i)}
		objects[k] = model.NewObject(k, &model.WorkloadEndpoint{Spec: model.WorkloadEndpointSpec{Node: "n1",
			InterfaceName: e.Interface, QoSControls: &model.QoSControls{
				IngressBandwidth: e.Ingress.Bandwidth, IngressBurst: e.Ingress.Burst,
				EgressBandwidth: e.Egress.Bandwidth, EgressBurst: e.Egress.Burst}}})
	}
	h := hoststate.New("n1", nil)
	h.Take(hoststate.State{Reader: objects, All: true, DatastoreSynced: r.synced})
	r.target.SetState(h)
}

func (r *rig) flush(want ...string) {
	r.Helper()
	if _, _, err := r.target.Flush(); err != nil {
		r.Fatal(err)
	}
	log := r.kernel.Log()
	slices.Sort(log)
	slices.Sort(want)
	if !slices.Equal(log, want) {
		r.Fatalf("changes are %q, want %q", log, want)
	}
}

var (
	slow   = limit{Bandwidth: 8e6, Burst: 8e5}
	fast   = limit{Bandwidth: 80e6, Burst: 8e5}
	out1   = tc.RedirectDevice("cali1")
	both   = endpoint{Interface: "cali1", Ingress: slow, Egress: fast}
	in     = endpoint{Interface: "cali2", Ingress: slow}
	none   = endpoint{Interface: "cali2"}
	absent = endpoint{Interface: "cali9", Ingress: slow, Egress: slow}
)

func TestLimitsFollowTheConfiguration(t *testing.T) {
	r := newRig(t)
	r.configure(nil)
	r.flush()
	r.configure([]endpoint{both, none, absent})
	r.flush("shape cali1: 1000000 bytes/s", "shape "+out1+": 10000000 bytes/s from cali1")
	r.configure([]endpoint{both, in, absent})
	r.flush("shape cali2: 1000000 bytes/s")
	r.configure([]endpoint{{Interface: "cali1", Ingress: fast}, in})
	r.flush("shape cali1: 10000000 bytes/s", "end shape "+out1)
	r.configure(nil)
	r.flush("end shape cali1", "end shape cali2")
	if next := r.target.Next(); next < time.Minute {
		t.Errorf("without limits the kernel is checked again in %s", next)
	}
}

func TestLimitsOfAnEarlierRunAreAdoptedOrRemovedOnceInSync(t *testing.T) {
	r := newRig(t)
	r.kernel.PutShape("cali1", tc.Shape{TokenBucket: slow.bucket(1500)})
	r.kernel.PutShape(out1, tc.Shape{From: "cali1", TokenBucket: slow.bucket(1500)})
	r.kernel.PutShape(tc.RedirectDevice("gone"), tc.Shape{})
	r.configure([]endpoint{both})
	r.flush("shape " + out1 + ": 10000000 bytes/s from cali1")
	r.synced = true
	r.configure([]endpoint{both})
	r.flush("end shape " + tc.RedirectDevice("gone"))
}

func TestLimitsComeWithTheInterface(t *testing.T) {
	r := newRig(t)
	r.configure([]endpoint{absent})
	r.flush()
	l := kernel.Link{Index: 9, Name: "cali9", MTU: 1500, Up: true}
	r.kernel.PutLink(l)
	r.target.Handle([]kernel.Event{{Type: kernel.EventLink, Link: l}})
	r.flush("shape cali9: 1000000 bytes/s", "shape "+tc.RedirectDevice("cali9")+": 1000000 bytes/s from cali9")
	calls := r.kernel.Calls("ListShapes")
	r.target.Handle([]kernel.Event{{Type: kernel.EventLink, Link: kernel.Link{Index: 5, Name: "eth0"}}})
	r.flush()
	if r.kernel.Calls("ListShapes") != calls {
		t.Error("an interface without limits makes everything be read")
	}
}

// The limit of the traffic from a workload is kept on another device than the workload's.
func TestLimitOfAnInterfaceThatIsMadeAgain(t *testing.T) {
	r := newRig(t)
	r.configure([]endpoint{{Interface: "cali1", Egress: fast}})
	r.flush("shape " + out1 + ": 10000000 bytes/s from cali1")
	if err := r.kernel.RemoveShape(out1, tc.Shape{From: "cali1"}); err != nil {
		t.Fatal(err)
	}
	r.kernel.Log()
	again := kernel.Link{Index: 7, Name: "cali1", MTU: 1500, Up: true}
	r.kernel.PutLink(again)
	r.target.Handle([]kernel.Event{{Type: kernel.EventLinkGone, Link: kernel.Link{Index: 2, Name: "cali1"}},
		{Type: kernel.EventLink, Link: again}})
	r.flush("shape " + out1 + ": 10000000 bytes/s from cali1")
}

// Of two endpoints with one interface, the first by its name has it, whatever the order of a map.
func TestFirstEndpointHasTheInterface(t *testing.T) {
	for range 20 {
		r := newRig(t)
		r.configure([]endpoint{{Interface: "cali1", Ingress: fast}, {Interface: "cali1", Ingress: slow}})
		r.flush("shape cali1: 10000000 bytes/s")
	}
}

func TestLimitsThatOthersRemoveComeBack(t *testing.T) {
	r := newRig(t)
	r.configure([]endpoint{in})
	r.flush("shape cali2: 1000000 bytes/s")
	if err := r.kernel.RemoveShape("cali2", tc.Shape{}); err != nil {
		t.Fatal(err)
	}
	r.kernel.Log()
	r.flush()
	r.now = r.now.Add(r.target.Next())
	r.flush("shape cali2: 1000000 bytes/s")
	if list, _ := r.target.Repairs(); len(list) != 1 {
		t.Errorf("repairs are %v", list)
	}
}

func TestWhatTheKernelCannotDoKeepsNothingElseFromWorking(t *testing.T) {
	r := newRig(t)
	r.kernel.WithoutShaping()
	r.configure([]endpoint{both, in})
	r.flush("shape cali1: 1000000 bytes/s", "shape cali2: 1000000 bytes/s")
	failed := r.target.Notices()
	if err := r.target.Health().Problem; !errors.Is(err, tc.ErrNoShaping) || len(failed) != 1 ||
		failed[0].Subject != "bandwidth of cali1" ||
		!strings.Contains(failed[0].Text, "the bandwidth of cali1: not supported by this kernel") {
		t.Errorf("failures are %v, %v", failed, err)
	}
}
