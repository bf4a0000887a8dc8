package policy

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"strings"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/manxnet/manx/datastore/document"
	"github.com/manxnet/manx/datastore/etcd"
	"github.com/manxnet/manx/integration/e2e/world"
	"github.com/manxnet/manx/integration/lab"
)

// newPolicyLab makes two nodes of one rack, the first with the datastore, and pods on both.
func newPolicyLab(t *testing.T, name string, pods map[string]string) *cluster {
	t.Helper()
	return &cluster{world.NewPair(t, name, pods)}
}

// entry is one object as it is in the datastore; no value: it does not exist.
type entry struct{ path, value string }

// documents reads YAML as the objects that a client of the datastore would write.
func documents(t *testing.T, yaml string) (list []entry) {
	t.Helper()
	for d, err := range document.Objects([]byte(yaml)) {
		must(t, err)
		o, err := d.Decode()
		must(t, err)
		path, err := etcd.Path(o.Key)
		must(t, err)
		list = append(list, entry{path, string(d.JSON)})
	}
	return list
}

// asDeleted returns the deletions of objects.
func asDeleted(list []entry) (gone []entry) {
	for _, d := range list {
		gone = append(gone, entry{path: d.path})
	}
	return gone
}

// change writes or deletes objects, all at one revision, which it returns.
func (c *cluster) change(t *testing.T, list ...entry) int64 {
	t.Helper()
	var ops []clientv3.Op
	for _, d := range list {
		if d.value == "" {
			ops = append(ops, clientv3.OpDelete(d.path))
		} else {
			ops = append(ops, clientv3.OpPut(d.path, d.value))
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit) // also used to clean up
	defer cancel()
	r, err := c.Etcd.Txn(ctx).Then(ops...).Commit()
	must(t, err)
	return r.Header.Revision
}

// labelled is the endpoint of a pod with these labels.
func (c *cluster) labelled(t *testing.T, pod string, labels map[string]string) entry {
	t.Helper()
	return c.endpoint(t, pod, func(o map[string]any) {
		meta := o["metadata"].(map[string]any)
		have, _ := meta["labels"].(map[string]any)
		all := maps.Clone(have)
		if all == nil {
			all = map[string]any{}
		}
		for k, v := range labels {
			all[k] = v
		}
		meta["labels"] = all
	})
}

// endpoint is the endpoint of a pod, edited.
func (c *cluster) endpoint(t *testing.T, pod string, edit func(o map[string]any)) entry {
	t.Helper()
	p := c.Pods[pod]
	for path, value := range c.Raw(t, world.EndpointKeys) {
		if !strings.Contains(value, `"`+p.IPs[0].String()+"/") {
			continue
		}
		var o map[string]any
		must(t, json.Unmarshal([]byte(value), &o))
		edit(o)
		b, err := json.Marshal(o)
		must(t, err)
		return entry{path, string(b)}
	}
	t.Fatalf("no endpoint has the address of pod %s, %s", pod, p.IPs[0])
	return entry{}
}

// enforced waits until a node's kernel has the rules of a revision.
func (c *cluster) enforced(t *testing.T, revision int64, nodes ...*lab.Node) {
	t.Helper()
	if len(nodes) == 0 {
		nodes = c.Nodes
	}
	for _, n := range nodes {
		eventually(t, func() error {
			if have := world.Metric(t, n, "manx_policy_revision"); have < float64(revision) {
				return fmt.Errorf("%s: the rules are of revision %.0f, want %d", n.Name, have, revision)
			}
			return nil
		})
	}
}

// table is the text of Manx's table on a node, with the handle of each rule.
func table(t *testing.T, n *lab.Node) string {
	t.Helper()
	out, err := n.Run("nft", "-a", "list", "table", "inet", "manx")
	must(t, err)
	return out
}

func at(a netip.Addr, port uint16) netip.AddrPort { return netip.AddrPortFrom(a, port) }
