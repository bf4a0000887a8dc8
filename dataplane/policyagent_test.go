package dataplane

import (
	"errors"
	"net/netip"
	"testing"
	"time"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"go.uber.org/zap"

	"github.com/manxnet/manx/dataplane/kernel"
	"github.com/manxnet/manx/dataplane/kernel/kerneltest"
	"github.com/manxnet/manx/dataplane/policy"
	"github.com/manxnet/manx/dataplane/ruleset"
	"github.com/manxnet/manx/datastore/model"
)

// unlisted is a kernel whose interfaces cannot be listed a few times.
type unlisted struct {
	*kerneltest.Kernel
	failures int
}

func (u *unlisted) ListLinks() ([]kernel.Link, error) {
	if u.failures > 0 {
		u.failures--
		return nil, errors.New("no buffer space available")
	}
	return u.Kernel.ListLinks()
}

// Rules for host endpoints depend on the host's interfaces: nothing is done before they are known, not even at a
// restart, and a later failure to list them is retried soon.
func TestInterfacesAreKnownBeforeRulesAreMade(t *testing.T) {
	links := &unlisted{kerneltest.New(), 1}
	links.PutLink(kernel.Link{Index: 2, Name: "eth0", Up: true, Running: true})
	links.PutLink(kernel.Link{Index: 3, Name: "eth1", Up: true, Running: true})
	links.PutAddress(kernel.Address{Link: 2, Prefix: netip.MustParsePrefix("192.0.2.1/24")})
	rules := kerneltest.NewRules()
	a := NewPolicy(PolicyConfig{Rules: rules, Links: links, Logger: zap.NewNop(), Policy: policy.Config{Node: "here"}})
	h := &v3.HostEndpoint{ObjectMeta: metav1.ObjectMeta{Name: "h"}, Spec: v3.HostEndpointSpec{
		Node: "here", ExpectedIPs: []string{"192.0.2.1", "192.0.2.9"}}}
	a.set(model.NewSet(model.NewObject(model.ResourceKey(model.KindHostEndpoint, "h"), h)))
	protected := func(iface string) bool {
		actual, err := rules.ReadRules()
		if err != nil {
			t.Fatal(err)
		}
		return actual != nil && actual.Maps["host-in"][iface] != ruleset.Verdict{}
	}
	step := func(what string, soon, eth0, eth1 bool) {
		t.Helper()
		if pause := a.step(); (pause > 0 && pause <= time.Second) != soon {
			t.Errorf("%s: goes on after %v, soon must be %v", what, pause, soon)
		}
		if protected("eth0") != eth0 || protected("eth1") != eth1 {
			t.Errorf("%s: eth0 protected %v, eth1 %v", what, protected("eth0"), protected("eth1"))
		}
	}
	step("the interfaces cannot be listed", true, false, false)
	if actual, _ := rules.ReadRules(); actual != nil {
		t.Error("there are rules already")
	}
	step("they can", false, true, false)
	links.PutAddress(kernel.Address{Link: 3, Prefix: netip.MustParsePrefix("192.0.2.9/24")})
	links.failures = 1
	a.InterfacesChanged([]kernel.Event{{Type: kernel.EventAddress}})
	step("they cannot be listed again", true, true, false)
	step("now they can", false, true, true)
}

// revised is a state of the datastore.
type revised struct {
	model.Set
	revision int64
}

func (r revised) Revision() int64 { return r.revision }

