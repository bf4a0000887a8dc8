package main

import (
	"encoding/json"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/manxnet/manx/datastore/connect"
	"github.com/manxnet/manx/datastore/etcd"
	"github.com/manxnet/manx/datastore/etcd/embedded"
)

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

// A program that is killed in the middle of ADD undoes nothing; the runtime's DEL does.
func TestKilledAddIsCleanedUpByDel(t *testing.T) {
	h := newHost(t)
	for _, step := range []string{"bring the interface up", "write the WorkloadEndpoint", "print the result"} {
		p := h.pod("")
		plugin := h.direct()
		reached := make(chan struct{})
		plugin.beforeStep = func(s string) error {
			if s == step {
				close(reached)
				select {} // until the test kills it
			}
			return nil
		}
		go func() { _ = h.inNamespace(func() error { return plugin.funcs(false).Add(p.cmdArgs()) }) }()
		<-reached
		if left := h.leftovers(); left == "" {
			t.Errorf("%s: nothing to clean up", step)
		}
		other := h.direct()
		h.must(h.inNamespace(func() error { return other.funcs(false).Del(p.cmdArgs()) }))
		if left := h.leftovers(); left != "" {
			t.Errorf("%s: left behind:\n%s", step, left)
		}
	}
}
