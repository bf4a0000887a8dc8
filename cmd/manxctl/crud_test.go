package main_test

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const peer = `apiVersion: projectcalico.org/v3
kind: BGPPeer
metadata:
  name: tor-1
  labels: {rack: a}
spec:
  peerIP: 192.0.2.1
  asNumber: 64512
`

const peerPath = "/calico/resources/v3/projectcalico.org/bgppeers/tor-1"

func TestCreateRefusesWhatExists(t *testing.T) {
	s, _ := newShell(t)
	s.pipe(peer, "create", "-f", "-").want(t, 0, "bgppeer/tor-1 created\n")
	s.pipe(peer, "create", "-f", "-").want(t, 1, "", "standard input: create BGPPeer tor-1: already exists")
	s.pipe(peer, "create", "--skip-exists", "-f", "-").want(t, 0, "bgppeer/tor-1 skipped: it exists\n")
}

func TestApplyCreatesConfiguresAndLeavesAlone(t *testing.T) {
	s, server := newShell(t)
	client := server.Client(t)
	s.pipe(peer, "apply", "-f", "-").want(t, 0, "bgppeer/tor-1 created\n")
	s.pipe(peer, "apply", "-f", "-").want(t, 0, "bgppeer/tor-1 unchanged\n")

	// A newer Calico adds fields and its controllers annotations; the user writes neither, so both survive.
	raw, err := client.Get(context.Background(), peerPath)
	if err != nil {
		t.Fatal(err)
	}
	newer := strings.Replace(string(raw.Kvs[0].Value), `"spec":{`, `"spec":{"fromTheFuture":{"deep":[1]},`, 1)
	newer = strings.Replace(newer, `"labels"`, `"annotations":{"projectcalico.org/x":"kept","mine":"gone"},"labels"`, 1)
	if _, err := client.Put(context.Background(), peerPath, newer); err != nil {
		t.Fatal(err)
	}
	changed := strings.Replace(peer, "64512", "64513", 1)
	s.pipe(changed, "apply", "-f", "-").want(t, 0, "bgppeer/tor-1 configured\n")

	type stored struct {
		Metadata struct {
			UID, CreationTimestamp string
			Annotations            map[string]string
		}
		Spec struct {
			ASNumber      int
			FromTheFuture json.RawMessage
		}
	}
	var before, after stored
	now, err := client.Get(context.Background(), peerPath)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(raw.Kvs[0].Value, &before); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(now.Kvs[0].Value, &after); err != nil {
		t.Fatal(err)
	}
	if after.Spec.ASNumber != 64513 || string(after.Spec.FromTheFuture) != `{"deep":[1]}` {
		t.Errorf("stored is %s", now.Kvs[0].Value)
	}
	if after.Metadata.UID == "" || after.Metadata.UID != before.Metadata.UID ||
		after.Metadata.CreationTimestamp != before.Metadata.CreationTimestamp {
		t.Errorf("identity went from %+v to %+v", before.Metadata, after.Metadata)
	}
	if a := after.Metadata.Annotations; a["projectcalico.org/x"] != "kept" || a["mine"] != "" {
		t.Errorf("annotations are %v", a)
	}
}

func TestReplaceNeedsTheObjectAndTheRevisionIfOneIsNamed(t *testing.T) {
	s, _ := newShell(t)
	s.pipe(peer, "replace", "-f", "-").want(t, 1, "", "BGPPeer tor-1: does not exist")
	s.mustPipe(peer, "create", "-f", "-")
	old := s.must("get", "bgppeer", "tor-1", "-o", "yaml")
	s.pipe(strings.Replace(peer, "64512", "64513", 1), "replace", "-f", "-").want(t, 0, "bgppeer/tor-1 replaced\n")
	s.pipe(old, "replace", "-f", "-").want(t, 1, "", "update conflict", "metadata.resourceVersion")
	s.pipe(old, "apply", "-f", "-").want(t, 1, "", "update conflict")

	// An object that was deleted and created again is another object, even under the same name.
	s.must("delete", "bgppeer", "tor-1")
	s.mustPipe(peer, "create", "-f", "-")
	var noVersion []string
	for l := range strings.Lines(old) {
		if !strings.Contains(l, "resourceVersion") {
			noVersion = append(noVersion, l)
		}
	}
	s.pipe(strings.Join(noVersion, ""), "replace", "-f", "-").want(t, 1, "", "metadata.uid")
}

