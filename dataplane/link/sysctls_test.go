package link

import (
	"fmt"
	"iter"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/manxnet/manx/dataplane/hoststate"
	"github.com/manxnet/manx/dataplane/kernel"
	"github.com/manxnet/manx/dataplane/kernel/kerneltest"
	"github.com/manxnet/manx/datastore/model"
)

// A host that forwards IPv6 ignores router advertisements, so only a node that uses IPv6 forwards it.
func TestIPv6IsForwardedWhereItIsUsed(t *testing.T) {
	workload := func(node string, addresses ...string) *model.WorkloadEndpoint {
		return &model.WorkloadEndpoint{Spec: model.WorkloadEndpointSpec{Node: node, InterfaceName: "cali1",
			IPNetworks: addresses}}
	}
	affinity := func(cidr string) model.Key {
		return model.Key{Kind: model.KindBlockAffinity, Name: "host/n1/" + cidr}
	}
	v4 := &model.NodeBGPSpec{IPv4Address: "10.0.0.1/24"}
	pods := model.Key{Kind: model.KindWorkloadEndpoint, Namespace: "ns", Name: "w"}
	pool := &model.IPPool{}
	pool.Spec.CIDR = "fd00:10::/48"
	for _, c := range []struct {
		rule string
		own  *model.NodeBGPSpec
		more map[model.Key]any
		want bool
	}{
		{"IPv4 alone", v4, nil, false},
		{"a default pool of IPv6 that nobody uses", v4, map[model.Key]any{
			model.ResourceKey(model.KindIPPool, "default-ipv6-ippool"): pool}, false},
		{"a workload of another node", v4, map[model.Key]any{pods: workload("n2", "fd00:10::1/128")}, false},
		{"a workload with IPv4", v4, map[model.Key]any{pods: workload("n1", "10.1.0.1/32")}, false},
		{"the Node has an address", &model.NodeBGPSpec{IPv6Address: "fd00::1/64"}, nil, true},
		{"a workload with both", v4, map[model.Key]any{pods: workload("n1", "10.1.0.1/32", "fd00:10::1/128")}, true},
		{"a block of this node", v4, map[model.Key]any{affinity("fd00:10::/122"): &model.BlockAffinity{}}, true},
	} {
		t.Run(c.rule, func(t *testing.T) {
			n := &model.Node{}
			n.Spec.BGP = c.own
			objects := reader{model.NewObject(model.ResourceKey(model.KindNode, "n1"), n)}
			for k, v := range c.more {
				objects = append(objects, object(k, v))
			}
			h := hoststate.New("n1", "")
			h.Take(hoststate.State{Reader: objects, All: true})
			links := map[string]kernel.Link{"cali1": {Name: "cali1"}}
			got := slices.ContainsFunc(desired(fromState(h), links, true, ""),
				func(s setting) bool { return s.Name == forwarding6 && s.Value == "1" })
			if got != c.want {
				t.Errorf("IPv6 is forwarded: %t, want %t", got, c.want)
			}
		})
	}
}

// Variables for reassembly are only set where they leave less room than required, and only where they exist.
func TestReassembly(t *testing.T) {
	for _, c := range []struct {
		rule          string
		want          Reassembly
		before, after string // memory of IPv4 and IPv6, time of IPv4 and IPv6; -: there is none
	}{
		{"defaults of the kernel", Reassembly{64 << 20, 2}, "4194304 4194304 30 60", "67108864 67108864 2 2"},
		{"an operator's own values", Reassembly{64 << 20, 2}, "99999999 67108865 1 2", "99999999 67108865 1 2"},
		{"connections are not tracked", Reassembly{64 << 20, 2}, "4194304 - 30 -", "67108864 - 2 -"},
		{"kept", Reassembly{}, "4194304 4194304 30 60", "4194304 4194304 30 60"},
		{"only the time", Reassembly{Time: 5}, "4194304 4194304 30 60", "4194304 4194304 5 5"},
	} {
		f := testKernel()
		names := slices.Concat(reassemblyMemory, reassemblyTime)
		for i, value := range strings.Fields(c.before) {
			if value != "-" {
				f.PutSysctl(names[i], value)
			}
		}
		now := time.Now()
		target := New(f, "", func() time.Time { return now })
		target.BoundReassembly(c.want)
		target.Configure(Config{NoForwarding: true})
		if _, failures, err := target.Flush(); failures > 0 || err != nil {
			t.Fatal(c.rule, failures, err)
		}
		for i, value := range strings.Fields(c.after) {
			if got, err := f.Sysctl(names[i]); got != value && (value != "-" || err == nil) {
				t.Errorf("%s: %s is %s, want %s", c.rule, names[i], got, value)
			}
		}
	}
	f, now := testKernel(), time.Now()
	target := New(f, "", func() time.Time { return now })
	target.BoundReassembly(Reassembly{64 << 20, 2})
	target.Configure(Config{NoForwarding: true})
	if _, _, err := target.Flush(); err != nil {
		t.Fatal(err)
	}
	f.PutSysctl(reassemblyTime[1], "60") // the module is loaded
	now = now.Add(checkEvery)
	if _, _, err := target.Flush(); err != nil {
		t.Fatal(err)
	}
	if got, _ := f.Sysctl(reassemblyTime[1]); got != "2" {
		t.Errorf("a variable that came later is %s", got)
	}
}

