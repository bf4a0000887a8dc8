package uplinks

import (
	"flag"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/manxnet/manx/integration/e2e/world"
	"github.com/manxnet/manx/integration/lab"
	"github.com/manxnet/manx/integration/namespace"
)

var write = flag.Bool("write-table", false, "measure every case, and write the table into docs/bgp.md")

// mode is a way in which routers and hosts are set up.
type mode struct {
	lab, name string
	bfd       string // the settings of BIRD
	restart   string // maxRestartTime of the hosts; empty: the default, two minutes
	outage    time.Duration
}

var modes = []mode{
	{"wo", "`bfd on`", "on", "", 2500 * time.Millisecond},
	{"wg", "`bfd graceful`", "graceful", "", 4 * time.Second},
	{"wr", "`bfd graceful`, `maxRestartTime: 5s`", "graceful", "5s", 8 * time.Second},
	{"wn", "`bfd on`, `graceful restart off`", "on; graceful restart off", "", 2500 * time.Millisecond},
}

// outcome is what a failure may cost.
type outcome struct {
	most   time.Duration // the longest pause of a flow; 0: no packet is lost
	repair bool          // it lasts until the repair
}

// moderate is far more than a BFD of 3 x 300 ms needs, on a busy machine.
const moderate = 2 * time.Second

// failure is a failure that hits the uplink of the second host to the first router, or one of the daemons.
type failure struct {
	name           string
	strike, repair func(*fabric, *testing.T)
	outcomes       []outcome // of each mode
	always         []bool    // of each mode: measured by every run of the tests
}

var (
	quick    = outcome{most: moderate}
	nothing  = outcome{}
	repaired = outcome{repair: true}
	timer    = outcome{most: 5*time.Second + moderate}
	absent   = outcome{most: time.Second + moderate} // RestartSec, and the start
)

var failures = []failure{
	{"the host's NIC or cable is down", func(f *fabric, t *testing.T) { f.ip(t, "down", f.port(f.hosts[1])) },
		func(f *fabric, t *testing.T) { f.ip(t, "up", f.port(f.hosts[1])) },
		[]outcome{quick, repaired, timer, quick}, []bool{true, false, false, false}},
	{"the cable drops all packets, the carrier stays",
		func(f *fabric, t *testing.T) { f.ip(t, "nomaster", f.port(f.hosts[1])) },
		func(f *fabric, t *testing.T) { f.ip(t, "master "+rack(0), f.port(f.hosts[1])) },
		[]outcome{quick, repaired, timer, quick}, []bool{false, true, false, false}},
	{"the switch is off", func(f *fabric, t *testing.T) { f.ip(t, "down", "p0", "p1", "p2", toSpine) },
		func(f *fabric, t *testing.T) { f.ip(t, "up", "p0", "p1", "p2", toSpine) },
		[]outcome{quick, quick, quick, quick}, []bool{false, false, false, false}},
	{"the switch drops all packets, the carriers stay", func(f *fabric, t *testing.T) {
		f.ip(t, "nomaster", "p0", "p1", "p2")
		f.nft(t, "add table inet silent; "+
			"add chain inet silent in { type filter hook prerouting priority -400; policy drop; }; "+
			"add chain inet silent out { type filter hook output priority -400; policy drop; }")
	}, func(f *fabric, t *testing.T) {
		f.nft(t, "delete table inet silent")
		f.ip(t, "master "+rack(0), "p0", "p1", "p2")
	}, []outcome{quick, quick, quick, quick}, []bool{true, false, false, false}},
	{"BIRD of the switch is killed, and started with `-R`", func(f *fabric, _ *testing.T) { f.tors[0].bird.Kill() },
		func(f *fabric, t *testing.T) { f.tors[0].run(t, "-R") },
		[]outcome{nothing, nothing, nothing, nothing}, []bool{true, false, false, false}},
	{"`manxd` is killed, and started a second later, as by systemd", func(f *fabric, t *testing.T) {
		f.hosts[1].Manxd().Kill()
		time.Sleep(time.Second) // RestartSec
		world.Must(t, f.hosts[1].StartManxd())
	}, func(*fabric, *testing.T) {}, []outcome{quick, nothing, nothing, absent}, []bool{true, true, false, false}},
}

// ip changes ports of the first router.
func (f *fabric) ip(t *testing.T, change string, ports ...string) {
	t.Helper()
	var lines []string
	for _, p := range ports {
		lines = append(lines, "link set "+p+" "+change)
	}
	world.Must(t, namespace.Batch(f.tors[0].namespace, lines...))
}

// nft changes the packet filter of the first router.
func (f *fabric) nft(t *testing.T, text string) {
	t.Helper()
	if out, err := namespace.Command(f.tors[0].namespace, "nft", text).CombinedOutput(); err != nil {
		t.Fatalf("nft: %v: %s", err, out)
	}
}

