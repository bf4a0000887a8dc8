package mtufile

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/manxnet/manx/dataplane/hoststate"
	"github.com/manxnet/manx/dataplane/kernel"
	"github.com/manxnet/manx/dataplane/kernel/kerneltest"
)

// The file follows the tunnels and the interfaces, and comes back when another program changes it.
func TestFile(t *testing.T) {
	f := kerneltest.New()
	l := kernel.Link{Index: 2, Name: "eth0", MTU: 1500, Up: true}
	f.PutLink(l)
	file := filepath.Join(t.TempDir(), "calico", "mtu")
	target := New(f, file, time.Now)
	h := hoststate.New("n1", nil)
	step := func(when, want string, ipip bool) {
		t.Helper()
		h.Concerned, h.Felix.IPIPEnabled = true, &ipip
		target.SetState(h)
		if _, failures, err := target.Flush(); failures > 0 || err != nil {
			t.Fatal(failures, err)
		}
		if mtu, err := os.ReadFile(file); string(mtu) != want || err != nil {
			t.Errorf("%s: %q %v, want %s", when, mtu, err, want)
		}
	}
	step("with IPIP", "1480", true)
	step("without IPIP", "1500", false)
	l.MTU = 1400
	target.Handle([]kernel.Event{{Type: kernel.EventLink, Link: l}})
	step("another MTU of the uplink", "1400", false)
	if err := os.WriteFile(file, []byte("9000"), 0o644); err != nil {
		t.Fatal(err)
	}
	f.PutLink(l)
	target.Resync()
	step("after a change by others", "1400", false)
	if rows := target.Rows(); len(rows) != 1 || rows[0].Key != "file "+file || rows[0].Actual != "1400" {
		t.Errorf("%+v", rows)
	}
}