// readOnly is a kernel whose variables cannot be set, as in an unprivileged container.
type readOnly struct {
	*kerneltest.Kernel
	off bool
}

func (r *readOnly) SetSysctl(name, value string) error {
	if r.off {
		return r.Kernel.SetSysctl(name, value)
	}
	return fmt.Errorf("set sysctl %s to %s: %w", name, value, &kernel.ReadOnlyError{Dir: kernel.DefaultProcSysNet})
}

func TestReadOnlySysctlsHaveOneNotice(t *testing.T) {
	k := &readOnly{Kernel: testKernel()}
	now := time.Now()
	target := New(k, "", func() time.Time { return now })
	var ends []Endpoint
	for i := range 50 {
		name := fmt.Sprintf("cali%d", i)
		k.PutLink(kernel.Link{Index: 100 + i, Name: name})
		k.PutSysctl("net/ipv4/conf/"+name+"/rp_filter", "0")
		ends = append(ends, Endpoint{Interface: name, V4: true})
	}
	target.Configure(Config{Endpoints: ends})
	if _, failures, err := target.Flush(); err != nil || failures < 51 {
		t.Fatalf("%d failures, %v", failures, err)
	}
	notices := target.Notices()
	if len(notices) != 1 || !strings.Contains(notices[0].Text, "for instance net/ipv4/ip_forward=1: /proc/sys/net "+
		"is read-only") ||
		!strings.Contains(notices[0].Text, "--proc-sys-net or MANX_PROC_SYS_NET") {
		t.Fatalf("notices %+v", notices)
	}
	for _, s := range target.Statuses() {
		if s.Kind == Sysctl && !s.ReadOnly {
			t.Errorf("%s is %s and has a notice of its own", s.Key, s.Phase)
		}
	}
	k.off = true
	now = now.Add(time.Hour)
	target.Retry()
	if _, failures, err := target.Flush(); err != nil || failures > 0 {
		t.Fatal(failures, err)
	}
	if n := target.Notices(); len(n) > 0 {
		t.Errorf("when it can be written: %+v", n)
	}
}

// A cluster that expects encryption must learn that this node has none.
func TestMissingEncryptionIsANotice(t *testing.T) {
	now := time.Now()
	target := New(testKernel(), "", func() time.Time { return now })
	felix := func(v4, v6 *bool) *hoststate.Host {
		var f model.FelixConfiguration
		f.Spec.WireguardEnabled, f.Spec.WireguardEnabledV6 = v4, v6
		h := hoststate.New("n1", "")
		h.Take(hoststate.State{All: true, Reader: reader{
			model.NewObject(model.ResourceKey(model.KindNode, "n1"), &model.Node{}),
			model.NewObject(model.ResourceKey(model.KindFelixConfiguration, "default"), &f)}})
		return h
	}
	yes, no := true, false
	for _, c := range []struct {
		v4, v6 *bool
		want   int
	}{{nil, nil, 0}, {&no, &no, 0}, {&yes, nil, 1}, {&no, &yes, 1}, {&no, nil, 0}} {
		target.SetState(felix(c.v4, c.v6))
		notices := target.Notices()
		if len(notices) != c.want {
			t.Fatalf("%+v: notices %+v", c, notices)
		}
		for _, n := range notices {
			if n.Since != now || !strings.Contains(n.Text, "this node and others is not encrypted") {
				t.Errorf("%+v", n)
			}
		}
	}
}

// reader has objects in memory.
type reader []*model.Object

func object(k model.Key, v any) *model.Object { return &model.Object{Key: k, Value: v} }

func (r reader) Get(k model.Key) *model.Object {
	for _, o := range r {
		if o.Key == k {
			return o
		}
	}
	return nil
}

func (r reader) All(kind model.Kind) iter.Seq[*model.Object] {
	return func(yield func(*model.Object) bool) {
		for _, o := range r {
			if o.Key.Kind == kind && !yield(o) {
				return
			}
		}
	}
}