func TestGetInEveryFormat(t *testing.T) {
	s, _ := newShell(t)
	s.mustPipe(peer, "create", "-f", "-")
	s.run("get", "bgppeer").want(t, 0, "NAME    PEERIP      NODE       ASN\ntor-1   192.0.2.1   (global)   64512\n")
	s.run("get", "bgpp", "tor-1", "--no-headers").want(t, 0, "tor-1   192.0.2.1   (global)   64512\n")
	s.run("get", "BGPPeers", "--show-labels", "--no-headers").want(t, 0,
		"tor-1   192.0.2.1   (global)   64512   rack=a\n")
	s.run("get", "bgppeers", "-o", "name").want(t, 0, "bgppeer/tor-1\n")
	s.run("get", "bgppeer/tor-1", "-o", "name").want(t, 0, "bgppeer/tor-1\n")
	s.run("get", "bgppeers", "-l", "rack=b").want(t, 0, "", "No bgppeers found.")
	s.run("get", "bgppeers", "-l", "rack in (a,c)", "-o", "name").want(t, 0, "bgppeer/tor-1\n")
	if r := s.run("get", "profile", "projectcalico-default-allow", "-o", "yaml"); r.code != 0 ||
		!strings.Contains(r.out, "  egress:\n  - action: Allow\n") {
		t.Errorf("the built-in profile is %+v", r)
	}
	s.run("get", "bgppeers", "-l", "rack==").want(t, 0, "", "No bgppeers found.")
	s.run("get", "bgppeers", "-o", "xml").want(t, 2, "", `"xml"`, "use one of table, wide, yaml, json, name")

	one := s.must("get", "bgppeer", "tor-1", "-o", "json")
	if !strings.HasPrefix(one, "{\n  \"kind\": \"BGPPeer\",\n  \"apiVersion\": \"projectcalico.org/v3\",\n"+
		"  \"metadata\": {\n    \"name\": \"tor-1\",") {
		t.Errorf("one object as JSON:\n%s", one)
	}
	if list := s.must("get", "bgppeers", "-o", "yaml"); !strings.HasPrefix(list,
		"apiVersion: projectcalico.org/v3\nitems:\n- apiVersion:") ||
		!strings.Contains(list, "\nkind: BGPPeerList\n") {
		t.Errorf("a list as YAML:\n%s", list)
	}
}

func TestGetReportsEachNameThatIsMissing(t *testing.T) {
	s, _ := newShell(t)
	s.mustPipe(peer, "create", "-f", "-")
	s.run("get", "bgppeer", "a", "tor-1", "b", "-o", "name").want(t, 1, "bgppeer/tor-1\n",
		"get BGPPeer a: does not exist", "get BGPPeer b: does not exist")
}

func TestUnknownKindAndBadUsage(t *testing.T) {
	s, _ := newShell(t)
	s.run("get", "nodes/").want(t, 2, "", `Error: "nodes/": want KIND/NAME`)
	s.run("get", "node/a", "b").want(t, 2, "", `Error: "b": want KIND/NAME`)
	s.run("get", "pigeons").want(t, 2, "", `kind "pigeons" is not known. The kinds are: bgpconfigurations,`,
		"See 'manxctl get --help'.")
	s.run("get").want(t, 2, "", "name a kind")
	s.run("get", "node", "a", "-n", "x").want(t, 2, "", "Node is not namespaced")
	s.run("get", "nodes", "-A").want(t, 2, "", "Node is not namespaced")
	s.run("delete", "nodes").want(t, 2, "", "name the objects to delete")
	s.run("apply").want(t, 2, "", "apply needs -f")
	s.run("get", "nodes", "--no-such-flag").want(t, 2, "", "unknown flag")
	s.run("frobnicate").want(t, 2, "", `unknown command "frobnicate"`)
}

const endpoint = `{"apiVersion":"projectcalico.org/v3","kind":"WorkloadEndpoint","metadata":{"namespace":"NS","labels":{"app":"web"}},
 "spec":{"orchestrator":"k8s","node":"node-1","pod":"POD","endpoint":"eth0","containerID":"abc123","ipNetworks":["10.0.0.1/32"],"interfaceName":"cali1","profiles":["kns.NS"]}}`

