package main_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/manxnet/manx/datastore/kubernetes/form"
	"github.com/manxnet/manx/integration/kubernetes/apiserver"
	"github.com/manxnet/manx/integration/ports"
	"github.com/manxnet/manx/integration/untar"
	manxv1 "github.com/manxnet/manx/proto/manx/v1"
)

// nodesWorld is a real API server, whose nodes n1 to n3 have a daemon behind a kubelet. The kubelet of n4 does not run,
// manxd does not run on n5, and n6 is in the hands of an attacker.
type nodesWorld struct {
	server  *apiserver.Server
	daemons map[string]*playedDaemon
	hostile *kubelet
	plugin  string // folder of kubectl-manx
}

func newNodesWorld(t *testing.T) *nodesWorld {
	t.Helper()
	w := &nodesWorld{server: apiserver.Start(t), daemons: map[string]*playedDaemon{}, hostile: &kubelet{},
		plugin: t.TempDir()}
	if err := os.Symlink(binary, filepath.Join(w.plugin, "kubectl-manx")); err != nil {
		t.Fatal(err)
	}
	w.server.AddUsers(t, "oncall", "reader", "sre")
	for _, name := range []string{"n1", "n2", "n3"} {
		s, d := newPlayedDaemon(t)
		w.daemons[name] = d
		port := startKubelet(t, &kubelet{run: manxctlOf(strings.TrimPrefix(s.env[0], "MANX_TEST_SOCKET="))})
		w.addNode(t, name, port, "manx-node", true)
	}
	w.addNode(t, "n4", int(ports.Free(t, "127.0.0.1")), "manx-node", true)
	w.addNode(t, "n5", int(ports.Free(t, "127.0.0.1")), "manx-node", false)
	w.addNode(t, "n6", startKubelet(t, w.hostile), "manx-node", true)
	w.addPod(t, "kube-system", "manx-node-0", "n1", "manx-node", false) // not yet, or no longer: n1 has another pod
	// A pod with the labels of manx-node, but of another owner, is none of it.
	w.addPod(t, "kube-system", "manx-node-fake", "n7", "another", true)
	w.daemons["n1"].change(func() {
		d := w.daemons["n1"]
		d.peers, d.status.Peers = d.peers[:1], map[string]uint32{"Established": 1}
	})
	w.daemons["n3"].change(func() {
		d := w.daemons["n3"]
		d.status.Ready, d.status.Checks = false, []*manxv1.Check{
			{Name: "datastore", Reason: "connection lost, the last state is kept: Unauthorized"}}
		d.status.Routes["failed"], d.peers = 3, d.peers[:1]
	})
	w.grant(t, "kube-system", "oncall", []map[string]any{
		{"apiGroups": []string{""}, "resources": []string{"pods"}, "verbs": []string{"get", "list"}},
		{"apiGroups": []string{""}, "resources": []string{"pods/exec"}, "verbs": []string{"create"}}})
	w.grant(t, "kube-system", "reader", []map[string]any{
		{"apiGroups": []string{""}, "resources": []string{"pods"}, "verbs": []string{"get", "list"}}})
	w.grant(t, "default", "oncall", []map[string]any{
		{"apiGroups": []string{""}, "resources": []string{"pods"}, "verbs": []string{"get"}}})
	return w
}

func (w *nodesWorld) grant(t *testing.T, namespace, user string, rules []map[string]any) {
	t.Helper()
	path := "/apis/rbac.authorization.k8s.io/v1/namespaces/" + namespace
	w.server.Request(t, http.MethodPost, path+"/roles", map[string]any{"metadata": map[string]any{"name": user},
		"rules": rules})
	w.server.Request(t, http.MethodPost, path+"/rolebindings", map[string]any{"metadata": map[string]any{"name": user},
		"roleRef":  map[string]any{"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": user},
		"subjects": []any{map[string]any{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}}})
}