// An object that was created and deleted between two reads of the datastore leaves only a new revision. A caller may
// wait for this revision.
func TestRevisionWithoutChanges(t *testing.T) {
	rules := kerneltest.NewRules()
	a := NewPolicy(PolicyConfig{Rules: rules, Logger: zap.NewNop(), Policy: policy.Config{Node: "here"}})
	set := model.NewSet()
	step := func(what string, revision int64) {
		t.Helper()
		reached := a.Reached()
		a.step()
		select {
		case <-reached:
		default:
			t.Errorf("%s: no notification", what)
		}
		if got := a.Revision(); got != revision {
			t.Errorf("%s: the kernel has revision %d, want %d", what, got, revision)
		}
	}
	a.unchanged(revised{set, 5})
	step("the first state", 5)
	if actual, err := rules.ReadRules(); err != nil || actual == nil {
		t.Fatalf("no rules are made: %v", err)
	}
	transactions := a.Status().Transactions
	a.unchanged(revised{set, 7})
	step("nothing has changed", 7)
	if now := a.Status().Transactions; now != transactions {
		t.Errorf("%d transactions, %d before", now, transactions)
	}
	h := &v3.HostEndpoint{ObjectMeta: metav1.ObjectMeta{Name: "h"}, Spec: v3.HostEndpointSpec{
		Node: "here", InterfaceName: "eth0"}}
	o := model.NewObject(model.ResourceKey(model.KindHostEndpoint, "h"), h)
	set[o.Key] = o
	a.set(revised{set, 8}, o.Key)
	a.unchanged(revised{set, 9})
	step("a change, then none", 9)
	if actual, err := rules.ReadRules(); err != nil || actual.Maps["host-in"]["eth0"] == (ruleset.Verdict{}) {
		t.Errorf("the change is lost: %v", err)
	}
}

// connections forgets slowly.
type connections struct {
	proceed chan struct{}
	got     chan []netip.Addr
}

func (c *connections) ForgetConnections(list []netip.Addr) (int, error) {
	c.got <- list
	<-c.proceed
	return len(list), nil
}

// The kernel's connections are read by one reader at a time, for any number of moved floating addresses.
func TestFloatingAddressesThatMoveOnAreForgottenInTurn(t *testing.T) {
	conns := &connections{make(chan struct{}), make(chan []netip.Addr, 100)}
	a := NewPolicy(PolicyConfig{Rules: kerneltest.NewRules(), Connections: conns, Logger: zap.NewNop(),
		Policy: policy.Config{Node: "here"}})
	felix := &model.FelixConfiguration{}
	on := v3.FloatingIPsEnabled
	felix.Spec.FloatingIPs = &on
	config := model.NewObject(model.ResourceKey(model.KindFelixConfiguration, "default"), felix)
	pool := model.NewObject(model.ResourceKey(model.KindIPPool, "floating"), &model.IPPool{
		Spec: model.IPPoolSpec{CIDR: "203.0.113.0/24", Disabled: true}})
	pool.Metadata().SetAnnotations(map[string]string{"manx.io/floating": "true"})
	k := model.Key{Kind: model.KindWorkloadEndpoint, Namespace: "default", Name: "w"}
	move := func(external ...string) {
		w := &model.WorkloadEndpoint{Spec: model.WorkloadEndpointSpec{Node: "here", InterfaceName: "cali1",
			IPNetworks: []string{"10.0.0.1/32"}}}
		for _, e := range external {
			w.Spec.IPNATs = append(w.Spec.IPNATs, model.IPNAT{InternalIP: "10.0.0.1", ExternalIP: e})
		}
		a.set(model.NewSet(config, pool, model.NewObject(k, w)))
		a.step()
	}
	for range 5 {
		move("203.0.113.1", "203.0.113.2")
		move("203.0.113.2")
		move("203.0.113.1")
	}
	move()
	if first := <-conns.got; len(first) != 1 || len(conns.got) > 0 {
		t.Fatalf("first %v are forgotten, and %d times more at once", first, len(conns.got))
	}
	conns.proceed <- struct{}{}
	a.loop.Wait() // the loop is triggered for another step
	a.step()
	if second := <-conns.got; len(second) != 2 {
		t.Errorf("then %v are forgotten, want both addresses once", second)
	}
	conns.proceed <- struct{}{}
	a.loop.Wait()
	if a.step(); len(conns.got) > 0 {
		t.Error("something is forgotten twice")
	}
}