func TestNamespaces(t *testing.T) {
	s, _ := newShell(t)
	shop := strings.NewReplacer("NS", "shop", "POD", "web-1").Replace(endpoint)
	plain := strings.NewReplacer(`"namespace":"NS",`, "", "NS", "default", "POD", "db-0").Replace(endpoint)
	// Two JSON documents in one stream; the names follow from the fields, as calicoctl has it.
	s.pipe(shop+"\n"+plain, "apply", "-f", "-").want(t, 0,
		"workloadendpoint/node--1-k8s-web--1-eth0 created\nworkloadendpoint/node--1-k8s-db--0-eth0 created\n")

	s.run("get", "wep", "--no-headers").want(t, 0, "db-0   node-1   10.0.0.1/32   cali1\n")
	s.run("get", "wep", "-n", "shop", "--no-headers").want(t, 0, "shop   web-1   node-1   10.0.0.1/32   cali1\n")
	s.run("get", "wep", "-A").want(t, 0, "NAMESPACE   WORKLOAD   NODE     NETWORKS      INTERFACE\n"+
		"default     db-0       node-1   10.0.0.1/32   cali1\nshop        web-1      node-1   10.0.0.1/32   cali1\n")
	s.run("get", "wep", "-A", "x").want(t, 2, "", "use -n instead of -A")
	s.pipe(shop, "apply", "-n", "other", "-f", "-").want(t, 1, "", `metadata.namespace is "shop", but -n is "other"`)
	s.run("delete", "wep", "node--1-k8s-web--1-eth0").want(t, 1, "",
		"WorkloadEndpoint default/node--1-k8s-web--1-eth0: does not exist")
	s.run("delete", "wep", "node--1-k8s-web--1-eth0", "-n", "shop").want(t, 0,
		"workloadendpoint/node--1-k8s-web--1-eth0 deleted\n")
}

func TestDeleteGoesOnAndConfirmsEach(t *testing.T) {
	s, _ := newShell(t)
	s.mustPipe(peer, "create", "-f", "-")
	s.run("delete", "bgppeer", "nobody", "tor-1").want(t, 1, "bgppeer/tor-1 deleted\n",
		"delete BGPPeer nobody: does not exist")
	s.run("delete", "bgppeer", "nobody", "--ignore-not-found").want(t, 0, "")
	s.run("delete", "node", "nobody").want(t, 1, "", "Error: delete Node nobody: does not exist")
	s.run("delete", "node", "nobody", "--ignore-not-found").want(t, 0, "")
	s.mustPipe(peer, "create", "-f", "-")
	s.pipe(peer, "delete", "-f", "-").want(t, 0, "bgppeer/tor-1 deleted\n")
}

func TestFilesFoldersAndManyDocuments(t *testing.T) {
	s, _ := newShell(t)
	dir := t.TempDir()
	write(t, dir, "b.yaml", peer+"---\n# nothing here\n---\n"+strings.Replace(peer, "tor-1", "tor-2", 1))
	write(t, dir, "a.json", `{"apiVersion":"projectcalico.org/v3","kind":"BGPPeerList","items":[`+
		`{"apiVersion":"projectcalico.org/v3","kind":"BGPPeer","metadata":{"name":"tor-3"},"spec":{"peerIP":"192.0.2.3","asNumber":"1.5"}}]}`)
	write(t, dir, "notes.txt", "not a resource")
	write(t, dir, "deeper/c.yml", strings.Replace(peer, "tor-1", "tor-4", 1))
	s.run("apply", "-f", dir).want(t, 0, "bgppeer/tor-3 created\nbgppeer/tor-1 created\nbgppeer/tor-2 created\n")
	s.run("apply", "-R", "-f", dir).want(t, 0, "bgppeer/tor-3 unchanged\nbgppeer/tor-1 unchanged\n"+
		"bgppeer/tor-2 unchanged\nbgppeer/tor-4 created\n")
	s.run("get", "-f", filepath.Join(dir, "a.json"), "--no-headers").want(t, 0,
		"tor-3   192.0.2.3   (global)   65541\n")
	s.run("apply", "-f", filepath.Join(dir, "nowhere.yaml")).want(t, 1, "", "no such file")
	s.run("apply", "-f", t.TempDir()).want(t, 1, "", "no file in it ends in .yaml, .yml or .json")
}

