package moves

import (
	"errors"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/manxnet/manx/dataplane/hoststate"
	"github.com/manxnet/manx/dataplane/kernel"
	"github.com/manxnet/manx/dataplane/kernel/kerneltest"
	"github.com/manxnet/manx/datastore/livemigration"
	"github.com/manxnet/manx/datastore/model"
)

// A machine is heard though its interface and its address come after its pod, and an interface that cannot be heard is
// a notice until it can.
func TestHearing(t *testing.T) {
	fake, now := kerneltest.New(), time.Unix(1000, 0)
	woken := 0
	target := New(Config{Kernel: fake, Now: func() time.Time { return now }, Logger: zap.NewNop(),
		Wake: func() { woken++ }})
	k := model.Key{Kind: model.KindWorkloadEndpoint, Namespace: "default", Name: "db"}
	h := hoststate.New("n1", nil)
	state := func(addresses ...string) {
		m := &model.VirtualMachineInstanceMigration{}
		m.Namespace, m.UID, m.Spec.VMIName, m.Status.Phase = "default", "u", "db", "Running"
		w := &model.WorkloadEndpoint{Spec: model.WorkloadEndpointSpec{Node: "n1", InterfaceName: "cali1",
			IPNetworks: addresses}}
		w.Namespace = "default"
		w.Labels = map[string]string{model.LabelMigrationJob: "u", "vmi.kubevirt.io/id": "db"}
		h.Take(hoststate.State{All: true, Reader: model.NewSet(model.NewObject(k, w),
			model.NewObject(model.Key{Kind: model.KindMigration, Namespace: "default", Name: "m"}, m))})
		target.SetState(h)
	}
	flush := func(failures int) {
		t.Helper()
		if _, n, err := target.Flush(); n != failures || err != nil {
			t.Errorf("%d failures, %v", n, err)
		}
	}
	state()
	flush(0)
	if fake.Announce("cali1") {
		t.Error("an interface is heard that does not exist")
	}
	fake.Fail("Hear", 1, errors.New("no rules"))
	link := kernel.Link{Index: 7, Name: "cali1", Up: true}
	fake.PutLink(link)
	target.Handle([]kernel.Event{{Type: kernel.EventLink, Link: link}})
	flush(1)
	if list := target.Notices(); len(list) != 1 || !strings.Contains(list[0].Text, "no rules") ||
		target.Next() != retryAfter {
		t.Errorf("%v, next in %s", list, target.Next())
	}
	flush(0) // not yet
	now = now.Add(retryAfter)
	flush(0)
	state("10.0.0.7/32")
	flush(0)
	if n := fake.Calls("Hear"); n != 3 || len(target.Notices()) > 0 {
		t.Errorf("%d calls, want one more for the address; %v", n, target.Notices())
	}
	flush(0)
	fake.Fail("ListLinks", fake.Calls("ListLinks")+1, errors.New("interrupted"))
	flush(0)
	if n := fake.Calls("Hear"); n != 3 {
		t.Errorf("%d calls, though nothing has changed", n)
	}
	if !fake.Announce("cali1") || woken != 1 || target.tracker.Phase(k) != livemigration.Arriving {
		t.Errorf("woken %d times, %s", woken, target.tracker.Phase(k))
	}
	flush(0)
	if target.tracker.Phase(k) != livemigration.Arrived || fake.Announce("cali1") {
		t.Errorf("it is %s, or still heard", target.tracker.Phase(k))
	}
}