func (w *nodesWorld) addNode(t *testing.T, name string, port int, owner string, runs bool) {
	t.Helper()
	w.server.Request(t, http.MethodPost, "/api/v1/nodes", map[string]any{"metadata": map[string]any{"name": name}})
	w.server.Request(t, http.MethodPatch, "/api/v1/nodes/"+name+"/status", map[string]any{"status": map[string]any{
		"addresses":       []any{map[string]any{"type": "InternalIP", "address": "127.0.0.1"}},
		"daemonEndpoints": map[string]any{"kubeletEndpoint": map[string]any{"Port": port}}}})
	w.addPod(t, "kube-system", "manx-node-"+name, name, owner, runs)
}

func (w *nodesWorld) addPod(t *testing.T, namespace, name, node, owner string, runs bool) {
	t.Helper()
	path := "/api/v1/namespaces/" + namespace + "/pods"
	w.server.Request(t, http.MethodPost, path, map[string]any{
		"metadata": map[string]any{"name": name, "labels": map[string]string{"k8s-app": "manx-node"},
			"ownerReferences": []any{map[string]any{"apiVersion": "apps/v1", "kind": "DaemonSet", "name": owner,
				"uid": "u", "controller": true}}},
		"spec": map[string]any{"nodeName": node, "containers": []any{map[string]any{"name": "manxd", "image": "i"}}}})
	state := map[string]any{"running": map[string]any{}}
	if !runs {
		state = map[string]any{"waiting": map[string]any{"reason": "CrashLoopBackOff"}}
	}
	w.server.Request(t, http.MethodPatch, path+"/"+name+"/status", map[string]any{"status": map[string]any{
		"phase": "Running", "containerStatuses": []any{map[string]any{"name": "manxd", "image": "i", "imageID": "",
			"ready": runs, "restartCount": 0, "state": state}}}})
}

// kubectl runs "kubectl manx ..." as a user of the cluster.
func (w *nodesWorld) kubectl(t *testing.T, user string, args ...string) result {
	t.Helper()
	s := shell{t, []string{"KUBECONFIG=/nowhere/config:" + w.server.Kubeconfig(t, user),
		"PATH=" + w.plugin + ":" + os.Getenv("PATH")}}
	return s.program(filepath.Join(apiserver.Programs(), "kubectl"), "", append([]string{"manx"}, args...)...)
}

// row expects a line of the output, whatever the widths of its columns and the ages.
func row(t *testing.T, r result, want string) {
	t.Helper()
	for line := range strings.Lines(r.out) {
		if ages.ReplaceAllString(strings.Join(strings.Fields(line), " "), "AGE") == want {
			return
		}
	}
	t.Errorf("no line %q in (exit code %d)\n%s%s", want, r.code, r.out, r.err)
}

const absentN5 = "manxd does not run in pod manx-node-n5: CrashLoopBackOff"

