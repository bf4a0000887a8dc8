package dataplane

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/manxnet/manx/dataplane/kernel/kerneltest"
	"github.com/manxnet/manx/dataplane/kernel/nflog"
	"github.com/manxnet/manx/dataplane/kernel/nftables"
	"github.com/manxnet/manx/dataplane/nft"
	"github.com/manxnet/manx/dataplane/policy"
	"github.com/manxnet/manx/dataplane/ruleset"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/integration/namespace"
)

// loggedWorkload is a workload, and a policy that logs and denies its incoming packets.
func loggedWorkload() model.Set {
	workload := model.NewObject(model.Key{Kind: model.KindWorkloadEndpoint, Namespace: "default", Name: "w"},
		&model.WorkloadEndpoint{Spec: model.WorkloadEndpointSpec{Node: "here", InterfaceName: "cali1",
			IPNetworks: []string{"10.0.0.1/32"}}})
	p := &v3.GlobalNetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: v3.GlobalNetworkPolicySpec{
		Selector: "all()",
		Types:    []v3.PolicyType{v3.PolicyTypeIngress}, Ingress: []v3.Rule{{Action: v3.Log}, {Action: v3.Deny}}}}
	limit := "10/minute"
	felix := &model.FelixConfiguration{}
	felix.Spec.LogActionRateLimit = &limit
	return model.NewSet(workload, model.NewObject(model.ResourceKey(model.KindGlobalNetworkPolicy, "p"), p),
		model.NewObject(model.ResourceKey(model.KindFelixConfiguration, "default"), felix))
}

// A kernel that lacks one log, both logs, or limits: packets are not dropped because their rules cannot log.
func TestRulesThatCannotLogChangeNoVerdict(t *testing.T) {
	set := loggedWorkload()
	kernelLog := func(l ruleset.Log) bool { return l.Kernel != "" }
	nflog := func(l ruleset.Log) bool { return l.Group != 0 }
	for _, c := range []struct {
		name    string
		lacks   func(ruleset.Log) bool
		flowLog uint16
		want    ruleset.Log // of the Log rule
		missing []string
	}{
		{"nothing is missing", func(ruleset.Log) bool { return false }, 7,
			ruleset.Log{Kernel: "calico-packet: ", Group: 7,
				Prefix: "log GlobalNetworkPolicy/p ingress 1", Rate: 10, Burst: 5, Per: ruleset.PerMinute}, nil},
		{"no log of the kernel", kernelLog, 7, ruleset.Log{Group: 7, Prefix: "log GlobalNetworkPolicy/p ingress 1",
			Rate: 10, Burst: 5, Per: ruleset.PerMinute},
			[]string{"the kernel's log"}},
		{"no log of the kernel, no flow log", kernelLog, 0, ruleset.Log{}, []string{"the kernel's log"}},
		{"no NFLOG", nflog, 7, ruleset.Log{Kernel: "calico-packet: ", Rate: 10, Burst: 5, Per: ruleset.PerMinute},
			[]string{"the flow log"}},
		{"no NFLOG, no flow log", nflog, 0, ruleset.Log{Kernel: "calico-packet: ", Rate: 10, Burst: 5,
			Per: ruleset.PerMinute}, nil},
		{"no logs", ruleset.Log.Enabled, 7, ruleset.Log{}, []string{"the kernel's log", "the flow log"}},
		{"no limits", func(l ruleset.Log) bool { return l.Rate > 0 }, 7, ruleset.Log{},
			[]string{"the kernel's log", "the flow log"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			rules := kerneltest.NewRules()
			rules.Refuse(func(changes ruleset.Changes) error {
				for _, ch := range changes.Chains {
					if ch.New != nil && slices.ContainsFunc(ch.New.Rules, func(r ruleset.Rule) bool {
						return c.lacks(r.Log)
					}) {
						return unix.ENOENT
					}
				}
				return nil
			})
			a := NewPolicy(PolicyConfig{Rules: rules, Logger: zap.NewNop(),
				Policy: policy.Config{Node: "here", FlowLog: c.flowLog}})
			a.set(set)
			a.step()
			st := a.Status()
			if !st.InSync || len(st.Refused) > 0 || rules.Commits() != 1 {
				t.Errorf("in sync %v after %d transactions, refused %v", st.InSync, rules.Commits(), st.Refused)
			}
			if !slices.EqualFunc(st.Missing, c.missing, strings.Contains) {
				t.Errorf("missing are %q, want %q", st.Missing, c.missing)
			}
			a.Inspect(func(_ *policy.Calculator, table *ruleset.Table) {
				list := table.Chain("pi/GlobalNetworkPolicy/p").Rules
				if len(list) != 2 || list[0].Log != c.want || list[0].Verdict.Action != ruleset.Continue ||
					list[1].Verdict.Action != ruleset.Drop {
					t.Errorf("the rules are %v", list)
				}
			})
		})
	}
}

