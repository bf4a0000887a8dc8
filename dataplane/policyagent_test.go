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
	"github.com/manxnet/manx/dataplane/policy"
	"github.com/manxnet/manx/dataplane/ruleset"
	"github.com/manxnet/manx/datastore/model"
)

// unlisted is a kernel whose interfaces cannot be listed a few times.
type unlisted struct {
	*kernel.Fake
	failures int
}

func (u *unlisted) ListLinks() ([]kernel.Link, error) {
	if u.failures > 0 {
		u.failures--
		return nil, errors.New("no buffer space available")
	}
	return u.Fake.ListLinks()
}

// Rules for host endpoints depend on the host's interfaces: nothing is done before they are known, not even at a restart, and when
// they cannot be listed later that is tried again soon.
func TestInterfacesAreKnownBeforeRulesAreMade(t *testing.T) {
	links := &unlisted{kernel.NewFake(), 1}
	links.PutLink(kernel.Link{Index: 2, Name: "eth0", Up: true, Running: true})
	links.PutLink(kernel.Link{Index: 3, Name: "eth1", Up: true, Running: true})
	links.PutAddress(kernel.Address{Link: 2, Prefix: netip.MustParsePrefix("192.0.2.1/24")})
	rules := kernel.NewFakeRules()
	a := NewPolicy(PolicyConfig{Rules: rules, Links: links, Logger: zap.NewNop(), Policy: policy.Config{Node: "here"}})
	h := &v3.HostEndpoint{ObjectMeta: metav1.ObjectMeta{Name: "h"}, Spec: v3.HostEndpointSpec{Node: "here", ExpectedIPs: []string{"192.0.2.1", "192.0.2.9"}}}
	a.SetState(model.NewSet(model.NewObject(model.ResourceKey(model.KindHostEndpoint, "h"), h)))
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
	a.LookAtInterfaces()
	step("they cannot be listed again", true, true, false)
	step("now they can", false, true, true)
}