// TestNodesOfACluster is "kubectl manx" on a laptop: the real kubectl and manxctl, a real API server with RBAC, and
// kubelets that run manxctl beside daemons.
func TestNodesOfACluster(t *testing.T) {
	t.Parallel()
	w := newNodesWorld(t)
	w.hostile.does(nil, func(w http.ResponseWriter) { w.WriteHeader(http.StatusBadGateway) })

	t.Run("diags", func(t *testing.T) {
		for _, name := range []string{"n1", "n2", "n3"} {
			go func() { <-w.daemons[name].routeRequests; <-w.daemons[name].peerRouteRequests }()
		}
		file := filepath.Join(t.TempDir(), "all.tar.gz")
		r := w.kubectl(t, "oncall", "diags", "-o", file)
		packed, err := os.ReadFile(file)
		if err != nil || r.code != 4 || r.out != "" || !strings.Contains(r.err, "n5: "+absentN5) {
			t.Fatalf("exit code %d, %v\n%s%s", r.code, err, r.out, r.err)
		}
		files := untar.Files[string](t, packed)
		for _, name := range []string{"n1", "n2", "n3"} {
			of := untar.Files[string](t, []byte(files["manx-diags/"+name+".tar.gz"]))
			if !strings.Contains(of["manx-diags/status.json"], `"node": "node-1"`) {
				t.Errorf("no status of %s in %v", name, of)
			}
		}
		if !strings.Contains(files["manx-diags/n5.error"], absentN5) || len(files) != 6 {
			t.Errorf("files are %d, and of n5 %q", len(files), files["manx-diags/n5.error"])
		}
	})
	t.Run("status", func(t *testing.T) {
		r := w.kubectl(t, "oncall", "status")
		row(t, r, "NODE VERSION READY BGP ROUTES POLICY NOTICES")
		row(t, r, "n1 v1.0.0 yes 1/1 12 applied, 1 blocked off 1")
		row(t, r, "n2 v1.0.0 yes 1/4 (!) 12 applied, 1 blocked off 1")
		row(t, r, "n3 v1.0.0 NO 1/4 (!) 12 applied, 1 blocked, 3 failed off 1")
		row(t, r, "n4 - unknown - - - -")
		row(t, r, "n5 - unknown - - - -")
		row(t, r, "n2: tor-1 192.0.2.1:1179 down for AGE: connection refused by 192.0.2.1: "+
			"nothing listens on port 1179")
		row(t, r, "n3: datastore: connection lost, the last state is kept: Unauthorized")
		row(t, r, "n3: 3 routes failed: see kubectl manx routes --phase failed --node n3")
		row(t, r, "n3: BGPPeer/tor-2: spec.password is missing")
		row(t, r, "n5: "+absentN5)
		if !regexp.MustCompile(`(?m)^n4: .*connection refused$`).MatchString(r.out) || strings.Contains(r.out, "n7") {
			t.Errorf("want the reason of n4, and no n7:\n%s", r.out)
		}
		if r.code != 4 || r.err != "" {
			t.Errorf("exit code %d, %s", r.code, r.err)
		}
		row(t, w.kubectl(t, "oncall", "status", "--node", "n1"), "Health: ok")
		w.kubectl(t, "oncall", "status", "--node", "n1", "-o", "json").wantNode(t, "n1")
		if r := w.kubectl(t, "oncall", "status", "--node", "n3"); r.code != 4 {
			t.Errorf("status of n3: exit code %d\n%s%s", r.code, r.out, r.err)
		}
		w.kubectl(t, "oncall", "status", "--node", "n9").want(t, 1, "", `no pod of manx-node runs on node "n9"`)
	})

	t.Run("headings of the pages", func(t *testing.T) {
		shown := map[string]string{}
		for _, page := range []string{"quickstart.md", "kubectl-manx.md"} {
			text, err := os.ReadFile("../../docs/" + page)
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range regexp.MustCompile(`(?m)^\$ kubectl manx (status|peers)\b.*\n(NODE .*)$`).FindAllStringSubmatch(
				string(text), -1) {
				shown[strings.Join(strings.Fields(m[2]), " ")] = m[1]
			}
		}
		if len(shown) != 2 {
			t.Errorf("the pages show %q, want a heading for each of two commands", shown)
		}
		for heading, command := range shown {
			row(t, w.kubectl(t, "oncall", command), heading)
		}
	})

	t.Run("status as data", func(t *testing.T) {
		r := w.kubectl(t, "oncall", "status", "-o", "json")
		var data struct {
			Nodes []struct {
				Node                     string
				Answered, Healthy, Ready bool
				Troubles                 []string
			}
		}
		if err := json.Unmarshal([]byte(r.out), &data); err != nil || len(data.Nodes) != 6 {
			t.Fatalf("%v: %s%s", err, r.out, r.err)
		}
		if n := data.Nodes; !n[0].Healthy || !n[1].Healthy || n[2].Ready || !n[2].Answered || n[4].Answered ||
			n[4].Troubles[0] != absentN5 {
			t.Errorf("%+v", data)
		}
	})

	t.Run("peers", func(t *testing.T) {
		r := w.kubectl(t, "oncall", "peers", "--down")
		row(t, r, "n2 192.0.2.1:1179 global 64513 Failed AGE 0 0 0 connection refused by 192.0.2.1: nothing listens "+
			"on port 1179")
		row(t, r, "n5 - - - unknown - - - - "+absentN5)
		if strings.Contains(r.out, "10.0.0.2 ") || r.code != 4 {
			t.Errorf("exit code %d\n%s%s", r.code, r.out, r.err)
		}
		row(t, w.kubectl(t, "oncall", "get", "peers", "10.0.0.2"),
			"n1 10.0.0.2 mesh 64512 Established AGE 1 3 2 routes are exchanged")
		r = w.kubectl(t, "oncall", "peers", "-o", "wide")
		row(t, r, "n2 192.0.2.1:1179 global 64513 Failed AGE 0 0 0 64512 Active - - - - BGPPeer/tor-1 connection "+
			"refused by 192.0.2.1: nothing listens on port 1179")
		row(t, r, "n5 - - - unknown - - - - - - - - - - - "+absentN5)
		w.kubectl(t, "oncall", "peers", "--node", "n1", "--down").want(t, 0, "No peers found.\n")
		if r := w.kubectl(t, "oncall", "peers", "-o", "json", "--node", "n2", "--down"); r.code != 4 ||
			strings.Count(r.out, `"address"`) != 2 {
			t.Errorf("exit code %d\n%s%s", r.code, r.out, r.err)
		}
	})

	t.Run("passed on", func(t *testing.T) {
		r := w.kubectl(t, "oncall", "routes", "--node=n2", "--phase=failed,blocked", "--within", "10.65.0.0/16")
		q := <-w.daemons["n2"].routeRequests
		if r.code != 0 || !strings.Contains(r.out, "operation not permitted") || len(q.GetPhases()) != 2 ||
			q.GetWithin() != "10.65.0.0/16" {
			t.Errorf("requested %v, exit code %d\n%s%s", q, r.code, r.out, r.err)
		}
		w.kubectl(t, "oncall", "routes").want(t, 2, "", "name a node with --node, or all with --all-nodes")
		w.kubectl(t, "oncall", "resync").want(t, 2, "", "name a node with --node\n")
		w.kubectl(t, "oncall", "resync", "-A").want(t, 2, "", "unknown shorthand flag: 'A'", "See 'kubectl manx resync")
		w.kubectl(t, "oncall", "get", "policies").want(t, 2, "", "does not run this command on nodes")
		row(t, w.kubectl(t, "oncall", "history", "peer", "tor-1"), "2026-03-04T06:06:07Z 192.0.2.1 Established Failed "+
			"1h0m 1 kept Down the connection was lost")
		described := w.kubectl(t, "oncall", "describe", "peer", "192.0.2.1")
		if described.code != 4 || !strings.Contains(described.out, "n2:\n  Session with 192.0.2.1:1179\n") ||
			!strings.Contains(described.out, "n1, n3: there is no session with 192.0.2.1") {
			t.Errorf("exit code %d\n%s%s", described.code, described.out, described.err)
		}
		drops := w.kubectl(t, "oncall", "drops", "--node", "n1", "-o", "json", "--port=80")
		if q := <-w.daemons["n1"].dropRequests; q.GetPort() != 80 || drops.code != 0 ||
			strings.Count(drops.out, `{"node":"n1","drop":{`) != 2 {
			t.Errorf("requested %v, exit code %d\n%s%s", q, drops.code, drops.out, drops.err)
		}
		drops = w.kubectl(t, "oncall", "drops")
		for _, name := range []string{"n1", "n2", "n3"} {
			if strings.Count(drops.out, "\n"+name+"  ")+strings.Count(drops.out[:4], name+"  ") != 2 {
				t.Errorf("want two drops of %s:\n%s", name, drops.out)
			}
		}
		if drops.code != 4 || !strings.Contains(drops.err, "n5: "+absentN5) {
			t.Errorf("exit code %d\n%s%s", drops.code, drops.out, drops.err)
		}
	})

	t.Run("explain finds the node", func(t *testing.T) {
		w.addPod(t, "default", "web", "n2", "web", true)
		w.addPod(t, "default", "db", "n5", "db", true)
		r := w.kubectl(t, "oncall", "explain", "hep/x", "default/web", "tcp/80")
		if r.code != 0 || r.err != "On node n2:\n" || !strings.Contains(r.out, "ALLOWED by NetworkPolicy/shop/web") {
			t.Errorf("%+v", r)
		}
		w.kubectl(t, "oncall", "explain", "default/db", "default/web", "tcp/80").want(t, 4, "",
			"On node n5:\nError: n5: "+absentN5)
		w.kubectl(t, "oncall", "explain", "default/nobody", "hep/x").want(t, 2, "", "name the node that explains")
		w.kubectl(t, "oncall", "explain", "shop/web", "hep/x").want(t, 1, "", "forbidden", "--node")
	})

	t.Run("without the right to exec", func(t *testing.T) {
		w.kubectl(t, "reader", "status").want(t, 1, "", `User "reader" cannot create resource "pods/exec"`,
			"they need the right to create pods/exec there")
		w.kubectl(t, "reader", "status", "--manx-namespace", "default").want(t, 1, "", "cannot list resource")
	})
	t.Run("hostile node", func(t *testing.T) { testHostileNode(t, w) })
	t.Run("datastore", func(t *testing.T) { testPluginDatastore(t, w) })
	t.Run("describe", func(t *testing.T) { testPluginDescribe(t, w) })
	t.Run("plan", func(t *testing.T) { testPluginPlan(t, w) })
}

