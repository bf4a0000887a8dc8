package main

import (
	"encoding/json"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/manxnet/manx/datastore/connect"
	"github.com/manxnet/manx/datastore/etcd"
	"github.com/manxnet/manx/datastore/etcd/embedded"
	"github.com/manxnet/manx/datastore/model"
)

func TestHostInterfaceNames(t *testing.T) {
	for _, c := range []struct {
		w      workload
		prefix string
		want   string
	}{
		{workload{Namespace: "default", Pod: "mypod"}, "cali", "cali4e199eba087"},
		{workload{Namespace: "namespace", Pod: "podname"}, "cali", "cali82111e10a96"},
		{workload{Namespace: "default", Pod: "nginx"}, "cali", "calic440f455693"},
		{workload{ContainerID: "136a7bfc8f26f8aeb23fd44181eb"}, "cali", "cali136a7bfc8f2"},
		{workload{ContainerID: "short"}, "tap", "tapshort"},
	} {
		if have := c.w.hostIf(c.prefix); have != c.want {
			t.Errorf("%+v: %s, want %s", c.w, have, c.want)
		}
	}
}

func TestNodeName(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "nodename")
	if err := os.WriteFile(file, []byte("Node-1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	host, _ := os.Hostname()
	for name, c := range map[string]struct {
		conf netConf
		want string
		code uint
	}{
		"nodename wins":                    {conf: netConf{Nodename: "a", NodenameFile: file}, want: "a"},
		"file, without line end":           {conf: netConf{NodenameFile: file, Hostname: "b"}, want: "Node-1"},
		"missing file must be waited for":  {conf: netConf{NodenameFile: dir + "/no", Hostname: "b"}, code: types.ErrTryAgainLater},
		"optional file, then hostname":     {conf: netConf{NodenameFile: dir + "/no", NodenameFileOptional: true, Hostname: "b"}, want: "b"},
		"optional file, then the system's": {conf: netConf{NodenameFile: dir + "/no", NodenameFileOptional: true}, want: strings.ToLower(host)},
	} {
		have, err := c.conf.nodeName()
		var coded *types.Error
		if have != c.want || (err != nil) != (c.code != 0) || errors.As(err, &coded) && coded.Code != c.code {
			t.Errorf("%s: %q, %v; want %q, code %d", name, have, err, c.want, c.code)
		}
	}
}

func TestMTU(t *testing.T) {
	dir := t.TempDir()
	for name, content := range map[string]string{"good": " 1430\n", "bad": "big", "negative": "-1"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		conf netConf
		file string
		want int
		err  string
	}{
		{netConf{MTU: 1500}, "good", 1500, ""},
		{netConf{}, "good", 1430, ""},
		{netConf{}, "missing", 0, ""},
		{netConf{RequireMTUFile: true}, "missing", 0, "not known yet"},
		{netConf{}, "bad", 0, "must be a number"},
		{netConf{}, "negative", 0, "must be a number"},
	} {
		have, err := c.conf.mtu(filepath.Join(dir, c.file))
		if have != c.want || (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%+v %s: %d, %v", c.conf, c.file, have, err)
		}
	}
}

func TestEndpointKeepsWhatOthersWrote(t *testing.T) {
	old := &model.WorkloadEndpoint{}
	old.UID, old.Labels = "u", map[string]string{"app": "web"}
	old.Spec.Profiles, old.Spec.ServiceAccountName = []string{"kns.shop"}, "robot"
	w := workload{Network: "net1", Node: "n", ContainerID: "c", IfName: "eth0", Namespace: "shop", Pod: "web-0"}
	e := w.endpoint(old, "cali1", []byte{2, 0, 0, 0, 0, 1}, []netip.Addr{netip.MustParseAddr("10.0.0.1")})
	if e.UID != "u" || e.Labels["app"] != "web" || e.Labels[model.LabelOrchestrator] != "k8s" || e.Spec.ServiceAccountName != "robot" ||
		strings.Join(e.Spec.Profiles, ",") != "kns.shop,net1" || e.Spec.ContainerID != "c" {
		t.Errorf("endpoint is %+v", e)
	}
	if len(old.Spec.Profiles) != 1 || len(old.Labels) != 1 {
		t.Errorf("the stored one was changed: %+v", old)
	}
}

func TestEnvironmentNamesTheServers(t *testing.T) {
	h := newHost(t)
	endpoint := h.conf["etcd_endpoints"]
	delete(h.conf, "etcd_endpoints")
	log := filepath.Join(h.dir, "log", "cni.log")
	h.conf["log_file_path"], h.conf["log_level"] = log, "debug"
	t.Setenv("ETCD_ENDPOINTS", endpoint.(string))
	p := h.pod("").mustAdd()
	h.must(p.del())
	t.Setenv("FELIX_INTERFACEPREFIX", "mx,cali")
	p = h.pod("").mustAdd()
	if name := p.result.Interfaces[0].Name; name != "mx"+p.id[:11] {
		t.Errorf("host interface is %s", name)
	}
	h.must(p.del())
	content, err := os.ReadFile(log)
	h.must(err)
	for line := range strings.Lines(string(content)) {
		if !json.Valid([]byte(line)) {
			t.Errorf("log line %q is no JSON", line)
		}
	}
	if !strings.Contains(string(content), `"msg":"attached"`) || !strings.Contains(string(content), p.id) {
		t.Errorf("log is %s", content)
	}
}

// A configuration without etcd_endpoints uses the datastore of the local manxd.
func TestFindsTheLocalDatastore(t *testing.T) {
	h := newHost(t)
	delete(h.conf, "etcd_endpoints")
	h.must(connect.WriteLocal(h.dir, connect.Settings{Etcd: etcd.Config{Endpoints: []string{"unix://" +
		filepath.Join(h.etcd.DataDir, embedded.SocketName)}}}))
	p := h.pod("").mustAdd()
	h.must(p.del())
	empty := filepath.Join(h.dir, "empty")
	h.write("empty", "\n")
	h.conf["etcd_endpoints"], h.conf["etcd_username"], h.conf["etcd_password_file"] = "http://127.0.0.1:1", "u", empty
	if err := h.pod("").add(); err == nil || !strings.Contains(err.Error(), empty+" is empty") {
		t.Errorf("with an empty password file: %v", err)
	}
}

func TestManyAtOnceGetDifferentAddresses(t *testing.T) {
	h := newHost(t)
	var pods []*pod
	for range 12 {
		pods = append(pods, h.pod(""))
	}
	pods[0].configure()
	errs := make(chan error)
	for _, p := range pods {
		go func() { errs <- p.addNow() }()
	}
	for range pods {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	seen := map[netip.Addr]bool{}
	for _, p := range pods {
		if p.result != nil {
			seen[p.addrs()[0]] = true
		}
	}
	if len(seen) != len(pods) {
		t.Errorf("%d containers have %d addresses", len(pods), len(seen))
	}
	var wg sync.WaitGroup
	for _, p := range pods {
		wg.Go(func() { _, err := p.run("del"); errsTo(t, err) })
	}
	wg.Wait()
	if left := h.leftovers(); left != "" {
		t.Errorf("left behind:\n%s", left)
	}
}

func errsTo(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Error(err)
	}
}

// A program that is killed in the middle of ADD cannot take anything back; the DEL of the runtime must.
func TestKilledAddIsCleanedUpByDel(t *testing.T) {
	h := newHost(t)
	for _, step := range []string{"bring the interface up", "write the WorkloadEndpoint", "print the result"} {
		p := h.pod("")
		plugin := h.direct()
		reached := make(chan struct{})
		plugin.beforeStep = func(s string) error {
			if s == step {
				close(reached)
				select {} // as good as dead
			}
			return nil
		}
		go func() { _ = h.inside(func() error { return plugin.funcs(false).Add(p.cmdArgs()) }) }()
		<-reached
		if left := h.leftovers(); left == "" {
			t.Errorf("%s: nothing to clean up", step)
		}
		other := h.direct()
		h.must(h.inside(func() error { return other.funcs(false).Del(p.cmdArgs()) }))
		if left := h.leftovers(); left != "" {
			t.Errorf("%s: left behind:\n%s", step, left)
		}
	}
}
