package plan

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"

	"github.com/manxnet/manx/datastore/document"
	"github.com/manxnet/manx/datastore/manifest"
	"github.com/manxnet/manx/datastore/model"
)

// documents reads the files of the golden tests, each document as its own file.
func documents(t *testing.T) []manifest.Source {
	t.Helper()
	var docs []manifest.Source
	for _, path := range []string{"../cmd/manxctl/testdata/plan/cluster", "../cmd/manxctl/testdata/plan/change.yaml"} {
		sources, errs := manifest.Read(path, nil, false)
		if len(errs) > 0 {
			t.Fatal(errs)
		}
		for _, s := range sources {
			for d, err := range document.Objects(s.Text) {
				if err != nil {
					t.Fatal(err)
				}
				var v map[string]any
				if err := json.Unmarshal(d.JSON, &v); err != nil {
					t.Fatal(err)
				}
				v["apiVersion"], v["kind"] = d.APIVersion, d.Kind // a list may have it in place of its items
				text, err := json.Marshal(v)
				if err != nil {
					t.Fatal(err)
				}
				docs = append(docs, manifest.Source{Name: fmt.Sprintf("%d.json", len(docs)), Text: text})
			}
		}
	}
	if len(docs) < 30 {
		t.Fatalf("only %d documents", len(docs))
	}
	return docs
}

// TestOrderOfDocuments shuffles files and joins them at random; also those with two versions of one object.
func TestOrderOfDocuments(t *testing.T) {
	docs := documents(t)
	var want Plan
	var remarks []string
	random := rand.New(rand.NewPCG(1, 2))
	for i := range 50 {
		state := Read(docs, "kube-system")
		got := New("n1", state.Compute(Settings{Node: "n1"}))
		if i == 0 {
			want, remarks = got, state.Remarks
			if len(got.BGP.Sessions) < 5 || len(got.BGP.Originated) < 5 || len(remarks) < 5 {
				t.Fatalf("too little to be of use: %+v\n%s", got, strings.Join(remarks, "\n"))
			}
		}
		if !reflect.DeepEqual(got, want) {
			t.Fatalf("another order gives\n%+v\nnot\n%+v", got, want)
		}
		if !reflect.DeepEqual(state.Remarks, remarks) {
			t.Fatalf("another order gives the remarks\n%s\nnot\n%s", strings.Join(state.Remarks, "\n"),
				strings.Join(remarks, "\n"))
		}
		random.Shuffle(len(docs), func(i, j int) { docs[i], docs[j] = docs[j], docs[i] })
	}
}

