package ruleset

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"runtime"
	"testing"
)

// policiesTable has an endpoint with n policies of five rules each, none of which matches but the last.
func policiesTable(n int) *Table {
	t := NewTable()
	t.AddMap(Map{Name: "to-workload"})
	t.SetVerdict("to-workload", "cali1", Verdict{Action: Goto, Chain: "in/1"})
	t.SetChain(&Chain{Name: "forward", Base: &Base{Hook: Forward, Type: Filter}, Rules: []Rule{jump("dispatch")}})
	t.SetChain(chain("dispatch", do(Verdict{Action: Lookup, Map: "to-workload", Out: true}), act(Drop)))
	list := chain("in/1", act(Accept, Match{Field: ConnState, Mask: ConnEstablished | ConnRelated}))
	for i := range n {
		set := fmt.Sprint("n4/", i)
		t.AddSet(Set{Name: set, Type: Addresses4, Interval: true})
		for j := range 100 {
			t.AddElement(set, Element{Prefix: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i), byte(j), 0}),
				24+j%8)})
		}
		policy := chain(fmt.Sprint("pi/NetworkPolicy/default/", i))
		for j := range 5 {
			policy.Rules = append(policy.Rules,
				Rule{Matches: []Match{ipv4, tcp, inSet(Source, set), {Field: DestinationPort, Low: uint32(8000 + j)}},
					Counter: true, Verdict: verdict(Accept), Comment: fmt.Sprintf("NetworkPolicy/default/%d ingress %d",
						i,
						j+1)})
		}
		t.SetChain(policy)
		list.Rules = append(list.Rules, jump(policy.Name))
	}
	list.Rules = append(list.Rules, act(Drop))
	t.SetChain(list)
	return t
}

func BenchmarkEval100Policies(b *testing.B) {
	t := policiesTable(100)
	p := Packet{In: "eth0", Out: "cali1", Source: netip.MustParseAddr("10.99.0.1"),
		Destination: netip.MustParseAddr("192.0.2.1"), Protocol: protoTCP, DestinationPort: 8004}
	if !t.Eval(nil, Forward, p, nil).Accepted() {
		b.Fatal("the last policy does not allow it")
	}
	b.Run("plain", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			t.Eval(nil, Forward, p, nil)
		}
	})
	b.Run("traced", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			t.Eval(nil, Forward, p, &Trace{})
		}
	})
}

func manyElements(t *Table, set string, n int) {
	kind := Set{Name: set, Type: Addresses4}
	if set[1] == '6' {
		kind.Type = Addresses6
	}
	t.AddSet(kind)
	for i := range n {
		var a [16]byte
		a[0] = 0xfd
		binary.BigEndian.PutUint32(a[12:], 10<<24|uint32(i))
		addr := netip.AddrFrom16(a)
		if kind.Type == Addresses4 {
			addr = netip.AddrFrom4([4]byte(a[12:]))
		}
		t.AddElement(set, Element{Prefix: netip.PrefixFrom(addr, addr.BitLen())})
	}
}

// BenchmarkTakeChanges100kElements has 100,000 elements in a set, of which one comes and one goes.
func BenchmarkTakeChanges100kElements(b *testing.B) {
	for _, set := range []string{"h4", "h6"} {
		b.Run(set+"/fill", func(b *testing.B) {
			var before, after runtime.MemStats
			var tables []*Table
			runtime.GC()
			runtime.ReadMemStats(&before)
			for b.Loop() {
				t := NewTable()
				manyElements(t, set, 100_000)
				if c := t.TakeChanges(); len(c.Sets) != 1 || len(c.Sets[0].Add) != 100_000 {
					b.Fatalf("%d sets", len(c.Sets))
				}
				tables = append(tables, t)
			}
			runtime.GC()
			runtime.ReadMemStats(&after)
			b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/float64(len(tables))/100_000, "kept-B/element")
			runtime.KeepAlive(tables)
		})
		b.Run(set+"/one", func(b *testing.B) {
			t := NewTable()
			manyElements(t, set, 100_000)
			t.TakeChanges()
			e := element(map[string]string{"h4": "192.0.2.1/32", "h6": "2001:db8::1/128"}[set])
			b.ReportAllocs()
			for b.Loop() {
				t.AddElement(set, e)
				t.TakeChanges()
				t.RemoveElement(set, e)
				if c := t.TakeChanges(); len(c.Sets) != 1 || len(c.Sets[0].Remove) != 1 {
					b.Fatalf("%+v", c)
				}
			}
		})
	}
}

// BenchmarkDifference100kElements compares 100,000 elements and 1,000 policies with a kernel that has them all.
func BenchmarkDifference100kElements(b *testing.B) {
	t := policiesTable(1000)
	manyElements(t, "h4", 100_000)
	a := actual(t)
	b.ReportAllocs()
	for b.Loop() {
		if c := t.Difference(a); !c.Empty() {
			b.Fatalf("%+v", c)
		}
	}
}
