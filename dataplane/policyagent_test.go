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

// A host endpoint that is found by its address protects its interface soon even if that could not be found at first.
func TestInterfacesThatCannotBeListedAreListedLater(t *testing.T) {
	links := &unlisted{kernel.NewFake(), 2}
	links.PutLink(kernel.Link{Index: 2, Name: "eth0", Up: true, Running: true})
	links.PutAddress(kernel.Address{Link: 2, Prefix: netip.MustParsePrefix("192.0.2.1/24")})
	a := NewPolicy(PolicyConfig{Rules: kernel.NewFakeRules(), Links: links, Logger: zap.NewNop(), Policy: policy.Config{Node: "here"}})
	h := &v3.HostEndpoint{ObjectMeta: metav1.ObjectMeta{Name: "h"}, Spec: v3.HostEndpointSpec{Node: "here", ExpectedIPs: []string{"192.0.2.1"}}}
	protected := func() (is bool) {
		a.Look(func(_ *policy.Calculator, t *ruleset.Table) { is = t.Verdict("host-in", "eth0") != (ruleset.Verdict{}) })
		return is
	}
	a.LookAtInterfaces()
	if pause := a.step(); pause <= 0 || pause > time.Second {
		t.Errorf("the interfaces are listed again after %v", pause)
	}
	a.SetState(model.NewSet(model.NewObject(model.ResourceKey(model.KindHostEndpoint, "h"), h)))
	if pause := a.step(); pause <= 0 || pause > time.Second || protected() {
		t.Errorf("the interfaces are listed again after %v; protected already: %v", pause, protected())
	}
	if a.step(); !protected() {
		t.Error("the interface is not protected")
	}
}