// TestLosses: no failure of an uplink, of a router or of a daemon costs more than the page says.
func TestLosses(t *testing.T) {
	if _, err := lab.Require("ip", "bird", "birdc", "nft"); err != nil {
		t.Skip(err)
	}
	t.Parallel() // it waits
	cells := make([]map[string]string, len(modes))
	var flows int
	t.Run("modes", func(t *testing.T) {
		for i, m := range modes {
			cells[i] = map[string]string{}
			t.Run(m.name, func(t *testing.T) {
				if !*write && !slices.ContainsFunc(failures, func(c failure) bool { return c.always[i] }) {
					t.Skip("make uplinks measures it")
				}
				t.Parallel()
				objects := documented(t)
				if m.restart != "" {
					objects = without(t, "sourceAddress: None", "sourceAddress: None, maxRestartTime: "+m.restart)
				}
				f := newFabric(t, m.lab, m.bfd, objects)
				x := f.startTraffic(t)
				f.usesBothUplinks(t)
				flows = len(x.flows)
				for _, c := range failures {
					if *write || c.always[i] {
						cells[i][c.name] = f.measure(t, x, m, c, c.outcomes[i])
					}
				}
			})
		}
	})
	if *write && !t.Failed() {
		writeTable(t, flows, cells)
	}
}

// aFlow is less than the packets of a flow in a second, and more than BGP and BFD send.
const aFlow = 40

// usesBothUplinks: the flows use both uplinks of each host, in both directions.
func (f *fabric) usesBothUplinks(t *testing.T) {
	t.Helper()
	for _, device := range []string{"eth0", "eth1"} {
		sent, received := rates(t, f.hosts, device)
		if slices.Min(sent) < aFlow || slices.Min(received) < aFlow {
			t.Errorf("%v packets/s leave by %s and %v come: want flows in both directions", sent, device, received)
		}
	}
}

// measure has a failure happen and repaired, and returns the cell of the table.
func (f *fabric) measure(t *testing.T, x *traffic, m mode, c failure, want outcome) string {
	t.Helper()
	from := time.Now()
	c.strike(f, t)
	time.Sleep(m.outage) // what it costs is counted
	until := time.Now()
	c.repair(f, t)
	f.settled(t)
	during, after := x.lost(from, until), x.lost(until, time.Now())
	t.Logf("%s: %s; then in %.1f s until all is settled %s", c.name, during, time.Since(until).Seconds(), after)
	all := loss{packets: during.packets + after.packets, longest: max(during.longest, after.longest)}
	switch {
	case want.repair && during.longest < moderate:
		t.Errorf("%s: a flow pauses for %s, and should until the repair", c.name, during.longest)
	case want.repair:
		return untilRepair
	case want.most == 0 && all.packets > 0:
		t.Errorf("%s: %d packets lost, want 0", c.name, all.packets)
	case all.longest > want.most:
		t.Errorf("%s: a flow pauses for %s, want %s at most", c.name, all.longest, want.most)
	}
	if all.packets == 0 && want.most == 0 {
		return "0"
	}
	return fmt.Sprintf("%d packets, %.1f s", all.packets, max(all.longest.Seconds(), 0.1))
}

const untilRepair = "until the repair"

const (
	tableHead = "<!-- losses with two uplinks -->\n"
	tableEnd  = "<!-- end of the losses -->\n"
)

func table(flows string, cell func(mode int, c failure) string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "Written by `make uplinks`: packets lost by %s flows of 50 packets a second each, and the longest "+
		"pause of one.\n\n| failure |", flows)
	for _, m := range modes {
		fmt.Fprintf(&b, " %s |", m.name)
	}
	b.WriteString("\n|---|" + strings.Repeat("---|", len(modes)) + "\n")
	for _, c := range failures {
		fmt.Fprintf(&b, "| %s |", c.name)
		for i := range modes {
			fmt.Fprintf(&b, " %s |", cell(i, c))
		}
		b.WriteString("\n")
	}
	return b.String()
}

func splitPage(t *testing.T) (before, between, after string) {
	t.Helper()
	b, err := os.ReadFile(page)
	world.Must(t, err)
	before, rest, ok := strings.Cut(string(b), tableHead)
	between, after, ok2 := strings.Cut(rest, tableEnd)
	if !ok || !ok2 {
		t.Fatalf("%s has no marks %q and %q", page, tableHead, tableEnd)
	}
	return before, between, after
}

func writeTable(t *testing.T, flows int, cells []map[string]string) {
	t.Helper()
	before, _, after := splitPage(t)
	text := table(fmt.Sprint(flows), func(mode int, c failure) string { return cells[mode][c.name] })
	world.Must(t, os.WriteFile(page, []byte(before+tableHead+text+tableEnd+after), 0o644))
}

// figures are the parts of the table that each machine has its own of.
var figures = regexp.MustCompile(`\d+ packets, \d+\.\d s|by \d+ flows`)

// TestTableInTheDocumentation: the page has the cases, modes and outcomes of this test.
func TestTableInTheDocumentation(t *testing.T) {
	want := table("0", func(mode int, c failure) string {
		switch o := c.outcomes[mode]; {
		case o.repair:
			return untilRepair
		case o.most == 0:
			return "0"
		}
		return "0 packets, 0.0 s"
	})
	_, have, _ := splitPage(t)
	if figures.ReplaceAllString(have, "N") != figures.ReplaceAllString(want, "N") {
		t.Errorf("the table of %s has not the cases of this test; `make uplinks` writes it anew:\n%s", page, have)
	}
}
