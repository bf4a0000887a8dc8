package device

import (
	"errors"
	"net/netip"
	"slices"
	"testing"

	"github.com/manxnet/manx/dataplane/hoststate"
	"github.com/manxnet/manx/dataplane/kernel"
	"github.com/manxnet/manx/dataplane/overlay"
)

// The checksum offload of a VXLAN device follows the setting, and is repaired. Without a setting it is as it was, or as
// an administrator has it.
func TestChecksumOffload(t *testing.T) {
	f := testKernel()
	target := newTestTarget(f)
	target.release = "6.12.0"
	target.list = []overlay.Device{{Name: "overlay.test", Kind: kernel.KindVXLAN, MTU: 1450, VXLAN: &overlay.VXLAN{
		VNI: 4097, Port: 4789, Local: netip.MustParseAddr("10.1.0.5"), MAC: "66:00:00:00:00:01"}},
		{Name: "first.test", Kind: "bridge", MTU: 1450}}
	set := func(override string) {
		h := hoststate.New("n1", nil)
		h.Concerned = true
		h.Felix.FeatureDetectOverride = override
		target.SetState(h)
	}
	flush := func(what string, want ...string) {
		t.Helper()
		f.Log()
		target.Resync() // as every ten seconds
		if _, failures, err := target.Flush(); failures > 0 || err != nil {
			t.Fatal(what, failures, err, target.Rows())
		}
		if log := f.Log(); !slices.Equal(log, want) {
			t.Errorf("%s: %q, want %q", what, log, want)
		}
	}
	change := func(on bool) {
		t.Helper()
		if err := f.SetTxChecksum("overlay.test", on); err != nil {
			t.Fatal(err)
		}
	}
	const off, on = "SetTxChecksum overlay.test false", "SetTxChecksum overlay.test true"
	set("")
	if _, failures, err := target.Flush(); failures > 0 || err != nil {
		t.Fatal(failures, err)
	}
	flush("no setting")
	change(false)
	flush("an administrator")
	change(true)
	set("ChecksumOffloadBroken=true")
	flush("broken", off)
	flush("again")
	change(true)
	flush("a repair", off)
	set("")
	flush("withdrawn", on)
	flush("again")
	change(false)
	flush("an administrator, later")
	set("ChecksumOffloadBroken=false")
	flush("not broken", on)
	change(false)
	flush("a repair", on)
	target.AvoidOffload(map[string]bool{"overlay.test": true})
	flush("avoided against the setting")
	set("")
	flush("avoided", off)
	target.AvoidOffload(nil)
	flush("not avoided", on)
	target.release = "5.4.0"
	set("")
	flush("an old kernel", off)
	boom := errors.New("boom")
	set("ChecksumOffloadBroken=false")
	f.Fail("SetTxChecksum", f.Calls("SetTxChecksum")+1, boom)
	if _, failures, _ := target.Flush(); failures != 1 {
		t.Errorf("%d failures", failures)
	}
	target.Retry()
	flush("after a failure", on)
	f.Fail("TxChecksum", f.Calls("TxChecksum")+1, boom)
	target.Resync()
	if _, _, err := target.Flush(); !errors.Is(err, boom) {
		t.Errorf("%v", err)
	}
	flush("read again")
}
