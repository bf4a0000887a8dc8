package bench

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/manxnet/manx/integration/lab"
)

// BenchmarkCNI measures an ADD and a DEL of one container with policy and routes: by the plugin over manxd's socket,
// and by the plugin that uses the datastore itself, in turns. It reports the processor time of the plugin's process and
// of manxd.
func BenchmarkCNI(b *testing.B) {
	s := newSite(b)
	if err := s.node.StartManxd(s.node.EmbedDatastore()...); err != nil {
		b.Fatal(err)
	}
	if err := s.node.Ready(time.Minute); err != nil {
		b.Fatal(err)
	}
	direct := filepath.Join(s.node.Dir, "direct", "manxd.sock") // in a folder without the plugins' socket
	if err := os.MkdirAll(filepath.Dir(direct), 0o755); err != nil {
		b.Fatal(err)
	}
	if err := os.Symlink(s.node.Socket(), direct); err != nil {
		b.Fatal(err)
	}
	ways := []struct {
		name string
		conf func(map[string]any)
		add  lab.Cost
		del  lab.Cost
		work time.Duration
	}{{name: "socket", conf: func(map[string]any) {}}, {name: "direct", conf: func(c map[string]any) {
		c["manxd_socket"], c["etcd_endpoints"] = direct, s.node.EtcdSocket()
	}}}
	if p, err := s.node.AddPod("warm"); err != nil {
		b.Fatal(err)
	} else if err := p.Delete(); err != nil {
		b.Fatal(err)
	}
	b.ResetTimer()
	for i := range b.N {
		for w := range ways {
			way := &ways[w]
			before := cpu(s.node.Manxd().PID())
			p, err := s.node.AddPod(fmt.Sprintf("p%d-%d", i, w), way.conf)
			if err != nil {
				b.Fatal(err)
			}
			way.work += cpu(s.node.Manxd().PID()) - before
			if err := p.Delete(); err != nil {
				b.Fatal(err)
			}
			way.add.Wall, way.add.CPU = way.add.Wall+p.Added.Wall, way.add.CPU+p.Added.CPU
			way.del.Wall, way.del.CPU = way.del.Wall+p.Deleted.Wall, way.del.CPU+p.Deleted.CPU
		}
	}
	ms := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 / float64(b.N) }
	for _, way := range ways {
		b.ReportMetric(ms(way.add.Wall), way.name+"-add-ms")
		b.ReportMetric(ms(way.add.CPU), way.name+"-add-cpu-ms")
		b.ReportMetric(ms(way.work), way.name+"-manxd-cpu-ms")
		b.ReportMetric(ms(way.del.Wall), way.name+"-del-ms")
		b.ReportMetric(ms(way.del.CPU), way.name+"-del-cpu-ms")
	}
}