// A kernel without counters that rules share has all rules without them.
func TestNoNamedCounters(t *testing.T) {
	rules := kerneltest.NewRules()
	rules.Refuse(func(changes ruleset.Changes) error {
		if len(changes.Counters()) > 0 {
			return unix.EOPNOTSUPP
		}
		return nil
	})
	set := model.NewSet()
	a := NewPolicy(PolicyConfig{Rules: rules, Logger: zap.NewNop(), Policy: policy.Config{Node: "here"}})
	a.set(set)
	a.step()
	if st := a.Status(); !st.InSync || len(st.Refused) > 0 || len(st.Missing) != 1 ||
		!strings.HasPrefix(st.Missing[0], "manx_dropped_packets_total counts nothing") {
		t.Errorf("in sync %t, refused %v, missing %q", st.InSync, st.Refused, st.Missing)
	}
}

// A real kernel, without the modules at first: unsupported logs are left out and drop nothing more; supported ones log
// packets.
func TestVMLogsThatTheKernelLacks(t *testing.T) {
	if os.Getenv("MANX_VM") == "" {
		t.Skip("it decides about the modules of the whole machine: make test-vm runs it in one of its own")
	}
	rules, err := nftables.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = errors.Join(rules.DeleteRules(), rules.Close()) })
	set, config := loggedWorkload(), policy.Config{Node: "here"}
	delete(set, model.ResourceKey(model.KindGlobalNetworkPolicy, "p"))
	// The kernel loads all other modules on demand, but not these.
	if result, _ := nft.New(rules, time.Now).Flush(policy.Build(config, set, nil).Table()); result.Err != nil ||
		result.Refused > 0 {
		t.Fatalf("without logs: %+v", result)
	}
	const helper = "/proc/sys/kernel/modprobe"
	modprobe, err := os.ReadFile(helper)
	if errors.Is(err, fs.ErrNotExist) {
		t.Skip("this kernel has no modules")
	} else if err != nil {
		t.Fatal(err)
	}
	write := func(text string) {
		if err := os.WriteFile(helper, []byte(text), 0); err != nil {
			t.Fatal(err)
		}
	}
	write("/nowhere")
	t.Cleanup(func() { write(string(modprobe)) })

	config.FlowLog = 86
	for _, c := range []struct {
		load    string
		missing []string
	}{
		{"", []string{"the kernel's log until manxd is started with a kernel that can: .*lacks the expression log",
			"the flow log records nothing .*lacks the expression log"}},
		{"nft_log", []string{"the kernel's log .*no such file", "the flow log .*no such file"}},
		{"nfnetlink_log", []string{"the kernel's log .*no such file"}},
		{"nf_log_syslog", nil},
	} {
		if c.load != "" {
			if out, err := exec.Command("modprobe", c.load).CombinedOutput(); err != nil {
				t.Fatalf("modprobe %s: %v: %s", c.load, err, out)
			}
		}
		a := NewPolicy(PolicyConfig{Rules: rules, Logger: zap.NewNop(), Policy: config})
		a.set(loggedWorkload())
		a.step()
		if st := a.Status(); !st.InSync || len(st.Refused) > 0 {
			t.Errorf("with %s: in sync %v: %s; refused %v", c.load, st.InSync, st.LastError, st.Refused)
		}
		if got := a.Status().Missing; !slices.EqualFunc(got, c.missing, func(got, want string) bool {
			return regexp.MustCompile(want).MatchString(got)
		}) {
			t.Errorf("with %s: missing are %q, want %q", c.load, got, c.missing)
		}
	}
	t.Run("packets", func(t *testing.T) { logPacket(t, rules) })
}

