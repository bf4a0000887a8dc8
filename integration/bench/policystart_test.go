package bench

import (
	"context"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/manxnet/manx/datastore/etcd"
)

// BenchmarkPolicyStart measures manxd on a large cluster: the time from its start, on an etcd beside it, until it is
// ready with all rules in the kernel, and then its memory. At all starts except the first, the kernel has the rules of
// the earlier run.
func BenchmarkPolicyStart(b *testing.B) {
	s := newSite(b)
	endpoint := startEtcd(b, s)
	c := cluster{policies: 10_000, remotes: benchRemotes}
	args := []string{"--datastore=etcdv3", "--etcd-endpoints=" + endpoint, "--no-default-pools"}
	if err := s.node.StartManxd(args...); err != nil { // for the objects that every cluster has
		b.Fatal(err)
	}
	if err := s.node.Ready(time.Minute); err != nil {
		b.Fatal(err)
	}
	s.node.Manxd().Kill()
	populate(b, s, 0) // no mesh
	put(b, s, c)
	sum, names := map[string]float64{}, []string{"first-", "again-"}
	for range b.N {
		for _, name := range names {
			t0 := time.Now()
			if err := s.node.StartManxd(); err != nil {
				b.Fatal(err)
			}
			if err := s.node.Ready(2 * time.Minute); err != nil {
				b.Fatalf("%v\n%s", err, s.node.Log())
			}
			pid := s.node.Manxd().PID()
			sum[name+"ready-ms"] += milliseconds(time.Since(t0))
			sum[name+"cpu-ms"] += milliseconds(cpu(pid))
			time.Sleep(15 * time.Second) // until the memory of the start was given back
			sum[name+"rss-MB"] += statusMB(pid, "VmRSS")
			sum[name+"peak-MB"] += statusMB(pid, "VmHWM")
			s.node.Manxd().Kill()
		}
	}
	for name, v := range sum {
		b.ReportMetric(v/float64(b.N), name)
	}
	b.ReportMetric(0, "ns/op")
}

// put writes a cluster as its programs have stored it.
func put(b *testing.B, s *site, c cluster) {
	b.Helper()
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{s.node.EtcdSocket()}})
	if err != nil {
		b.Fatal(err)
	}
	defer client.Close()
	var ops []clientv3.Op
	flush := func() {
		if _, err := client.Txn(context.Background()).Then(ops...).Commit(); err != nil {
			b.Fatal(err)
		}
		ops = ops[:0]
	}
	for o := range c.all {
		path, err := etcd.Path(o.Key)
		if err != nil {
			b.Fatal(err)
		}
		if ops = append(ops, clientv3.OpPut(path, string(o.Raw))); len(ops) == 128 {
			flush()
		}
	}
	flush()
}
