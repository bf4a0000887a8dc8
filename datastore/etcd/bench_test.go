package etcd_test

import (
	"context"
	"fmt"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/etcd/etcdtest"
	"github.com/manxnet/manx/datastore/model"
)

// putMany stores many values with few requests.
func putMany(t testing.TB, raw *clientv3.Client, n int, entry func(i int) (path, value string)) {
	t.Helper()
	const perRequest = 100
	for from := 0; from < n; from += perRequest {
		var ops []clientv3.Op
		for i := from; i < min(n, from+perRequest); i++ {
			path, value := entry(i)
			ops = append(ops, clientv3.OpPut(path, value))
		}
		if _, err := raw.Txn(context.Background()).Then(ops...).Commit(); err != nil {
			t.Fatal(err)
		}
	}
}

func fillNodes(t testing.TB, raw *clientv3.Client, n int) {
	putMany(t, raw, n, func(i int) (string, string) {
		return fmt.Sprintf("/calico/resources/v3/projectcalico.org/nodes/node-%05d", i),
			fmt.Sprintf(
				`{"kind":"Node","apiVersion":"projectcalico.org/v3","metadata":{"name":"node-%05d","uid":"0f3ac7de-9b21-4c55-8f10-%012d","creationTimestamp":"2026-08-01T10:00:00Z","labels":{"zone":"z%d"}},"spec":{"bgp":{"ipv4Address":"10.%d.%d.1/24"}},"status":{}}`, i, i, i%7, i/250, i%250)
	})
}

// fillBlocks stores blocks of 64 addresses, a quarter of them in use.
func fillBlocks(t testing.TB, raw *clientv3.Client, n int) {
	putMany(t, raw, n, func(i int) (string, string) {
		address := fmt.Sprintf("10.%d.%d.%d", 64+i/1024, i/4%256, i%4*64)
		allocations, unallocated, attributes, sequence := "", "", "", ""
		for a := range 64 {
			if a < 16 {
				allocations += fmt.Sprintf("%d,", a)
				attributes += fmt.Sprintf(
					`{"handle_id":"k8s-pod-network.%064d","secondary":{"namespace":"default","node":"node-%05d","pod":"web-%d"}},`, i*64+a, i/4, a)
				sequence += fmt.Sprintf(`"%d":17855784000000000%02d,`, a, a)
			} else {
				allocations += "null,"
				unallocated += fmt.Sprintf("%d,", a)
			}
		}
		trim := func(s string) string { return s[:len(s)-1] }
		return "/calico/ipam/v2/assignment/ipv4/block/" + address + "-26",
			fmt.Sprintf(
				`{"cidr":"%s/26","affinity":"host:node-%05d","allocations":[%s],"unallocated":[%s],"attributes":[%s],"sequenceNumber":1785578400000000016,"sequenceNumberForAllocation":{%s},"deleted":false}`,
				address, i/4, trim(allocations), trim(unallocated), trim(attributes), trim(sequence))
	})
}

func BenchmarkList1000Nodes4000Blocks(b *testing.B) {
	server := etcdtest.Start(b)
	s := server.Store(b)
	fillNodes(b, server.Client(b), 1000)
	fillBlocks(b, server.Client(b), 4000)
	b.ReportAllocs()
	for b.Loop() {
		for kind, want := range map[model.Kind]int{model.KindNode: 1000, model.KindIPAMBlock: 4000} {
			objects, _, err := s.List(b.Context(), kind, "")
			if err != nil || len(objects) != want || objects[0].Err != nil {
				b.Fatal(len(objects), err, objects[0].Err)
			}
		}
	}
}

func BenchmarkTablesInSync1000Nodes4000Blocks(b *testing.B) {
	server := etcdtest.Start(b)
	s := server.Store(b)
	fillNodes(b, server.Client(b), 1000)
	fillBlocks(b, server.Client(b), 4000)
	b.ReportAllocs()
	for b.Loop() {
		ctx, cancel := context.WithCancel(b.Context())
		tables := datastore.NewTables(zap.NewNop(), "")
		go tables.Run(ctx, s, model.KindNode, model.KindIPAMBlock)
		snapshot, err := tables.WaitInSync(ctx)
		if err != nil || snapshot.Len() != 5000 {
			b.Fatal(snapshot.Len(), err)
		}
		cancel()
	}
}