// TestWhatIsRead reads each form of document that a file may have.
func TestWhatIsRead(t *testing.T) {
	const node = "kind: Node\nmetadata: {name: n1}\nspec: {bgp: {ipv4Address: 10.0.0.1/24}}\n---\n"
	for _, c := range []struct {
		rule, in string
		has      string // a key
		remark   string // part of one; empty for none
	}{
		{"a kind that Manx does not read", node + "kind: Deployment\nmetadata: {name: web}\n", "Node n1",
			"Deployment web is skipped"},
		{"no kind", node + "metadata: {name: web}\n", "Node n1", "f:5: skipped: kind is missing"},
		{"no name", node + "kind: BGPPeer\nspec: {peerIP: 10.0.0.2}\n", "Node n1",
			"f:5: BGPPeer is skipped: metadata.name is missing"},
		{"not YAML", node + "a: [\n---\n" + "kind: BGPPeer\nmetadata: {name: p}\n" +
			"spec: {peerIP: 10.0.0.2, asNumber: 1}\n", "BGPPeer p", "neither YAML nor JSON"},
		{"a value of another type", "kind: BGPPeer\nmetadata: {name: p}\nspec:\n  peerIP: [1]\n---\n" + node, "Node n1",
			"f:4: BGPPeer p is skipped: spec.peerIP"},
		{"a number for text", "kind: Node\nmetadata: {name: n1, labels: {zone: 1}}\n", "Node n1", ""},
		{"another apiVersion", "apiVersion: apps/v1\nkind: BGPPeer\nmetadata: {name: p}\n---\n" + node, "Node n1",
			"f:1: BGPPeer p is skipped: apiVersion"},
		{"IPAM's books", node + "apiVersion: crd.projectcalico.org/v1\nkind: IPAMHandle\nmetadata: {name: h}\n",
			"Node n1", ""},
		{"a field that is not there", "kind: BGPPeer\nmetadata: {name: p}\nspec:\n  peerIP: 10.0.0.2\n" +
			"  asNumber: 1\n  x: 1\n", "BGPPeer p", "f:6: BGPPeer p: spec.x"},
		{"twice the same", node + node, "Node n1", ""},
		{"an invalid version does not hide a valid one", node + "kind: Node\nmetadata: {name: n1}\n" +
			"spec: {bgp: {ipv4Address: x}}\n", "Node n1", "is skipped: spec.bgp.ipv4Address"},
		{"a Secret that is no base64", node + "kind: Secret\napiVersion: v1\nmetadata: {name: s}\ndata: {k: '!'}\n",
			"Node n1", "Secret s is skipped: want base64"},
		{"a Secret elsewhere", node + "kind: Secret\napiVersion: v1\nmetadata: {name: s, namespace: shop}\n", "Node n1",
			"passwords are read in namespace kube-system"},
		{"an affinity without block", node + "kind: BlockAffinity\nmetadata: {name: s}\n", "Node n1",
			"want spec.node and spec.cidr"},
		{"an affinity of Kubernetes", "apiVersion: crd.projectcalico.org/v1\nkind: BlockAffinity\n" +
			"metadata: {name: n1-10-1-0-0-26}\nspec: {node: n1, cidr: 10.1.0.0/26, deleted: 'false'}\n",
			"BlockAffinity host/n1/10.1.0.0/26", ""},
		{"an affinity of group v3", node + "apiVersion: projectcalico.org/v3\nkind: BlockAffinity\n" +
			"metadata: {name: n1-10-1-0-0-26}\nspec: {node: n1, cidr: 10.1.0.0/26, deleted: false}\n",
			"BlockAffinity host/n1/10.1.0.0/26", ""},
		{"an affinity whose name is not its own, which no node uses", node + "apiVersion: " +
			"crd.projectcalico.org/v1\nkind: BlockAffinity\nmetadata: {name: s}\nspec: {node: n1, cidr: 10.1.0.0/26}\n",
			"Node n1", "must be \"n1-10-1-0-0-26\""},
		{"an annotation that no node uses", "apiVersion: v1\nkind: Node\n" +
			"metadata: {name: n1, annotations: {projectcalico.org/IPv4Address: 10.0.0.1/24, " +
			"projectcalico.org/ASNumber: many}}\n",
			"Node n1", "projectcalico.org/ASNumber"},
		{"a virtual affinity", "kind: BlockAffinity\nmetadata: {name: load-balancer-10-1-0-0-26}\n" +
			"spec: {node: load-balancer, type: virtual, cidr: 10.1.0.0/26}\n",
			"BlockAffinity virtual/load-balancer/10.1.0.0/26", ""},
	} {
		t.Run(c.rule, func(t *testing.T) {
			s := Read([]manifest.Source{{Name: "f", Text: []byte(c.in)}}, "kube-system")
			found := false
			for k := range s.Objects {
				found = found || k.String() == c.has
			}
			if !found {
				t.Errorf("%s is not there: %v", c.has, s.Objects)
			}
			all := strings.Join(s.Remarks, "\n")
			if c.remark == "" && all != "" || !strings.Contains(all, c.remark) {
				t.Errorf("remarks\n%s\nwant %q", all, c.remark)
			}
		})
	}
}

// TestWhichVersionCounts: the version that a user wrote is preferred, then the newest.
func TestWhichVersionCounts(t *testing.T) {
	peer := func(rv, ip string) string {
		return fmt.Sprintf("apiVersion: projectcalico.org/v3\nkind: BGPPeer\nmetadata: {name: p%s}\n"+
			"spec: {peerIP: %s, asNumber: 1}\n---\n", rv, ip)
	}
	kubernetes := "apiVersion: v1\nkind: Node\nmetadata: {name: node, resourceVersion: '99', annotations: " +
		"{projectcalico.org/IPv4Address: 10.0.0.9/24}}\n---\n"
	calico := "kind: Node\nmetadata: {name: node, resourceVersion: '1'}\nspec: {bgp: {ipv4Address: 10.0.0.1/24}}\n---\n"
	for _, c := range []struct{ rule, in, want string }{
		{"an edit", peer(", resourceVersion: '9'", "10.0.0.9") + peer("", "10.0.0.1"), "10.0.0.1"},
		{"a higher revision", peer(", resourceVersion: '10'", "10.0.0.1") + peer(", resourceVersion: '9'", "10.0.0.9"),
			"10.0.0.1"},
		{"Calico's Node", kubernetes + calico, "10.0.0.1/24"},
	} {
		s := Read([]manifest.Source{{Name: "f", Text: []byte(c.in)}}, "kube-system")
		var got string
		for _, o := range s.Objects {
			switch v := o.Value.(type) {
			case *model.BGPPeer:
				got = v.Spec.PeerIP
			case *model.Node:
				got = v.Spec.BGP.IPv4Address
			}
		}
		if got != c.want || len(s.Remarks) != 1 || !strings.Contains(s.Remarks[0], "counts, as it") {
			t.Errorf("%s: %s counts, want %s; remarks %q", c.rule, got, c.want, s.Remarks)
		}
	}
}
