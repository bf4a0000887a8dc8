package laststate

import (
	"fmt"
	"testing"
	"time"

	"github.com/manxnet/manx/datastore/model"
)

// BenchmarkEncode encodes the state of a cluster of 5,000 nodes: the bytes are those of the file.
func BenchmarkEncode(b *testing.B) {
	s := &State{Node: "n1", Origin: origin, Written: time.Now(), Revision: 1}
	for i := range 5000 {
		n := &model.Node{Spec: model.NodeSpec{BGP: &model.NodeBGPSpec{
			IPv4Address:        fmt.Sprintf("10.1.%d.%d/16", i/256, i%256),
			IPv4IPIPTunnelAddr: fmt.Sprintf("10.244.%d.%d", i/256, i%256)}}}
		n.Labels = map[string]string{"kubernetes.io/hostname": fmt.Sprintf("node-%d.example.com", i),
			"kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64", "topology.kubernetes.io/zone": "a",
			"node.kubernetes.io/instance-type": "large", "beta.kubernetes.io/os": "linux"}
		o := model.NewObject(model.ResourceKey(model.KindNode, fmt.Sprintf("node-%d", i)), n)
		s.Objects = append(s.Objects, o)
	}
	b.ReportAllocs()
	for b.Loop() {
		content, _, err := s.Encode()
		if err != nil {
			b.Fatal(err)
		}
		b.SetBytes(int64(len(content)))
		b.ReportMetric(float64(len(content)), "file-bytes")
	}
}
