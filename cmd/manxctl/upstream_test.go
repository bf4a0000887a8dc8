package main_test

import (
	"context"
	"encoding/json"
	"os"
	"reflect"
	"strings"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/manxnet/manx/datastore/etcd/etcdtest"
	"github.com/manxnet/manx/integration/jsonlines"
)

// upstream is the folder with the objects that Calico's own programs stored, and with the tables that they printed.
// Their JSON output is in the testdata of the package codec.
const (
	upstream     = "testdata/upstream/"
	upstreamJSON = "../../datastore/codec/testdata/calicoctl-get/"
)

// loadUpstream puts the entries that Calico's programs wrote into a datastore, byte for byte.
func loadUpstream(t *testing.T, server *etcdtest.Server) {
	t.Helper()
	client := server.Client(t)
	for _, entry := range jsonlines.Read[struct{ Key, Raw string }](t, upstream+"objects.jsonl") {
		if _, err := client.Put(context.Background(), entry.Key, entry.Raw); err != nil {
			t.Fatal(err)
		}
	}
}

// tableLines takes the padding out of a table. Calico's built-in profile is shown by calicoctl, but stored nowhere.
func tableLines(text string) []string {
	var lines []string
	for l := range strings.Lines(text) {
		l = strings.TrimSpace(l)
		if l != "" && !strings.HasPrefix(l, "projectcalico-default-allow") {
			lines = append(lines, strings.Join(strings.Fields(l), " "))
		}
	}
	return lines
}

func TestGetPrintsWhatCalicoctlPrints(t *testing.T) {
	s, server := newShell(t)
	loadUpstream(t, server)
	kinds := []string{"bgpconfiguration", "bgppeer", "clusterinformation", "felixconfiguration", "ipamconfiguration",
		"kubecontrollersconfiguration",
		"ippool", "ipreservation", "node", "profile", "tier", "workloadendpoint", "caliconodestatus", "bgpfilter",
		"networkpolicy", "globalnetworkpolicy", "stagednetworkpolicy", "stagedglobalnetworkpolicy",
		"stagedkubernetesnetworkpolicy",
		"networkset", "globalnetworkset", "hostendpoint"}
	for _, kind := range kinds {
		args := []string{"get", kind}
		switch kind {
		case "workloadendpoint", "networkpolicy", "stagednetworkpolicy", "stagedkubernetesnetworkpolicy", "networkset":
			args = append(args, "-A")
		}
		for form, file := range map[string]string{"table": ".ps.txt", "wide": ".wide.txt"} {
			theirs, err := os.ReadFile(upstream + kind + file)
			if os.IsNotExist(err) {
				continue // calicoctl panicked
			}
			if err != nil {
				t.Fatal(err)
			}
			ours := s.must(append(args, "-o", form)...)
			if got, want := tableLines(ours), tableLines(string(theirs)); !reflect.DeepEqual(got, want) {
				t.Errorf("get %s -o %s\n%s\nwant\n%s", kind, form, strings.Join(got, "\n"), strings.Join(want, "\n"))
			}
		}
		theirs, err := os.ReadFile(upstreamJSON + kind + ".json")
		if os.IsNotExist(err) {
			theirs, err = os.ReadFile(upstream + kind + ".json")
		}
		if err != nil {
			t.Fatal(err)
		}
		compareJSON(t, kind, s.must(append(args, "-o", "json")...), string(theirs))
	}
}

// compareJSON compares two lists of resources, without revisions, which depend on the history of the datastore.
func compareJSON(t *testing.T, kind, ours, theirs string) {
	t.Helper()
	got, want := resourceList(t, ours), resourceList(t, theirs)
	if got.Kind != want.Kind || got.APIVersion != want.APIVersion {
		t.Errorf("get %s -o json: is a %s of %s, want a %s of %s", kind, got.Kind, got.APIVersion, want.Kind,
			want.APIVersion)
	}
	for name, w := range want.items {
		if g := got.items[name]; !reflect.DeepEqual(g, w) {
			t.Errorf("get %s -o json: %s is\n%v\nwant\n%v", kind, name, g, w)
		}
	}
	for name := range got.items {
		if want.items[name] == nil {
			t.Errorf("get %s -o json: %s is one too many", kind, name)
		}
	}
}

type parsedList struct {
	Kind, APIVersion string
	Items            []map[string]any
	items            map[string]any
}

func resourceList(t *testing.T, text string) parsedList {
	t.Helper()
	l := parsedList{items: map[string]any{}}
	if err := json.Unmarshal([]byte(text), &l); err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
	for _, item := range l.Items {
		m := item["metadata"].(map[string]any)
		if m["name"] == "projectcalico-default-allow" {
			continue
		}
		if m["resourceVersion"] == "" || m["resourceVersion"] == "0" {
			t.Errorf("%v has no resourceVersion", m["name"])
		}
		delete(m, "resourceVersion")
		ns, _ := m["namespace"].(string)
		l.items[ns+"/"+m["name"].(string)] = item
	}
	return l
}

