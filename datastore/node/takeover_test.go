package node

import (
	"context"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/etcd/etcdtest"
	"github.com/manxnet/manx/datastore/model"
)

// Each line is one evaluation: its second, and the addresses of the Node and of eth0. The host registered 10.0.0.1.
func TestTakeoverIsJudged(t *testing.T) {
	const hold = 2 * time.Minute
	type evaluation struct {
		at         int // seconds
		node, eth0 string
		found      string // addresses; "(ended)" behind them if the Node has the host's own again
		again      int    // second of the next evaluation, 0: never
	}
	for _, x := range []struct {
		name        string
		hold        time.Duration
		evaluations []evaluation
	}{
		{"all is well", 0, []evaluation{{0, "10.0.0.1", "10.0.0.1", "", 0}}},
		{"no Node", 0, []evaluation{{0, "", "10.0.0.1", "", 0}, {60, "", "10.0.0.1", "", 0}}},
		{"another host writes its own", 0, []evaluation{{0, "10.0.0.9", "10.0.0.1", "", 10},
			{9, "10.0.0.9", "10.0.0.1", "", 10},
			{10, "10.0.0.9", "10.0.0.1", "10.0.0.9", 12}, {500, "10.0.0.9", "10.0.0.1", "10.0.0.9", 502}}},
		{"it writes another one meanwhile", 0, []evaluation{{0, "10.0.0.9", "10.0.0.1", "", 10},
			{5, "10.0.0.8", "10.0.0.1", "", 10},
			{10, "10.0.0.8", "10.0.0.1", "10.0.0.8", 12}}},
		{"and somebody sets it right", 0, []evaluation{{0, "10.0.0.9", "10.0.0.1", "", 10},
			{10, "10.0.0.9", "10.0.0.1", "10.0.0.9", 12}, {20, "10.0.0.1", "10.0.0.1", "", 0}}},
		{"a short mistake", hold, []evaluation{{0, "10.0.0.9", "10.0.0.1", "", 10}, {9, "10.0.0.1", "10.0.0.1", "", 0},
			{200, "10.0.0.9", "10.0.0.1", "", 210}}},
		{"two hosts write, one soon after the other", hold, []evaluation{{0, "10.0.0.9", "10.0.0.1", "", 10},
			{3, "10.0.0.1", "10.0.0.1", "", 0}, {60, "10.0.0.9", "10.0.0.1", "10.0.0.9", 62},
			{63, "10.0.0.1", "10.0.0.1", "10.0.0.9 (ended)", 183}, {120, "10.0.0.9", "10.0.0.1", "10.0.0.9", 122}}},
		{"two mistakes", hold, []evaluation{{0, "10.0.0.9", "10.0.0.1", "", 10}, {3, "10.0.0.1", "10.0.0.1", "", 0},
			{60, "10.0.0.8", "10.0.0.1", "", 70}}},
		{"two hosts write in turn", hold, []evaluation{{0, "10.0.0.9", "10.0.0.1", "", 10},
			{10, "10.0.0.9", "10.0.0.1", "10.0.0.9", 12}, {30, "10.0.0.1", "10.0.0.1", "10.0.0.9 (ended)", 150},
			{60, "10.0.0.9", "10.0.0.1", "10.0.0.9", 62}, {90, "10.0.0.1", "10.0.0.1", "10.0.0.9 (ended)", 210},
			{209, "10.0.0.1", "10.0.0.1", "10.0.0.9 (ended)", 210}, {210, "10.0.0.1", "10.0.0.1", "", 0}}},
		{"an operator changes the Node, then the interface", hold, []evaluation{{0, "10.0.0.2", "10.0.0.1", "", 10},
			{8, "10.0.0.2", "10.0.0.2", "", 0}, {60, "10.0.0.2", "10.0.0.2", "", 0}}},
		{"slowly", hold, []evaluation{{0, "10.0.0.2", "10.0.0.1", "", 10}, {10, "10.0.0.2", "10.0.0.1", "10.0.0.2", 12},
			{12, "10.0.0.2", "10.0.0.2", "", 0}}},
		{"the interface, then the Node", hold, []evaluation{{0, "10.0.0.1", "10.0.0.2", "", 0},
			{600, "10.0.0.1", "10.0.0.2", "", 0},
			{601, "10.0.0.2", "10.0.0.2", "", 0}}},
		{"twice", hold, []evaluation{{0, "10.0.0.2", "10.0.0.2", "", 0}, {5, "10.0.0.2", "10.0.0.3", "", 0},
			{100, "10.0.0.3", "10.0.0.3", "", 0}, {200, "10.0.0.3", "10.0.0.4", "", 0}}},
		{"the interface is down for a while", hold,
			[]evaluation{{0, "10.0.0.1", "", "", 0}, {100, "10.0.0.1", "", "", 0}}},
		{"back to an address that the host had before", hold, []evaluation{{0, "10.0.0.2", "10.0.0.2", "", 0},
			{1, "10.0.0.1", "10.0.0.2", "", 11}, {11, "10.0.0.1", "10.0.0.2", "10.0.0.1", 13}}},
		{"an address of a family that the host has not", 0, []evaluation{{0, "10.0.0.1 fd00::9", "10.0.0.1", "", 10},
			{10, "10.0.0.1 fd00::9", "10.0.0.1", "fd00::9", 12}, {11, "10.0.0.1", "10.0.0.1", "", 0}}},
		{"both families", 0, []evaluation{{0, "10.0.0.9 fd00::9", "10.0.0.1", "", 10},
			{10, "10.0.0.9 fd00::9", "10.0.0.1", "10.0.0.9 and fd00::9", 12}}},
	} {
		d := newTakeoverDetector("n1", nodeWith("10.0.0.1"), x.hold)
		start := time.Unix(10_000, 0)
		for _, l := range x.evaluations {
			var n *model.Node
			if l.node != "" {
				n = nodeWith(strings.Fields(l.node)...)
			}
			line := "eth0"
			if l.eth0 != "" {
				line += " " + l.eth0 + "/24"
			}
			found, due := d.evaluate(start.Add(time.Duration(l.at)*time.Second), n, interfaces("lo 127.0.0.1/8", line))
			got, again := list(found.Addresses), 0
			if !found.Ended.IsZero() {
				got += " (ended)"
			}
			if !due.IsZero() {
				again = int(due.Sub(start) / time.Second)
			}
			if got != l.found || again != l.again {
				t.Errorf("%s, second %d: found %q, next look at %d; want %q, %d", x.name, l.at, got, again, l.found,
					l.again)
			}
			if (found.String() == "") != (l.found == "") {
				t.Errorf("%s: the text is %q", x.name, found)
			}
		}
	}
}

