package sysctl

import (
	"errors"
	"io/fs"
	"testing"
	"time"

	"github.com/manxnet/manx/dataplane/kernel"
	"github.com/manxnet/manx/dataplane/kernel/kerneltest"
)

// An interface leaves, and its event is still on the way while an earlier one is handled. Its settings are no fault,
// and none is repaired.
func TestSettingsOfAnInterfaceThatLeft(t *testing.T) {
	k := testKernel()
	l := kernel.Link{Index: 7, Name: "cali1", Up: true}
	k.PutLink(l)
	target := New(k, Reassembly{}, time.Now)
	configure(target, true, "cali1")
	flush := func(when string) {
		t.Helper()
		_, failures, err := target.Flush()
		if repairs, _ := target.Repairs(); err != nil || failures > 0 || len(repairs) > 0 {
			t.Errorf("%s: %d failures, %v, repaired %+v", when, failures, err, repairs)
		}
	}
	flush("while it is there")
	k.DropLink(l.Index)
	l.Up = false
	target.Handle([]kernel.Event{{Type: kernel.EventLink, Link: l}})
	k.Log()
	flush("after an earlier event")
	if log := k.Log(); len(log) > 0 {
		t.Errorf("set: %q", log)
	}
	target.Handle([]kernel.Event{{Type: kernel.EventLinkGone, Link: l}})
	flush("after its event")
	l.Index = 8
	k.PutLink(l)
	target.Handle([]kernel.Event{{Type: kernel.EventLink, Link: l}})
	flush("when another one has its name")
	if v, err := k.Sysctl("net/ipv4/conf/cali1/proxy_arp"); v != "1" {
		t.Errorf("the other one has proxy_arp %q, %v", v, err)
	}
}

// A variable that is missing when it is set is a fault, unless its interface has left.
func TestMissingVariable(t *testing.T) {
	for _, exists := range []bool{false, true} {
		k := kerneltest.New()
		if exists {
			k.PutLink(kernel.Link{Index: 7, Name: "cali1", Up: true})
		}
		k.Fail("SetSysctl", 1, fs.ErrNotExist)
		target := New(k, Reassembly{}, time.Now)
		err := target.set(key{"cali1", "net/ipv4/conf/cali1/rare"}, "1")
		if errors.Is(err, fs.ErrNotExist) != exists {
			t.Errorf("interface exists: %t, error %v", exists, err)
		}
	}
}