func (r result) wantNode(t *testing.T, name string) {
	t.Helper()
	var s struct{ TroubledSessions, NoticeList []any }
	if err := json.Unmarshal([]byte(r.out), &s); err != nil || r.code != 0 || len(s.NoticeList) != 1 {
		t.Errorf("%s: %v, exit code %d\n%s%s", name, err, r.code, r.out, r.err)
	}
}

// testHostileNode: whatever a node returns, the others are shown, and the terminal and the memory are safe.
func testHostileNode(t *testing.T, w *nodesWorld) {
	endless := bytes.Repeat([]byte("x"), 1<<20)
	flood := func(to io.Writer) {
		for range 200 {
			if _, err := to.Write(endless); err != nil {
				return
			}
		}
	}
	silent := make(chan struct{})
	t.Cleanup(func() { close(silent) })
	for name, c := range map[string]struct {
		run     func(execution)
		instead func(http.ResponseWriter)
		want    string // in the line of n6
	}{
		"escapes": {run: func(e execution) {
			_, _ = io.WriteString(e.stdout, `{"ready":true,"version":{"manx":"v9\u001b[2J\u009b2J\u202e"},"noticeList":[`+
				`{"subject":"a\nn1: forged","text":"\u001b]0;title\u0007`+strings.Repeat("y", 5000)+`"}]}`)
			e.end(0)
		}, want: "n6: a n1: forged: ]0;title yyyy"},
		"no JSON": {run: func(e execution) {
			_, _ = io.WriteString(e.stdout, "\x1b[31mhello")
			e.end(0)
		}, want: "n6: its answer cannot be read: "},
		"another version": {run: func(e execution) {
			_, _ = io.WriteString(e.stdout, `{"ready":true,"version":"v2","peers":7,"new":{}}`)
			e.end(0)
		}, want: "n6 - yes 0/0 0 applied off -"},
		"too much output": {run: func(e execution) { flood(e.stdout) },
			want: "n6: its answer (stdout) has more than 8388608 bytes: it is not read further"},
		"too long an error": {run: func(e execution) { flood(e.error) },
			want: "n6: its answer (error) has more than 65536 bytes: it is not read further"},
		"a refusal of its own": {instead: func(w http.ResponseWriter) {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusForbidden)
			_, _ = io.WriteString(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden",`+
				`"code":403,"message":"go\u001b[2J away"}`)
		}, want: "n6: go [2J away"},
		"silence": {instead: func(http.ResponseWriter) { <-silent }, want: "n6: no answer within 6s from its kubelet"},
	} {
		t.Run(name, func(t *testing.T) {
			w.hostile.does(c.run, c.instead)
			r := w.kubectl(t, "oncall", "status", "--node-timeout=6s")
			row(t, r, "n1 v1.0.0 yes 1/1 12 applied, 1 blocked off 1")
			found := false
			for line := range strings.Lines(r.out) {
				found = found || strings.HasPrefix(strings.Join(strings.Fields(line), " "), c.want)
				if len(line) > 1000 {
					t.Errorf("a line of %d characters", len(line))
				}
			}
			if !found || r.code != 4 {
				t.Errorf("exit code %d, want a line %q\n%s%s", r.code, c.want, r.out, r.err)
			}
			if strings.ContainsAny(r.out+r.err, "\x1b\u009b\u202e\a\r") {
				t.Errorf("the output has control characters: %q", r.out+r.err)
			}
		})
	}
	w.hostile.does(func(e execution) {
		_, _ = io.WriteString(e.stdout, "\x1b[2Jroutes\nn1:\n")
		_, _ = io.WriteString(e.stderr, "\x1b[2Joh")
		e.end(3)
	}, nil)
	w.kubectl(t, "oncall", "routes", "--node=n6").want(t, 3, " [2Jroutes\nn1:\n", " [2Joh")
	w.hostile.does(nil, func(w http.ResponseWriter) { w.WriteHeader(http.StatusBadGateway) })
}

