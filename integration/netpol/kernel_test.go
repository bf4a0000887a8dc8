package main

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/manxnet/manx/integration/lab"
)

// TestProbesSeeWhatIsBlocked drops packets with handwritten rules: every protocol and port, in one direction only.
func TestProbesSeeWhatIsBlocked(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("network namespaces need root")
	}
	if _, err := exec.LookPath("nft"); err != nil {
		t.Skip("nft is not installed")
	}
	both(t, func(t *testing.T, tb *table) {
		l, err := lab.New(lab.Spec{Name: labName("p"), Nodes: []lab.NodeSpec{{Name: place(1)[0]}}, PlainRouters: true})
		must(t, err)
		t.Cleanup(func() { must(t, l.Close()) })
		host := l.Nodes[0]
		nft := func(text string) {
			t.Helper()
			_, err := host.Run("nft", text)
			must(t, err)
		}
		_, err = host.Run("sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward; echo 1 > "+
			"/proc/sys/net/ipv6/conf/all/forwarding")
		must(t, err)
		ps := &pods{prefix: l.Spec.Name, nodes: place(1), hosts: l.Nodes, ports: tb.PodPorts,
			have: map[string]*prober{}}
		t.Cleanup(ps.close)
		s := &tb.Cases[0].Steps[0]
		must(t, ps.sync(s.cluster().pods))

		n := len(s.Pods)
		open := strings.Repeat(string(allowed), n)
		expect := func(rule string, x expectation, from, to int) {
			t.Helper()
			for i := range s.Expected {
				e := &s.Expected[i]
				e.Combined, e.Ingress, e.Egress = nil, nil, nil
				for row := range n {
					text := []byte(open)
					text[row] = itself
					if from >= 0 && row == from && e.Protocol == x.Protocol && e.Port == x.Port {
						text[to] = blocked
					}
					e.Combined = append(e.Combined, string(text))
				}
				e.Ingress, e.Egress = e.Combined, e.Combined
			}
			got, err := (&site{pods: ps}).measure(t.Context(), s)
			must(t, err)
			for _, c := range s.wrongCells(got) {
				t.Errorf("%s: %s", rule, s.describe(c, got))
			}
		}
		expect("no rule", expectation{}, -1, -1)
		nft("add table inet byhand; add chain inet byhand f { type filter hook forward priority 0; }; " +
			"add rule inet byhand f ct state established accept")
		for i, e := range s.Expected {
			from, to := i%n, (i+4)%n
			rule := fmt.Sprintf("%s saddr %s %s daddr %s %s dport %d drop", ip(s.Pods[from].IP), s.Pods[from].IP,
				ip(s.Pods[to].IP), s.Pods[to].IP, strings.ToLower(e.Protocol), e.Port)
			nft("add rule inet byhand f " + rule)
			expect(rule, e, from, to)
			nft("flush chain inet byhand f; add rule inet byhand f ct state established accept")
		}
	})
}

func ip(a netip.Addr) string {
	if a.Is4() {
		return "ip"
	}
	return "ip6"
}

// sampleSize is the number of cases that have all tags.
const sampleSize = 20

// TestKernelGivesTheCells runs samples of the cases with manxd, so that every run of the tests has time for them. `make
// conformance` runs all cases.
func TestKernelGivesTheCells(t *testing.T) {
	t.Parallel()
	bin, missing := lab.Require("ip", "nft")
	if missing != nil {
		t.Skip(missing)
	}
	both(t, func(t *testing.T, tb *table) {
		t.Parallel() // it mostly waits for replies that do not come
		for _, c := range []struct {
			nodes placement
			cases int
		}{{place(1), sampleSize}, {place(3), 6}} {
			t.Run(fmt.Sprintf("nodes=%d", len(c.nodes)), func(t *testing.T) {
				t.Parallel()
				name := labName(strconv.Itoa(tb.family() + len(c.nodes)/2)) // four digits for four labs
				n, err := newSite(t.Context(), name, bin, c.nodes, tb.PodPorts)
				must(t, err)
				t.Cleanup(func() { must(t, n.close()) })
				n.restarts = 7
				for _, mode := range []string{modeSteps, modeSnapshot} {
					r, _ := newRunner(t, tb, c.nodes, n)
					must(t, r.run(t.Context(), mode, sample(tb.Cases, c.cases)))
					if r.tally.failed() || r.tally.cases != c.cases {
						t.Errorf("%s: %s", mode, &r.tally)
					}
				}
				oneWrongCell(t, tb, n)
			})
		}
	})
}

// oneWrongCell makes one cell of a copy of the table wrong, once for each kind of it.
func oneWrongCell(t *testing.T, tb *table, n *site) {
	c := tb.Cases[0]
	c.Steps = slices.Clone(c.Steps)
	expected := slices.Clone(c.Steps[0].Expected)
	c.Steps[0].Expected = expected
	right := expected[0].Combined
	for _, flip := range [][2]byte{{blocked, allowed}, {allowed, blocked}} {
		rows := slices.Clone(right)
		i := slices.IndexFunc(rows, func(row string) bool { return strings.IndexByte(row, flip[0]) >= 0 })
		rows[i] = strings.Replace(rows[i], string(flip[0]), string(flip[1]), 1)
		expected[0].Combined = rows
		r, out := newRunner(t, tb, n.pods.nodes, n)
		must(t, r.run(t.Context(), modeSteps, []tcase{c}))
		if r.tally.wrong != 1 || r.tally.wrongEval != 1 ||
			!strings.Contains(out.String(), "step 1, kernel: 1 of 432 cells") {
			t.Errorf("one cell is wrong: %s\n%s", &r.tally, out)
		}
	}
}
