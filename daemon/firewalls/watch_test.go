package firewalls

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/zap"

	"github.com/manxnet/manx/dataplane/hostfirewall"
	"github.com/manxnet/manx/dataplane/kernel/nftables"
)

// kernel has one table of another program.
type kernel struct {
	mu         sync.Mutex
	generation uint32
	reads      int
	cost       time.Duration // of a read
	drop       bool
	err        error
}

func (k *kernel) Generation() (uint32, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.generation, k.err
}

func (k *kernel) ReadOthers(func(uint32) string) ([]*hostfirewall.Table, error) {
	k.mu.Lock()
	k.reads++
	cost := k.cost
	k.mu.Unlock()
	time.Sleep(cost) // of synctest's clock
	k.mu.Lock()
	defer k.mu.Unlock()
	return []*hostfirewall.Table{{Family: "ip", Name: "filter", Chains: map[string]*hostfirewall.Chain{
		"FORWARD": {Name: "FORWARD", Base: &hostfirewall.Base{Hook: "forward", Drop: k.drop}}}}}, k.err
}

func (k *kernel) set(drop bool) {
	k.change(func() { k.generation, k.drop = k.generation+1, drop })
}

// change changes fields while a Watch reads them.
func (k *kernel) change(f func()) {
	k.mu.Lock()
	defer k.mu.Unlock()
	f()
}

// count returns the number of reads.
func (k *kernel) count() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.reads
}

func watch(t *testing.T, k *kernel, legacy ...string) (*Watch, func(time.Duration)) {
	w := New(Config{Kernel: k, Legacy: legacy, Log: zap.NewNop(), Packets: func() hostfirewall.Host {
		return hostfirewall.Host{Uplinks: []string{"eth0"},
			Pools: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")},
			Workloads: []hostfirewall.Workload{{Interface: "cali1",
				Addresses: []netip.Addr{netip.MustParseAddr("10.244.0.1")}}}}
	}})
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	go w.Run(ctx) //nolint:errcheck // ends with ctx
	synctest.Wait()
	return w, func(d time.Duration) {
		time.Sleep(d) // of synctest's clock
		synctest.Wait()
	}
}

func TestNoticeFollowsTheRules(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &kernel{generation: 1}
		w, pass := watch(t, k)
		expect := func(what string, reads int, subjects ...string) {
			t.Helper()
			var have []string
			for _, n := range w.Notices() {
				have = append(have, n.Subject)
			}
			if strings.Join(have, ";") != strings.Join(subjects, ";") || k.count() != reads {
				t.Errorf("%s: notices about %q, %d reads; want %q, %d", what, have, k.count(), subjects, reads)
			}
			if n := testutil.ToFloat64(w); int(n) != len(subjects) {
				t.Errorf("%s: the metric is %v", what, n)
			}
		}
		expect("no drop", 1)
		pass(time.Hour)
		expect("nothing changes", 1)
		k.set(true)
		pass(2 * time.Second)
		expect("a policy of drop", 2, "table ip filter, chain FORWARD")
		since := w.Notices()[0].Since
		k.set(true)
		pass(2 * time.Second)
		expect("another change", 3, "table ip filter, chain FORWARD")
		if now := w.Notices()[0].Since; !now.Equal(since) {
			t.Errorf("the notice began at %v, and again at %v", since, now)
		}
		k.set(false)
		if _, err := w.Tables(); err != nil {
			t.Error(err)
		}
		pass(2 * time.Second)
		expect("the remedy, which another reader has read first", 4)
	})
}

// Rules that take long to read are read seldom, however often they change.
func TestReadingTakesATwentiethOfTheTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &kernel{generation: 1, cost: 100 * time.Millisecond}
		_, pass := watch(t, k)
		for range 1000 {
			k.set(true)
			pass(time.Second)
		}
		if k.count() < 400 || k.count() > 500 {
			t.Errorf("%d reads of 100 ms in 1000 s", k.count())
		}
	})
}

// Explanations get the rules as they are, at most a second old; callers cannot make the daemon read more often.
func TestTablesAreFresh(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &kernel{generation: 1, cost: 10 * time.Second} // the loop does not read again in the time of this test
		w, pass := watch(t, k)
		pass(10 * time.Second)
		k.change(func() { k.cost = 0 })
		for range 100 {
			k.set(true)
			if _, err := w.Tables(); err != nil {
				t.Fatal(err)
			}
		}
		if k.count() != 1 {
			t.Errorf("%d reads in a moment", k.count())
		}
		pass(2 * time.Second)
		tables, err := w.Tables()
		if err != nil || k.count() != 2 || !tables[0].Chains["FORWARD"].Base.Drop {
			t.Errorf("%v, %d reads: the rules are outdated", err, k.count())
		}
	})
}

func TestNoticeOfRulesThatCannotBeRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &kernel{generation: 1, drop: true}
		w, pass := watch(t, k)
		k.change(func() { k.err = errors.New("permission denied") })
		pass(2 * time.Second)
		list := w.Notices()
		if len(list) != 2 || !strings.Contains(list[1].Text, "permission denied") {
			t.Errorf("%+v, want the last finding and the reason", list)
		}
		k.change(func() { k.err = nil })
		pass(2 * time.Second)
		if list := w.Notices(); len(list) != 1 {
			t.Errorf("%+v, want the finding alone", list)
		}
		k.change(func() { k.err = fmt.Errorf("%w: no nfnetlink", nftables.ErrMissing) })
		pass(2 * time.Second)
		if list := w.Notices(); len(list) != 1 {
			t.Errorf("%+v: a kernel without nf_tables has no rules", list)
		}
	})
}

// The tables of the older backend of iptables are no part of nftables.
func TestNoticeOfLegacyTables(t *testing.T) {
	dir := t.TempDir()
	write := func(name, content string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	four, six := write("4", "nat\nfilter\n"), write("6", "nat\n")
	synctest.Test(t, func(t *testing.T) {
		w, pass := watch(t, &kernel{generation: 1}, four, six, filepath.Join(dir, "missing"))
		list := w.Notices()
		if len(list) != 1 || list[0].Subject != "legacy table ip filter" ||
			!strings.Contains(list[0].Text, "check with iptables-legacy -S") {
			t.Errorf("%+v", list)
		}
		write("4", "nat\n")
		write("6", "filter\n")
		pass(2 * time.Minute)
		if list := w.Notices(); len(list) != 1 || !strings.Contains(list[0].Text, "ip6tables-legacy -S") {
			t.Errorf("%+v", list)
		}
	})
}
