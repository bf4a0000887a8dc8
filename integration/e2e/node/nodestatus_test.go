package node

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"

	"github.com/manxnet/manx/integration/e2e/world"
)

// testNodeStatus requests the status of a node as an operator does, and checks that it follows events.
func (c *cluster) testNodeStatus(t *testing.T) {
	const object = "apiVersion: projectcalico.org/v3\nkind: CalicoNodeStatus\nmetadata: {name: %s}\n" +
		"spec: {node: n2, classes: [%s], updatePeriodSeconds: %d}\n"
	must(t, c.N1.Apply(fmt.Sprintf(object, "n2-all", "Agent, BGP, Routes", 1)))
	must(t, c.N1.Apply(fmt.Sprintf(object, "n2-once", "BGP", 0)))
	get := func(name string) v3.CalicoNodeStatus {
		t.Helper()
		out, err := c.N1.Manxctl("get", "caliconodestatus", name, "-o", "json")
		must(t, err)
		var s v3.CalicoNodeStatus
		must(t, json.Unmarshal([]byte(out), &s))
		return s
	}
	await := func(name string, established, down int) (s v3.CalicoNodeStatus) {
		t.Helper()
		eventually(t, func() error {
			s = get(name)
			if b := s.Status.BGP; b.NumberEstablishedV4 != established || b.NumberNotEstablishedV4 != down ||
				b.NumberEstablishedV6 != world.Sessions/2 {
				return fmt.Errorf("%s: want %d and %d sessions of IPv4: %+v", name, established, down, b)
			}
			return nil
		})
		return s
	}
	await("n2-once", world.Sessions/2, 0)
	s := await("n2-all", world.Sessions/2, 0).Status
	if a := s.Agent.BIRDV4; a.State != v3.BGPDaemonStateReady || a.RouterID != c.N2.IP4.String() ||
		a.LastBootTime == "" || a.LastReconfigurationTime == "" || a.Version == "" {
		t.Errorf("agent: %+v", s.Agent)
	}
	mesh, block, other := c.N1.IP4.String(), world.Blocks(t, c.N2, "-4")[0].String(), world.Blocks(t, c.N1,
		"-4")[0].String()
	found := map[string]bool{}
	for _, p := range s.BGP.PeersV4 {
		found[fmt.Sprint(p.PeerIP, " ", p.Type)] = true
	}
	for _, r := range s.Routes.RoutesV4 {
		found[fmt.Sprint(r.Destination, " ", r.Type, " ", r.Gateway, " ", r.Interface, " ", r.LearnedFrom.SourceType,
			" ", r.LearnedFrom.PeerIP)] = true
	}
	for _, want := range []string{mesh + " NodeMesh", c.ToR1.Address(c.N2).String() + " NodePeer",
		block + " FIB N/A blackhole Static ", other + " FIB " + mesh + " eth0 NodeMesh " + mesh} {
		if !found[want] {
			t.Errorf("%q is missing in %v", want, found)
		}
	}

	// A session goes down and comes up again: one object follows, the other keeps its first content.
	if out, err := c.ToR1.Birdc("disable", "n2"); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	await("n2-all", world.Sessions/2-1, 1)
	if n := get("n2-once").Status.BGP.NumberNotEstablishedV4; n != 0 {
		t.Errorf("n2-once has %d sessions down: it was reported again although its period is 0", n)
	}
	if out, err := c.ToR1.Birdc("enable", "n2"); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	await("n2-all", world.Sessions/2, 0)

	// The daemon restarts: its first report does not show all sessions as down.
	before := get("n2-once").Status.LastUpdated
	c.N2.Manxd().Kill()
	must(t, c.N2.StartManxd())
	eventually(t, func() error {
		if s := get("n2-once").Status; !s.LastUpdated.After(before.Time) ||
			s.BGP.NumberEstablishedV4 != world.Sessions/2 {
			return fmt.Errorf("n2-once after a restart: %+v", s)
		}
		return nil
	})
	must(t, c.N2.Ready(limit))

	for _, name := range []string{"n2-all", "n2-once"} {
		if out, err := c.N1.Manxctl("delete", "caliconodestatus", name); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	const path = "/calico/resources/v3/projectcalico.org/caliconodestatuses/"
	c.Put(t, path+"n9",
		`{"kind":"CalicoNodeStatus","apiVersion":"projectcalico.org/v3","metadata":{"name":"n9"},"spec":{"node":"n9","classes":["BGP"],"updatePeriodSeconds":1},"status":{"lastUpdated":null}}`)
	must(t, c.N1.Apply(fmt.Sprintf(object, "clock", "BGP", 1)))
	since := await("clock", world.Sessions/2, 0).Status.LastUpdated
	eventually(t, func() error { // two periods more
		if s := get("clock").Status; s.LastUpdated.Sub(since.Time) < 2*time.Second {
			return fmt.Errorf("not reported for two periods: %+v", s)
		}
		return nil
	})
	_, err := c.N1.Manxctl("delete", "caliconodestatus", "clock")
	must(t, err)
	if left := c.Raw(t, path); len(left) != 1 || len(left[path+"n9"]) > 300 {
		t.Errorf("written although deleted, or another node's: %v", left)
	}
	_, err = c.N1.Manxctl("delete", "caliconodestatus", "n9")
	must(t, err)
	c.Settled(t)
}