// manxctl accepts the documents of Calico's own test input unchanged.
func TestCalicoctlFilesAreAccepted(t *testing.T) {
	s, _ := newShell(t)
	for _, f := range []string{"01-ippools", "02-bgpconfigurations", "03-bgpfilters", "04-bgppeers", "05-nodes-extra",
		"07-kubecontrollers", "08-small-kinds", "09-networkpolicies",
		"10-globalnetworkpolicies", "11-staged", "12-workloadendpoints"} {
		for l := range strings.Lines(s.must("apply", "-f", "testdata/input/"+f+".yaml")) {
			if !strings.HasSuffix(l, " created\n") {
				t.Errorf("%s: %s", f, l)
			}
		}
		for l := range strings.Lines(s.must("apply", "-f", "testdata/input/"+f+".yaml")) {
			if !strings.HasSuffix(l, " unchanged\n") {
				t.Errorf("%s, applied again: %s", f, l)
			}
		}
	}
}

func TestABadFileChangesNothingAndNamesEveryLine(t *testing.T) {
	s, _ := newShell(t)
	file := write(t, t.TempDir(), "peers.yaml", peer+`---
apiVersion: projectcalico.org/v3
kind: BGPPeer
metadata: {name: bad}
spec:
  peerIp: 192.0.2.2
  asNumber: 64512
  password:
    secretKeyReff: {name: x}
---
apiVersion: projectcalico.org/v3
kind: Pigeon
---
apiVersion: projectcalico.org/v3
kind: BGPPeer
metadata: {name: worse}
spec:
  filters: yes please
---
kind: BGPPeer
  metadata: [
`)
	s.run("apply", "-f", file).want(t, 1, "",
		file+`:14: spec.peerIp: there is no such field here`,
		file+`:17: spec.password.secretKeyReff: there is no such field here`,
		file+`:20: kind = "Pigeon": must be one of `,
		file+`:26: spec.filters = "yes please": must be a list of texts`,
		file+`:29: `)
	s.run("get", "bgppeers").want(t, 0, "", "No bgppeers found.")
}

func TestOneRefusedObjectDoesNotBlockTheOthers(t *testing.T) {
	s, _ := newShell(t)
	invalid := strings.NewReplacer("tor-1", "tor-2", "192.0.2.1", "not-an-address").Replace(peer)
	s.pipe(invalid+"---\n"+peer, "apply", "-f", "-").want(t, 1, "bgppeer/tor-1 created\n", "standard input:7: ",
		"BGPPeer tor-2", "spec.peerIP", "not-an-address")
}

func TestPoolsMustNotOverlap(t *testing.T) {
	s, _ := newShell(t)
	pool := func(name, cidr string) string {
		return "apiVersion: projectcalico.org/v3\nkind: IPPool\nmetadata: {name: " + name + "}\nspec: {cidr: " + cidr +
			"}\n"
	}
	s.mustPipe(pool("a", "10.1.0.0/16"), "create", "-f", "-")
	for _, verb := range []string{"create", "apply"} {
		s.pipe(pool("b", "10.1.128.0/20"), verb, "-f", "-").want(t, 1, "", "IPPool b is invalid: spec.cidr",
			"overlaps IPPool a, which is 10.1.0.0/16")
	}
	s.pipe(pool("b", "10.2.0.0/16"), "create", "-f", "-").want(t, 0, "ippool/b created\n")
	s.pipe(pool("a", "10.1.0.0/16")+"  # the same again\n", "apply", "-f", "-").want(t, 0, "ippool/a unchanged\n")
}

func TestPeersNeedTheFiltersThatTheyName(t *testing.T) {
	s, _ := newShell(t)
	filter := "apiVersion: projectcalico.org/v3\nkind: BGPFilter\nmetadata: {name: out}\n"
	filtered := func(as string) string {
		return "apiVersion: projectcalico.org/v3\nkind: BGPPeer\nmetadata: {name: f}\n" +
			"spec: {peerIP: 192.0.2.7, asNumber: " + as + ", filters: [out]}\n"
	}
	for _, verb := range []string{"create", "apply"} {
		s.pipe(filtered("64512"), verb, "-f", "-").want(t, 1, "",
			`BGPPeer f is invalid: spec.filters[0] = "out": must be a BGPFilter that exists`)
	}
	s.pipe(filter+"---\n"+filtered("64512"), "apply", "-f", "-").want(t, 0,
		"bgpfilter/out created\nbgppeer/f created\n")
	s.must("delete", "bgpfilter", "out")
	s.pipe(filtered("64512"), "apply", "-f", "-").want(t, 0, "bgppeer/f unchanged\n")
	for _, verb := range []string{"replace", "apply"} {
		s.pipe(filtered("64513"), verb, "-f", "-").want(t, 1, "", `spec.filters[0] = "out"`)
	}
	s.pipe(strings.Replace(filtered("64513"), ", filters: [out]", "", 1), "apply", "-f", "-").want(t, 0,
		"bgppeer/f configured\n")
}

