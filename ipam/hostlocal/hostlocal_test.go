package hostlocal

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/manxnet/manx/datastore/model"
)

// put writes a file of host-local.
func put(t *testing.T, folder, name, content string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(folder, name), []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

// Entries that host-local does not write are named and left alone: links, pipes, folders, files that are too large or
// have no ID of a container. Its own state is none.
func TestReadRefusesForgedEntries(t *testing.T) {
	folder := t.TempDir()
	secret := filepath.Join(t.TempDir(), "secret")
	put(t, filepath.Dir(secret), "secret", "abc\r\neth0")
	put(t, folder, "lock", "")
	put(t, folder, "last_reserved_ip.0", "10.0.0.2")
	put(t, folder, "10.0.0.2", "abc\r\neth0")
	put(t, folder, "fd00::2", " abc ")
	want := map[string]string{
		"10.0.0.3": "symbolic link", "10.0.0.4": "folder", "10.0.0.5": "named pipe", "10.0.0.6": "more than 1024 bytes",
		"10.0.0.7": "no ID of a container", "10.0.0.8": "no ID of a container", "010.0.0.9": "no address",
		"note": "no address", "fd00:0::9": "no address",
	}
	for _, err := range []error{
		os.Symlink(secret, filepath.Join(folder, "10.0.0.3")), os.Mkdir(filepath.Join(folder, "10.0.0.4"), 0o700),
		syscall.Mkfifo(filepath.Join(folder, "10.0.0.5"), 0o600),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	put(t, folder, "10.0.0.6", strings.Repeat("a", 2000))
	put(t, folder, "10.0.0.7", "")
	put(t, folder, "10.0.0.8", "../x\r\neth0")
	for _, name := range []string{"010.0.0.9", "note", "fd00:0::9"} {
		put(t, folder, name, "abc")
	}
	c, err := Read(folder)
	if err != nil {
		t.Fatal(err)
	}
	if text := fmt.Sprint(c.Files); text != "[{10.0.0.2 abc eth0} {fd00::2 abc }]" {
		t.Errorf("files are %s", text)
	}
	for _, r := range c.Refused {
		if !strings.Contains(r.Why, want[r.Name]) {
			t.Errorf("%s: %s, want %q", r.Name, r.Why, want[r.Name])
		}
		delete(want, r.Name)
	}
	if len(want) > 0 {
		t.Errorf("not refused: %v", want)
	}
	if err := os.Chmod(folder, 0o777); err != nil {
		t.Fatal(err)
	}
	if _, err := Read(folder); err == nil || !strings.Contains(err.Error(), "everybody may write") {
		t.Errorf("a folder of everybody: %v", err)
	}
}

func block(t *testing.T, cidr, handle string, ordinal int) *model.Block {
	t.Helper()
	p := netip.MustParsePrefix(cidr)
	b := &model.Block{CIDR: p, Affinity: new("host:n2"), Allocations: make([]*int, 1<<(32-p.Bits())),
		Attributes: []model.BlockAttribute{{HandleID: &handle}}}
	b.Allocations[ordinal] = new(0)
	return b
}

// One file each: a pod's address, that of a pod which is gone, of no pool, of an assigned and of another's address.
func TestDecide(t *testing.T) {
	pods := &model.IPPool{Spec: model.IPPoolSpec{CIDR: "10.1.0.0/16", BlockSize: 26}}
	pods6 := &model.IPPool{Spec: model.IPPoolSpec{CIDR: "fd00::/48", BlockSize: 122}}
	web := &model.WorkloadEndpoint{Spec: model.WorkloadEndpointSpec{Node: "n1", Pod: "web"}}
	web.Namespace = "shop"
	f := facts{node: "n1", network: "net", podCIDRs: []string{"10.1.7.0/24", "fd00:0:0:7::/64"},
		pools: []*model.IPPool{pods, pods6},
		blocks: map[netip.Prefix]*model.Block{
			netip.MustParsePrefix("10.1.7.64/26"):  block(t, "10.1.7.64/26", "net.c3", 1),
			netip.MustParsePrefix("10.1.7.128/26"): block(t, "10.1.7.128/26", "net.foreign", 1),
		},
		pods: map[netip.Addr]*model.WorkloadEndpoint{netip.MustParseAddr("10.1.7.2"): web}, allPods: true}
	var c Content
	for id, addr := range []string{"10.1.7.2", "10.1.7.3", "10.2.0.1", "10.1.7.65", "10.1.7.129"} {
		c.Files = append(c.Files, File{Address: netip.MustParseAddr(addr), ContainerID: fmt.Sprint("c", id)})
	}
	c.Refused = []Refused{{"note", "its name is no address"}}
	want := `Found 5 steps to do, and 3 entries that stay.
  claim block 10.1.7.0/26 for node n1
    because: it is in the pod CIDR 10.1.7.0/24 of the node
  claim block 10.1.7.192/26 for node n1
    because: it is in the pod CIDR 10.1.7.0/24 of the node
  assign 10.1.7.2 to handle net.c0
    because: pod shop/web has it
  remove the file of 10.1.7.3
    because: no pod that runs on this node has the address
  remove the file of 10.1.7.65
    because: it is assigned to its container already
  keep "10.2.0.1": container c2 has it, and it lies in no enabled pool: create or enable an IPPool that contains it, and run this again
  keep "10.1.7.129": container c4 has it, and IPAM has assigned it to handle "net.foreign": delete one of the two pods, and run this again
  keep "note": its name is no address: remove it if it is not needed
`
	p := decide(c, f)
	if got := p.Text(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if !p.Kept[0].Unprotected || p.Kept[1].Unprotected || p.Kept[2].Unprotected {
		t.Errorf("kept: %+v", p.Kept)
	}
	f.allPods = false // as with etcd, which does not know all containers
	if p := decide(c, f); !slices.ContainsFunc(p.Steps, func(s Step) bool {
		return s.Do == "assign 10.1.7.3 to handle net.c1" && s.pod == ""
	}) {
		t.Errorf("without all pods:\n%s", p.Text())
	}
	if p := decide(Content{}, f); len(p.Steps) > 0 {
		t.Errorf("without files: %+v", p)
	}
}

// An upgrade waits for a host-local that holds its lock.
func TestLockIsThatOfHostLocal(t *testing.T) {
	folder := t.TempDir()
	f, err := os.Create(filepath.Join(folder, "lock"))
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 0)
	defer cancel()
	if unlock, err := lock(ctx, folder); err == nil {
		unlock()
		t.Error("the lock was free")
	}
	f.Close()
	unlock, err := lock(t.Context(), folder)
	if err != nil {
		t.Fatal(err)
	}
	unlock()
}