// testPluginDatastore: objects are those of the kubeconfig's cluster, in the namespace of its context.
func testPluginDatastore(t *testing.T, w *nodesWorld) {
	w.server.InstallCRDs(t, form.V1, "networkpolicies", "tiers", "ippools", "globalnetworkpolicies")
	home := t.TempDir()
	content, err := os.ReadFile(w.server.Kubeconfig(t, apiserver.Admin))
	if err == nil {
		err = os.MkdirAll(filepath.Join(home, ".kube"), 0o700)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(home, ".kube", "config"), content, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	s := shell{t, []string{"HOME=" + home, "PATH=" + w.plugin + ":" + os.Getenv("PATH")}}
	kubectl := filepath.Join(apiserver.Programs(), "kubectl")
	s.program(kubectl, "", "create", "namespace", "shop").want(t, 0, "namespace/shop created\n")
	s.program(kubectl, "", "config", "set-context", "test", "--namespace=shop").want(t, 0,
		"Context \"test\" modified.\n")
	policy := "apiVersion: projectcalico.org/v3\nkind: NetworkPolicy\nmetadata: {name: web}\nspec: {selector: all()}\n"
	s.program(kubectl, policy, "manx", "apply", "-f", "-").want(t, 0, "networkpolicy/web created\n")
	if r := s.program(kubectl, "", "manx", "get", "networkpolicies", "-A"); !regexp.MustCompile(
		`(?m)^shop +web +default$`).MatchString(r.out) {
		t.Errorf("%+v", r)
	}
	s.program(kubectl, "", "manx", "drain", "n1", "--no-wait").want(t, 0, "node n1 is to be drained\n")
	if raw := w.server.Request(t, http.MethodGet, "/api/v1/nodes/n1", nil); !strings.Contains(string(raw), "drain") {
		t.Errorf("the Node is %s", raw)
	}
	if help := s.program(kubectl, "", "manx", "peers", "--help"); help.code != 0 ||
		strings.Contains(help.out, "manxctl") ||
		!strings.Contains(help.out, "kubectl manx peers [ADDRESS|NAME...] [flags]") {
		t.Errorf("%+v", help)
	}
	if _, err := os.Stat("/run/manx"); err == nil {
		return // a manxd of this host is asked
	}
	if r := s.run("status"); r.code != 4 || !strings.Contains(r.out, fmt.Sprintf("n5: %s", absentN5)) {
		t.Errorf("manxctl with a kubeconfig and without a daemon: %+v", r)
	}
	s.run("status", "--node=n1", "--socket=/x").want(t, 2, "", "do not go with --socket")
	s.run("status", "--socket=/x").want(t, 4, "", "manxd cannot be reached at /x")
}