func nodeWith(addresses ...string) *model.Node {
	n := &model.Node{}
	n.Spec.BGP = &model.NodeBGPSpec{}
	for _, a := range addresses {
		if strings.Contains(a, ":") {
			n.Spec.BGP.IPv6Address = a + "/64"
		} else {
			n.Spec.BGP.IPv4Address = a + "/24"
		}
	}
	return n
}

// On etcd: a second host registers under the name of the first one, which detects it. An operator's changes of Node and
// interface are no takeover.
func TestSecondHostOfOneName(t *testing.T) {
	store := etcdtest.Start(t).Store(t)
	c := named("n1")
	c.IP = "10.0.0.1"
	first := &changing{fixedHost: fixedHost{interfaces: interfaces("eth0 10.0.0.1/24")}}
	registered := mustRegister(t, store, c, first)
	tables := datastore.NewTables(zap.NewNop(), "n1")
	go func() { _ = tables.Run(t.Context(), store, model.KindNode) }()
	w := &TakeoverWatch{Config: c, Registered: registered, Host: first, Log: zap.NewNop()}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx, tables) }()
	await := func(name string, want ...string) {
		t.Helper()
		end := time.Now().Add(time.Minute)
		for ; time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
			text := w.Found().String()
			missing := (text == "") != (len(want) == 0)
			for _, s := range want {
				missing = missing || !strings.Contains(text, s)
			}
			if !missing {
				return
			}
		}
		t.Fatalf("%s: found %q, want %q", name, w.Found(), want)
	}
	second := named("n1")
	second.IP = "10.0.0.2"
	mustRegister(t, store, second, &fixedHost{interfaces: interfaces("eth0 10.0.0.2/24")})
	await("a second host", "the Node n1 says 10.0.0.2, which is on no interface of this host",
		"another host may use the same node name", "10.0.0.1")
	mustRegister(t, store, c, first)
	await("the first one again")
	second.IP = "10.0.0.3"
	mustRegister(t, store, second, &fixedHost{interfaces: interfaces("eth0 10.0.0.3/24")})
	await("an operator changes the Node", "10.0.0.3")
	first.set("eth0 10.0.0.3/24")
	await("and the interface")
	cancel()
	if err := <-done; err != context.Canceled { //nolint:errorlint // it is that very value
		t.Errorf("it ends with %v", err)
	}
	off := c
	off.DisableConflictCheck = true
	if err := (&TakeoverWatch{Config: off}).Run(t.Context(), tables); err != nil {
		t.Errorf("switched off: %v", err)
	}
}
