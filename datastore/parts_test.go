package datastore

import (
	"fmt"
	"math/rand"
	"slices"
	"strings"
	"testing"

	"go.uber.org/zap"

	"github.com/manxnet/manx/datastore/model"
)

// In these tests pods of node n are own ones; the names of others' begin with x.

func ofPart(e Event) Event {
	e.Part = Own
	if strings.HasPrefix(e.Key.Name, "x") {
		e.Part = Others
	}
	if e.Key.Name == "" {
		return e
	}
	e.Key = podKey(e.Key.Name)
	if e.Object == nil {
		return e
	}
	o := podOf(e.Key, e.Revision)
	if e.Object.Err != nil {
		o.Value, o.Err = nil, e.Object.Err
	}
	e.Object = o
	return e
}

func podKey(name string) model.Key {
	node := "n"
	if strings.HasPrefix(name, "x") {
		node = "m"
	}
	return model.Key{Kind: model.KindWorkloadEndpoint, Namespace: "ns", Name: node + "-k8s-" + name + "-eth0"}
}

func podOf(k model.Key, revision int64) *model.Object {
	ids, _ := model.ParseWorkloadEndpointName(k.Name)
	e := &model.WorkloadEndpoint{Spec: model.WorkloadEndpointSpec{Node: ids.Node, Pod: ids.Pod,
		IPNetworks: []string{fmt.Sprintf("10.%d.%d.%d/32", revision>>16, revision>>8&255, revision&255)}}}
	e.Namespace = k.Namespace
	o := model.NewObject(k, e)
	o.Revision = revision
	return o
}

func partEvent(e Event, p Part) Event {
	e.Kinds, e.Part = []model.Kind{model.KindWorkloadEndpoint}, p
	return e
}

// pods lists the pods that readers see: "a=3 x=7".
func pods(s *Snapshot) string {
	var list []string
	for k := range model.AllWorkloads(s) {
		list = append(list, fmt.Sprintf("%s=%d", strings.Split(k.Name, "-")[2], s.Get(k).Revision))
	}
	slices.Sort(list)
	return strings.Join(list, " ")
}

// twoParts has read own pod a at revision 3, and x of another node at 4; the own ones are complete up to 10, the others
// up to 20.
func twoParts(t *testing.T) *Tables {
	t.Helper()
	tables := NewTables(zap.NewNop(), "n")
	tables.expect([]model.Kind{model.KindWorkloadEndpoint})
	tables.Apply(ofPart(update("a", 3)), partEvent(inSync(10), Own))
	if s := tables.Snapshot(); s.InSync() || s.Len() > 0 || tables.Status().Complete {
		t.Fatalf("before the others came: %q", pods(s))
	}
	tables.Apply(ofPart(update("x", 4)), partEvent(inSync(20), Others))
	if s := tables.Snapshot(); !s.InSync() || pods(s) != "a=3 x=4" || s.RevisionOf(model.KindWorkloadEndpoint) != 10 ||
		tables.Status().Restarts != 0 {
		t.Fatalf("in sync %v: %q, %+v", s.InSync(), pods(s), tables.Status())
	}
	return tables
}

// While one part is lost and read again, readers get the changes of the other one, and nothing half read.
func TestOnePartIsLostWhileTheOtherGoesOn(t *testing.T) {
	tables := twoParts(t)
	before := tables.Snapshot()
	step := func(want string, inSync bool, events ...Event) {
		t.Helper()
		tables.Apply(events...)
		if s := tables.Snapshot(); pods(s) != want || s.InSync() != inSync || tables.Kinds()[0].InSync != inSync {
			t.Errorf("in sync %v: %q, want %v: %q", s.InSync(), pods(s), inSync, want)
		}
	}
	step("a=3 x=4", false, partEvent(lostEvent("gone"), Others))
	if k := tables.Kinds()[0]; k.Lost == nil || k.Lost.Error() != "gone" {
		t.Errorf("the state of the kind is %+v", k)
	}
	step("a=3 x=4", false, ofPart(update("xnew", 25)), ofPart(invalid("xbad", 25)), ofPart(remove("x", 30)))
	step("a=21 b=22 x=4", false, ofPart(update("a", 21)), ofPart(update("b", 22)))
	step("b=22 x=4", false, ofPart(remove("a", 23)))
	tables.Wrote(podOf(podKey("b"), 24))
	step("b=24 x=4", false)
	if n := len(slices.Collect(tables.Snapshot().Quarantined())); n > 0 {
		t.Errorf("readers see %d invalid pods of the part that is lost", n)
	}
	step("b=24 x=4", false, partEvent(lostEvent("gone"), Own))
	step("b=24 xnew=25", false, partEvent(inSync(31), Others))
	step("b=24 xnew=25", true, partEvent(inSync(31), Own))
	if got := changes(tables.Snapshot(), before); strings.Count(got, ":") != 4 || tables.Status().Restarts != 2 {
		t.Errorf("readers are notified of %q; %+v", got, tables.Status())
	}
}