// A flood of packets that rules log does not keep the reader of NFLOG busy: it reads its share, and the kernel drops
// the rest.
func TestFloodOfLoggedPackets(t *testing.T) {
	h := bareHost(t)
	rules, err := nftables.Open(namespace.Path(h.name))
	if err != nil {
		t.Fatal(err)
	}
	defer rules.Close()
	chain := &ruleset.Chain{Name: "test", Base: &ruleset.Base{Hook: ruleset.Output, Type: ruleset.Filter},
		Rules: []ruleset.Rule{{Log: ruleset.Log{Group: 86, Prefix: "all"}}}}
	if err := rules.CommitRules(ruleset.Changes{
		Chains: []ruleset.ChainChange{{Name: chain.Name, New: chain}}}); err != nil {
		t.Fatal(err)
	}
	var conn net.Conn
	inside := namespace.Inside(h.name, func() { conn, err = net.Dial("udp", "127.0.0.1:9") })
	if err := errors.Join(inside, err); err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ctx, cancel := context.WithCancel(t.Context())
	var heard atomic.Int64
	var first atomic.Pointer[time.Time]
	var reader sync.WaitGroup
	reader.Go(func() {
		if err := nflog.Read(ctx, rules.Namespace(), 86, func(nflog.Packet) {
			if now := time.Now(); heard.Add(1) == 1 {
				first.Store(&now)
			}
		}); err != nil {
			t.Error(err)
		}
	})
	sent := 0
	waitFor(t, "the first packets", func() bool {
		_, _ = conn.Write([]byte("x"))
		sent++
		return heard.Load() > 0
	})
	for began := time.Now(); time.Since(began) < time.Second; sent++ {
		_, _ = conn.Write([]byte("x")) // the answer that nobody listens is an error of the next one
	}
	cancel()
	reader.Wait()
	most := nflog.MaxBurst + int64(nflog.MaxRate*time.Since(*first.Load()).Seconds()) + 1
	if got := heard.Load(); got > most || int64(sent) < 2*most {
		t.Errorf("%d of %d packets were read, want %d at most of twice as many", got, sent, most)
	}
}

// logPacket sends a packet that a rule logs, and waits until both logs have it.
func logPacket(t *testing.T, rules *nftables.Conn) {
	rule := ruleset.Rule{
		Matches: []ruleset.Match{{Field: ruleset.Protocol, Low: unix.IPPROTO_UDP},
			{Field: ruleset.DestinationPort, Low: 9}},
		Log: ruleset.Log{Kernel: "both-logs: ", Group: 86, Prefix: "log both", Rate: 10, Burst: 10},
	}
	chain := &ruleset.Chain{Name: "test", Base: &ruleset.Base{Hook: ruleset.Output, Type: ruleset.Filter},
		Rules: []ruleset.Rule{rule}}
	if err := rules.CommitRules(ruleset.Changes{
		Chains: []ruleset.ChainChange{{Name: chain.Name, New: chain}}}); err != nil {
		t.Fatal(err)
	}
	heard := make(chan nflog.Packet, 100)
	var reader sync.WaitGroup
	defer reader.Wait()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	reader.Go(func() {
		if err := nflog.Read(ctx, rules.Namespace(), 86, func(p nflog.Packet) { heard <- p }); err != nil {
			t.Error(err)
		}
	})
	conn, err := net.Dial("udp", "127.0.0.1:9")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	waitFor(t, "NFLOG to report a packet", func() bool {
		_, _ = conn.Write([]byte("x"))
		select {
		case p := <-heard:
			return p.Prefix == "log both" && p.DestinationPort == 9
		default:
			return false
		}
	})
	if out, err := exec.Command("dmesg").Output(); err != nil ||
		!regexp.MustCompile(`both-logs: .*DST=127\.0\.0\.1 .*PROTO=UDP .*DPT=9 `).Match(out) {
		t.Errorf("the kernel's log lacks it: %v\n%.3000s", err, out)
	}
}
