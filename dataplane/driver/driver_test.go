package driver

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/manxnet/manx/dataplane/hoststate"
	"github.com/manxnet/manx/dataplane/kernel"
	"github.com/manxnet/manx/dataplane/kernel/kerneltest"
	"github.com/manxnet/manx/dataplane/reconcile"
)

// mark is an object of an interface.
type mark struct{ On, Name string }

func (m mark) Link() string { return m.On }

// marks are one object for each wanted interface that exists.
type marks struct {
	*Driver[mark, int]
	wanted []string
	have   map[mark]int
	lists  int
	steps  []string
}

func newMarks(k *kerneltest.Kernel, read bool, now func() time.Time) *marks {
	m := &marks{have: map[mark]int{}}
	c := Config[mark, int]{Name: "marks", Part: "marks", ListLinks: k.ListLinks, Now: now,
		Prune: func(*hoststate.Host) bool { return true }}
	if read {
		c.Read = func(k mark) (int, bool, error) {
			v, ok := m.have[k]
			return v, ok, nil
		}
	}
	m.Driver = New(m, c)
	return m
}

func (m *marks) Desired(_ *hoststate.Host, links map[string]kernel.Link) map[mark]int {
	want := map[mark]int{}
	for _, name := range m.wanted {
		if l, exists := links[name]; exists {
			want[mark{name, "mtu"}] = l.MTU
		}
	}
	return want
}

func (m *marks) List() (map[mark]int, error) {
	m.lists++
	return maps.Clone(m.have), nil
}

func (m *marks) Apply(steps []reconcile.Step[mark, int]) []error {
	for _, s := range steps {
		m.steps = append(m.steps, fmt.Sprint(s.Action, " ", s.Key.On, " ", s.New))
		if delete(m.have, s.Key); s.Action != reconcile.Remove {
			m.have[s.Key] = s.New
		}
	}
	return nil
}

// flush passes a state that wants objects of these interfaces, or none if nil, and returns the steps.
func (m *marks) flush(t *testing.T, wanted ...string) string {
	t.Helper()
	m.wanted, m.steps = wanted, nil
	h := hoststate.New("n1", nil)
	h.Concerned = true
	m.SetState(h)
	if _, failures, err := m.Flush(); failures > 0 || err != nil {
		t.Fatal(failures, err)
	}
	slices.Sort(m.steps)
	return strings.Join(m.steps, ", ")
}

// The objects follow their interfaces: those of one that left went with it, and those of another one with its name are
// read again.
func TestObjectsFollowTheirInterfaces(t *testing.T) {
	for _, read := range []bool{false, true} {
		k, now := kerneltest.New(), time.Unix(1000, 0)
		m := newMarks(k, read, func() time.Time { return now })
		step := func(when, want string, l kernel.Link, typ kernel.EventType) {
			t.Helper()
			m.Handle([]kernel.Event{{Type: typ, Link: l}})
			if got := m.flush(t, "a", "b", "c"); got != want {
				t.Errorf("read %t: %s: %q, want %q", read, when, got, want)
			}
			if list, _ := m.Repairs(); len(list) > 0 {
				t.Errorf("read %t: %s: repaired %v", read, when, list)
			}
		}
		if got := m.flush(t, "a", "b", "c"); got != "" {
			t.Errorf("without an interface: %s", got)
		}
		a := kernel.Link{Index: 7, Name: "a", MTU: 1500}
		k.PutLink(a)
		step("it comes", "add a 1500", a, kernel.EventLink)
		a.MTU = 1400
		k.PutLink(a)
		step("it changes", "change a 1400", a, kernel.EventLink)
		a.Running = true
		k.PutLink(a)
		step("its carrier", "", a, kernel.EventLink)
		b := kernel.Link{Index: 7, Name: "b", MTU: 1400, Running: true}
		k.DropLink(7)
		k.PutLink(b)
		delete(m.have, mark{"a", "mtu"})
		step("it has another name", "add b 1400", b, kernel.EventLink)
		delete(m.have, mark{"b", "mtu"})
		other := kernel.Link{Index: 8, Name: "b", MTU: 1400, Running: true}
		k.DropLink(7)
		k.PutLink(other)
		step("it leaves", "", b, kernel.EventLinkGone)
		step("another one has its name", "add b 1400", other, kernel.EventLink)
		step("the end of the former one again", "", b, kernel.EventLinkGone)
		if m.LinkName(8) != "b" || m.LinkName(7) != "" {
			t.Errorf("names are %q and %q", m.LinkName(8), m.LinkName(7))
		}
		k.DropLink(8)
		delete(m.have, mark{"b", "mtu"})
		step("the other one leaves", "", other, kernel.EventLinkGone)
	}
}

// Without an object nothing is read again for long; a change of an interface has all read only without Read.
func TestWhatIsRead(t *testing.T) {
	k, now := kerneltest.New(), time.Unix(1000, 0)
	k.PutLink(kernel.Link{Index: 7, Name: "a", MTU: 1500})
	m := newMarks(k, true, func() time.Time { return now })
	m.flush(t)
	if next := m.Next(); next < time.Minute {
		t.Errorf("without an object the next comparison is in %s", next)
	}
	m.flush(t, "a")
	lists := m.lists
	l := kernel.Link{Index: 7, Name: "a", MTU: 1300}
	k.PutLink(l)
	m.Handle([]kernel.Event{{Type: kernel.EventLink, Link: l}})
	if m.flush(t, "a"); m.lists != lists {
		t.Error("one interface has all objects read")
	}
	m.Resync()
	if m.flush(t, "a"); m.lists != lists+1 {
		t.Errorf("%d comparisons after a resync", m.lists-lists)
	}
}