// An event of one part proves nothing about the other one.
func TestPartsConfirmOnlyTheirOwn(t *testing.T) {
	for _, c := range []struct{ name, ahead string }{{"a", "x"}, {"x", "a"}} {
		tables := twoParts(t)
		tables.Apply(ofPart(update(c.ahead, 100)))
		if s := tables.Snapshot(); s.Contains(podKey(c.name), 50) || !s.Contains(podKey(c.ahead), 100) {
			t.Errorf("%s is ahead: revision %d", c.ahead, s.RevisionOf(model.KindWorkloadEndpoint))
		}
		tables.Apply(ofPart(update(c.name, 60)))
		if s := tables.Snapshot(); !s.Contains(podKey(c.name), 60) || !s.Contains(podKey("gone"), 60) ||
			s.Contains(podKey("gone"), 61) {
			t.Errorf("%s follows: revision %d", c.name, s.RevisionOf(model.KindWorkloadEndpoint))
		}
	}

	tables := twoParts(t)
	tables.Apply(ofPart(update("x", 100)))
	tables.Wrote(podOf(podKey("b"), 50)) // its deletion cannot have come
	if got := pods(tables.Snapshot()); got != "a=3 b=50 x=100" {
		t.Errorf("readers see %q", got)
	}
	tables.Apply(partEvent(lostEvent("x"), Others), partEvent(inSync(110), Others))
	if got := pods(tables.Snapshot()); got != "a=3 b=50 x=100" {
		t.Errorf("when the others were read again, readers see %q", got)
	}
	tables.Apply(partEvent(lostEvent("x"), Own), partEvent(inSync(110), Own))
	if got := pods(tables.Snapshot()); got != "a=3 x=100" {
		t.Errorf("when it is gone, readers see %q", got)
	}
	answered := partEvent(Event{Type: EventAlive, Revision: 200}, Own)
	tables.Apply(answered)
	tables.Wrote(podOf(podKey("c"), 150)) // its deletion has come
	tables.Apply(ofPart(update("x", 210)))
	if s := tables.Snapshot(); pods(s) != "a=3 x=210" || s.RevisionOf(model.KindWorkloadEndpoint) != 200 {
		t.Errorf("after the answer at 200: %q at %d", pods(s), s.RevisionOf(model.KindWorkloadEndpoint))
	}
}

// The events of two parts interleave at random: nothing is lost, doubled, or put back.
func TestPermutationOfTwoParts(t *testing.T) {
	random := rand.New(rand.NewSource(5))
	stream := func(prefix string, p Part) []Event {
		part := func(events ...Event) []Event {
			random.Shuffle(len(events), func(i, j int) { events[i], events[j] = events[j], events[i] })
			for i := range events {
				events[i] = ofPart(events[i])
			}
			return events
		}
		a, b, c, d, e := prefix+"a", prefix+"b", prefix+"c", prefix+"d", prefix+"e"
		first := part(update(a, 11), invalid(a, 12), update(b, 13), remove(b, 14), update(c, 15), update(d, 16),
			remove(d, 17), update(d, 18))
		lostThen := part(remove(c, 30), update(e, 25), update(a, 26))
		last := part(remove(e, 32), update(e, 33), remove(c, 36))
		return slices.Concat([]Event{partEvent(inSync(10), p)}, first, []Event{partEvent(lostEvent("x"), p)}, lostThen,
			[]Event{partEvent(inSync(31), p)}, last)
	}
	for range 1000 {
		tables := NewTables(zap.NewNop(), "n")
		tables.expect([]model.Kind{model.KindWorkloadEndpoint})
		own, others := stream("", Own), stream("x", Others)
		var before *Snapshot
		for len(own)+len(others) > 0 {
			from := &own
			if random.Intn(len(own)+len(others)) >= len(own) {
				from = &others
			}
			n := 1 + random.Intn(min(3, len(*from)))
			tables.Apply((*from)[:n]...)
			*from = (*from)[n:]
			now := tables.Snapshot()
			for c := range now.Changes(before) { // what readers are notified of is what they see
				if c.New != now.Get(c.Key) {
					t.Fatalf("%+v", c)
				}
			}
			if before != nil && before.Len()+more(now, before) != now.Len() {
				t.Fatalf("%q after %q: %q", pods(now), pods(before), changes(now, before))
			}
			before = now
		}
		s := tables.Snapshot()
		if want := "a=26 d=18 e=33 xa=26 xd=18 xe=33"; !s.InSync() || pods(s) != want ||
			s.RevisionOf(model.KindWorkloadEndpoint) != 36 || len(slices.Collect(s.Quarantined())) > 0 {
			t.Fatalf("in sync %v: %q, want %q", s.InSync(), pods(s), want)
		}
	}
}

// more returns by how many objects the changes from one snapshot to a later one make their number larger.
func more(s, since *Snapshot) (n int) {
	for c := range s.Changes(since) {
		switch {
		case c.Old == nil:
			n++
		case c.New == nil:
			n--
		}
	}
	return n
}
