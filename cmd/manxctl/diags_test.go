package main_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/manxnet/manx/integration/untar"
)

// TestDiags: what is missing is a file that says so, what looks like a password in the daemon's words is hidden, and
// nothing of the caller's own credentials is there.
func TestDiags(t *testing.T) {
	t.Parallel()
	s, d := newPlayedDaemon(t)
	const secret = "hunter2"
	d.change(func() { d.peers[1].Reason = "GET https://root:" + secret + "@10.0.0.9/: refused" })
	dir := t.TempDir()
	kubeconfig := filepath.Join(dir, "kubeconfig")
	if err := os.WriteFile(kubeconfig, []byte("users: [{name: u, user: {token: "+secret+"}}]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s.env = append(s.env, "ETCD_PASSWORD="+secret, "ETCD_ENDPOINTS=https://root:"+secret+"@10.0.0.9:2379",
		"K8S_API_TOKEN="+secret, "KUBECONFIG="+kubeconfig)
	name := filepath.Join(dir, "n.tar.gz")
	go func() { <-d.routeRequests; <-d.peerRouteRequests }()
	r := s.runWithDaemon("diags", "-o", name)
	if r.code != 0 || r.out != "" || !strings.Contains(r.err, "ipam-releases.json is missing: ") {
		t.Errorf("exit code %d\n%s%s", r.code, r.out, r.err)
	}
	st, err := os.Stat(name)
	if err != nil || st.Mode() != 0o600 {
		t.Fatalf("mode %v, %v", st.Mode(), err)
	}
	packed, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	files := untar.Files[string](t, packed)
	for part, want := range map[string]string{"status.json": `"node": "node-1"`,
		"peers.json":   "https://(hidden)@10.0.0.9/",
		"history.json": "Established", "ipam-releases.json.error": "takes no part in the controllers",
		"versions.json": `"client"`,
		"notices.json":  "BGPPeer/tor-2", "addresses.json": "docker0", "routes-rejected.json": "172.16.0.0/12"} {
		if !strings.Contains(files["manx-diags/"+part], want) {
			t.Errorf("%s lacks %q: %s", part, want, files["manx-diags/"+part])
		}
	}
	for part, text := range files {
		if strings.Contains(text, secret) {
			t.Errorf("%s has a secret", part)
		}
	}

	// Very many routes would need the memory of manxd's container.
	d.change(func() { d.status.Routes["applied"], d.peers[0].Prefixes.Received = 200_000, 300_000 })
	r = s.runWithDaemon("diags", "-o", filepath.Join(dir, "many.tar.gz"))
	if r.code != 0 || !strings.Contains(r.err, "routes.json is missing: 200001 routes are too many") ||
		!strings.Contains(r.err, "routes-rejected.json is missing: 300000 routes of peers are too many") {
		t.Errorf("exit code %d\n%s", r.code, r.err)
	}

	// Without a daemon there is the kernel's part alone. A line says which part is missing, the archive has all of why.
	long := filepath.Join(dir, "bin")
	script := "#!/bin/sh\nhead -c 100000 /dev/zero | tr '\\0' x >&2\nprintf '\\033[2J\\nforged' >&2\nexit 1\n"
	if err := errors.Join(os.Mkdir(long, 0o700), os.WriteFile(filepath.Join(long, "nft"), []byte(script),
		0o700)); err != nil { //nolint:gosec // a program
		t.Fatal(err)
	}
	none := shell{t: t, env: []string{"PATH=" + long + ":" + os.Getenv("PATH")}}
	r = none.run("diags", "--socket", filepath.Join(dir, "nowhere"), "-o", filepath.Join(dir, "kernel.tar.gz"))
	if packed, err = os.ReadFile(filepath.Join(dir, "kernel.tar.gz")); err != nil {
		t.Fatal(err)
	}
	files = untar.Files[string](t, packed)
	if len(r.err) > 20_000 || strings.Contains(r.err, "\x1b") || strings.Contains(r.err, "\nforged") ||
		len(files["manx-diags/kernel/nft-table.txt.error"]) < 100_000 {
		t.Errorf("a program with much to say: %.1000q, %d bytes", r.err, len(r.err))
	}
	if !strings.Contains(files["manx-diags/status.json.error"], "there is no such socket") ||
		!strings.Contains(files["manx-diags/kernel/ip-addr.txt"], "127.0.0.1") {
		t.Errorf("without a daemon: %v", files)
	}
}

// TestDiagsFile: a file that exists stays as it is, and a link is not followed.
func TestDiagsFile(t *testing.T) {
	t.Parallel()
	s := shell{t: t, env: []string{"MANX_TEST_SOCKET=/nowhere/manxd.sock"}}
	dir := t.TempDir()
	there, link, target := filepath.Join(dir, "there"), filepath.Join(dir, "link"), filepath.Join(dir, "target")
	if err := errors.Join(os.WriteFile(there, []byte("precious"), 0o600), os.Symlink(target, link)); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{there, link} {
		s.runWithDaemon("diags", "-o", name).want(t, 1, "", name+" exists, and is not overwritten")
	}
	if text, err := os.ReadFile(there); err != nil || string(text) != "precious" {
		t.Errorf("%q, %v", text, err)
	}
	if _, err := os.Lstat(target); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the target of the link: %v", err)
	}
	if r := s.program("sh", "", "-c", binary+" diags -o - --socket=/nowhere/manxd.sock >/dev/null"); r.code != 0 {
		t.Errorf("to /dev/null, which is no terminal: exit code %d\n%s", r.code, r.err)
	}
	s.runWithDaemon("diags").want(t, 2, "", "name the file to write with -o FILE.tar.gz")
}