func TestWhatIsStoredButCannotBeUsedIsShown(t *testing.T) {
	s, server := newShell(t)
	s.mustPipe(peer, "create", "-f", "-")
	if _, err := server.Client(t).Put(context.Background(), strings.Replace(peerPath, "tor-1", "broken", 1),
		`{"kind":"BGPP`); err != nil {
		t.Fatal(err)
	}
	s.run("get", "bgppeers", "--no-headers").want(t, 0, "broken\ntor-1    192.0.2.1   (global)   64512\n",
		"Warning: BGPPeer broken is stored but not used: ")
	s.run("get", "bgppeer", "broken", "-o", "yaml").want(t, 1, "", "BGPPeer broken is stored but cannot be read: ")
	s.pipe(strings.Replace(peer, "tor-1", "broken", 1), "apply", "-f", "-").want(t, 0, "bgppeer/broken configured\n")
	s.run("get", "bgppeer", "broken", "--no-headers").want(t, 0, "broken   192.0.2.1   (global)   64512\n")
}

func TestDatastoreThatCannotBeReached(t *testing.T) {
	s := shell{t: t}
	s.run("get", "nodes", "--etcd-endpoints", "http://127.0.0.1:1").want(t, 1, "",
		"the datastore cannot be reached: http://127.0.0.1:1: dial tcp 127.0.0.1:1: connect: connection refused")
	s.run("get", "nodes", "--etcd-endpoints", "ftp://127.0.0.1:1").want(t, 1, "", `scheme "ftp": want http or https`)
}

func TestConnectionFromCalicoctlsFile(t *testing.T) {
	_, server := newShell(t)
	s := shell{t: t, env: []string{"ETCD_ENDPOINTS=http://127.0.0.1:1"}} // a file goes before the environment
	dir := t.TempDir()
	file := write(t, dir, "calicoctl.cfg", "apiVersion: projectcalico.org/v3\n"+
		"kind: CalicoAPIConfig\nmetadata:\nspec:\n  datastoreType: etcdv3\n  etcdEndpoints: "+server.Endpoint+"\n")
	s.run("get", "nodes", "-c", file).want(t, 0, "", "No nodes found.")
	bad := write(t, dir, "bad.cfg", "apiVersion: projectcalico.org/v3\nkind: CalicoAPIConfig\nspec:\n"+
		"  etcdEndpoint: x\n")
	s.run("get", "nodes", "-c", bad).want(t, 1, "", bad, `unknown field "etcdEndpoint"`)
	kube := write(t, dir, "kube.cfg", "apiVersion: projectcalico.org/v3\nkind: CalicoAPIConfig\nspec:\n"+
		"  datastoreType: kubernetes\n")
	s.run("get", "nodes", "-c", kube).want(t, 1, "", `no Kubernetes API is known`)
	s.run("get", "nodes", "-c", filepath.Join(dir, "missing.cfg")).want(t, 1, "", "missing.cfg: no such file")
}

func TestCompletionKnowsTheKinds(t *testing.T) {
	s := shell{t: t}
	if out := s.must("completion", "bash"); !strings.Contains(out, "__start_manxctl") {
		t.Error("completion bash prints no script")
	}
	if out := s.must("__complete", "get", "bgpp"); !strings.Contains(out, "bgppeers\n") {
		t.Errorf("completes get bgpp with %s", out)
	}
}

func write(t *testing.T, dir, name, text string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestWhatBelongsToKubernetesIsRefused(t *testing.T) {
	s, _ := newShell(t)
	const service = "---\napiVersion: v1\nkind: Service\nmetadata: {name: web, namespace: shop}\n" +
		"spec: {type: ClusterIP, clusterIP: 10.96.0.7, ports: [{port: 80}]}\n"
	for _, verb := range []string{"apply", "create", "replace"} {
		s.pipe(peer+service, verb, "-f", "-").want(t, 1, "", "Service shop/web: belongs to Kubernetes and is not "+
			"kept in Calico's datastore: use kubectl")
	}
	s.run("get", "bgppeer", "tor-1").want(t, 1, "", "does not exist") // nothing was written
	s.run("get", "svc", "web").want(t, 2, "", `kind "svc" belongs to Kubernetes`)
	s.pipe(service, "get", "-f", "-").want(t, 1, "", "belongs to Kubernetes")
	s.pipe(service, "delete", "-f", "-").want(t, 1, "", "belongs to Kubernetes")
}
