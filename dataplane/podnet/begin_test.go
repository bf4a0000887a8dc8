package podnet

import (
	"errors"
	"regexp"
	"strings"
	"testing"
)

// withoutAddresses returns p before its addresses are known.
func withoutAddresses(p Pod) Pod {
	p.IPv4, p.IPv6 = p.families()
	p.Addresses = nil
	return p
}

func (h *podHost) begin(p Pod, o Options) (b *Begun, err error) {
	err = h.do(func() error { b, err = Begin(withoutAddresses(p), o); return err })
	return b, err
}

// indexes matches what differs each time in the output of ip: the numbers of interfaces, which grow, and the hardware
// address of the workload's end.
var indexes = regexp.MustCompile(`(?m)^\d+:|@if\d+|dev cali1 lladdr \S+`)

func (h *podHost) unnumbered(p Pod) string { return indexes.ReplaceAllString(h.state(p), "") }

// An interface that is begun without addresses and finished equals the one that Attach makes.
func TestBegunInterfaceIsFinished(t *testing.T) {
	h := newPodHost(t)
	h.ip("-n", h.name, "addr", "add", "10.66.0.1/32", "dev", "lo")
	p := h.pod("10.65.0.1", "fd65::1")
	before := h.unnumbered(p)
	if _, err := h.attach(p, Options{}); err != nil {
		t.Fatal(err)
	}
	want := h.unnumbered(p)
	if err := h.detach(p); err != nil {
		t.Fatal(err)
	}
	b, err := h.begin(p, Options{})
	if err != nil {
		t.Fatal(err)
	}
	begun := h.unnumbered(p)
	if begun == before || strings.Contains(begun, "10.65.0.1") || strings.Contains(begun, "fd65::1") {
		t.Errorf("before the addresses are known:\n%s", begun)
	}
	if !b.Fits(p) {
		t.Error("the same attachment with addresses does not fit")
	}
	if p.MAC, err = b.Finish(p); err != nil {
		t.Fatal(err)
	}
	if have := h.unnumbered(p); have != want {
		t.Errorf("finished:\n%s\nwant\n%s", have, want)
	}
	if err := errors.Join(h.check(p), h.ping(p, "10.66.0.1"), b.Undo()); err != nil {
		t.Error(err)
	}
	if have := h.unnumbered(p); have != want {
		t.Errorf("Undo after Finish changed it to\n%s", have)
	}
}

// A begun interface is used only for the same attachment.
func TestBegunInterfaceFitsItsAttachmentOnly(t *testing.T) {
	h := newPodHost(t)
	p := h.pod("10.65.0.1")
	b, err := h.begin(p, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Undo()
	for name, change := range map[string]func(*Pod){
		"MTU":       func(p *Pod) { p.MTU = 1300 },
		"name":      func(p *Pod) { p.HostIf = "cali9" },
		"MAC":       func(p *Pod) { p.MAC = hostMAC },
		"namespace": func(p *Pod) { p.Netns = "/run/netns/other" },
		"routes":    func(p *Pod) { p.Routes = nil },
		"family":    func(p *Pod) { p.Addresses = h.pod("fd65::1").Addresses },
	} {
		other := p
		change(&other)
		if b.Fits(other) {
			t.Errorf("another %s fits", name)
		}
	}
	if routed := p; !b.Fits(routed) {
		t.Error("the attachment itself does not fit")
	}
}

// Nothing stays of an unfinished interface, if no step fails, or any step, before or after the addresses are known.
func TestBegunInterfaceLeavesNothing(t *testing.T) {
	h := newPodHost(t)
	p := h.pod("10.65.0.1", "fd65::1")
	before := h.state(p)
	for _, failing := range append(stepsOf(p)[1:], "none") {
		boom := errors.New("injected")
		b, err := h.begin(p, Options{BeforeStep: func(s string) error {
			if s == failing {
				return boom
			}
			return nil
		}})
		if err == nil && failing != "none" {
			_, err = b.Finish(p)
		}
		if (failing == "none") != (err == nil) || err != nil && !errors.Is(err, boom) {
			t.Errorf("%s: %v", failing, err)
		}
		if b != nil {
			if err := b.Undo(); err != nil {
				t.Error(err)
			}
		}
		if after := h.state(p); after != before {
			t.Errorf("%s: left behind\n%s\nwas\n%s", failing, after, before)
		}
	}
}

// An interface that exists is not touched before the addresses of its successor are known. The rest of a killed process
// is replaced by Attach.
func TestBeginTouchesNoInterface(t *testing.T) {
	h := newPodHost(t)
	old := h.pod("10.65.0.1")
	if _, err := h.attach(old, Options{}); err != nil {
		t.Fatal(err)
	}
	renewed := h.pod("10.65.0.2")
	renewed.HostIf = old.HostIf
	before := h.state(old)
	if _, err := h.begin(renewed, Options{}); err == nil {
		t.Error("begun in the place of another interface")
	}
	if after := h.state(old); after != before {
		t.Errorf("changed to\n%s\nfrom\n%s", after, before)
	}
	killed := h.pod("10.65.0.3")
	if _, err := h.begin(killed, Options{}); err != nil { // and nothing more
		t.Fatal(err)
	}
	if _, err := h.attach(killed, Options{}); err != nil {
		t.Error(err)
	}
	if err := h.check(killed); err != nil {
		t.Error(err)
	}
	dead := h.pod("10.65.0.4")
	before = h.state(dead)
	if _, err := h.begin(dead, Options{}); err != nil {
		t.Fatal(err)
	}
	dead.HostIf = "" // only the endpoint has it, and there is none
	if err := h.detach(dead); err != nil {
		t.Error(err)
	}
	if after := h.state(dead); after != before {
		t.Errorf("after DEL:\n%s\nwas\n%s", after, before)
	}
}