func TestGetShowsIPAM(t *testing.T) {
	s, server := newShell(t)
	loadUpstream(t, server)
	blocks := s.must("get", "ipamblocks")
	for _, want := range []string{"CIDR AFFINITY ALLOCATED FREE", "10.40.26.192/26 host:h1",
		"10.46.0.16/28 virtual:load-balancer"} {
		if !strings.Contains(strings.Join(tableLines(blocks), "\n"), want) {
			t.Errorf("get ipamblocks lacks %q:\n%s", want, blocks)
		}
	}
	affinities := strings.Join(tableLines(s.must("get", "blockaffinities")), "\n")
	if !strings.Contains(affinities, "10.40.26.192/26 host h1 confirmed") {
		t.Errorf("get blockaffinities:\n%s", affinities)
	}
	var block struct {
		Kind string
		Spec struct {
			Affinity       string
			SequenceNumber json.Number
		}
	}
	if err := json.Unmarshal([]byte(s.must("get", "ipamblock/10.40.26.192/26", "-o", "json")), &block); err != nil {
		t.Fatal(err)
	}
	if block.Kind != "IPAMBlock" || block.Spec.Affinity != "host:h1" || len(block.Spec.SequenceNumber) != 19 {
		t.Errorf("block is %+v", block)
	}
	s.run("delete", "ipamblock", "10.40.26.192/26").want(t, 2, "", "belongs to the address allocator")
}

// The output of one program is valid input of the other: get -o yaml of everything, applied again, changes nothing.
func TestAppliedAgainNothingChanges(t *testing.T) {
	s, server := newShell(t)
	loadUpstream(t, server)
	client := server.Client(t)
	before, err := client.Get(context.Background(), "/calico/", clientv3.WithPrefix())
	if err != nil {
		t.Fatal(err)
	}
	for _, kind := range []string{"nodes", "ippools", "ipreservations", "bgpconfigurations", "bgppeers",
		"clusterinformations",
		"felixconfigurations", "ipamconfigurations", "kubecontrollersconfigurations", "profiles", "tiers"} {
		for _, format := range []string{"yaml", "json"} {
			for l := range strings.Lines(s.mustPipe(s.must("get", kind, "-o", format), "apply", "-f", "-")) {
				if !strings.HasSuffix(l, " unchanged\n") {
					t.Errorf("apply of what get %s -o %s printed: %s", kind, format, l)
				}
			}
		}
	}
	after, err := client.Get(context.Background(), "/calico/", clientv3.WithPrefix())
	if err != nil {
		t.Fatal(err)
	}
	if before.Header.Revision != after.Header.Revision {
		t.Errorf("the datastore went from revision %d to %d", before.Header.Revision, after.Header.Revision)
	}
}

// An endpoint of a node names an address that was released and is assigned on another node by now.
func TestDeleteNodeLeavesAddressesOfOthers(t *testing.T) {
	s, server := newShell(t)
	loadUpstream(t, server)
	client, ctx := server.Client(t), context.Background()
	const (
		block = "/calico/ipam/v2/assignment/ipv4/block/10.42.0.0-29"
		old   = `"node":"h1"`
	)
	got, err := client.Get(ctx, block)
	if err != nil || len(got.Kvs) != 1 || !strings.Contains(string(got.Kvs[0].Value), old) {
		t.Fatalf("block is %v, error %v", got, err)
	}
	now := strings.NewReplacer(old, `"node":"h2"`, "host:h1", "host:h2").Replace(string(got.Kvs[0].Value))
	if _, err := client.Put(ctx, block, now); err != nil {
		t.Fatal(err)
	}
	out := s.must("delete", "node", "h1")
	if want := "workloadendpoint/h1-k8s-dual--4-eth0 deleted\n"; !strings.Contains(out, want) {
		t.Errorf("delete node h1 lacks %s:\n%s", want, out)
	}
	got, err = client.Get(ctx, block)
	if err != nil || len(got.Kvs) != 1 || string(got.Kvs[0].Value) != now {
		t.Errorf("block of h2 is %v, error %v; want %s", got, err, now)
	}
}

// The deletion of a node removes its addresses, blocks and sessions, and nothing of other nodes.
func TestDeleteNodeTakesAllThatIsItsOwn(t *testing.T) {
	s, server := newShell(t)
	loadUpstream(t, server)
	client := server.Client(t)
	s.run("delete", "node", "nobody").want(t, 1, "", "Node nobody: does not exist")
	for node, own := range map[string][]string{
		"wg-1": {"node/wg-1"},
		"h1": {"workloadendpoint/h1-k8s-web--1-eth0", "workloadendpoint/h1-k8s-dual--4-eth0", "bgppeer/d-one-node",
			"bgpconfiguration/node.h1",
			"felixconfiguration/node.h1", "node/h1"},
	} {
		out := s.must("delete", "node", node)
		for _, o := range own {
			if !strings.Contains(out, o+" deleted\n") {
				t.Errorf("delete node %s lacks %s:\n%s", node, o, out)
			}
		}
	}
	left, err := client.Get(context.Background(), "/calico/", clientv3.WithPrefix())
	if err != nil {
		t.Fatal(err)
	}
	keep := map[string]bool{"/calico/ipam/v2/host/h2/ipv4/block/10.40.1.64-26": false,
		"/calico/ipam/v2/handle/ipip-tunnel-addr-h2":                         false,
		"/calico/resources/v3/projectcalico.org/nodes/h2":                    false,
		"/calico/resources/v3/projectcalico.org/bgppeers/g-node-to-selector": false}
	for _, kv := range left.Kvs {
		key := string(kv.Key)
		if _, ok := keep[key]; ok {
			keep[key] = true
		}
		for _, node := range []string{"wg-1", "h1"} {
			if strings.Contains(key, "/host/"+node+"/ipv") || strings.HasSuffix(key, "-tunnel-addr-"+node) ||
				strings.Contains(key, "/"+node+"-k8s-") ||
				strings.Contains(string(kv.Value), `"affinity":"host:`+node+`"`) {
				t.Errorf("left of %s: %s", node, key)
			}
		}
	}
	for key, there := range keep {
		if !there {
			t.Errorf("%s is gone", key)
		}
	}
}
