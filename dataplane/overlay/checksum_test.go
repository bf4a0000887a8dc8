package overlay

import (
	"testing"

	"github.com/manxnet/manx/datastore/model"
)

// The setting decides before the kernel. A value that is no boolean counts as none, as in Calico.
func TestChecksumOffload(t *testing.T) {
	for _, c := range []struct {
		override, release string
		want              Offload
	}{
		{"", "6.12.4-1-amd64", Undecided},
		{"", "5.8.0", Undecided},
		{"", "5.7.1", Undecided},
		{"", "5.10.0-28-cloud", Undecided},
		{"", "", Undecided},
		{"", "unknown", Undecided},
		{"", "5.7.0", OffloadOff},
		{"", "5.7.0-2-amd64", OffloadOff},
		{"", "5.7", OffloadOff},
		{"", "5.4.0-150-generic", OffloadOff},
		{"", "4.18.0-553.el8", OffloadOff},
		{"ChecksumOffloadBroken=true", "6.12.4", OffloadOff},
		{"SNATFullyRandom=false,ChecksumOffloadBroken=true,", "6.12.4", OffloadOff},
		{"SNATFullyRandom=false, ChecksumOffloadBroken=true", "6.12.4", OffloadOff},
		{"ChecksumOffloadBroken=false", "5.4.0", OffloadOn},
		{"ChecksumOffloadBroken=false", "6.12.4", OffloadOn},
		{"ChecksumOffloadBroken=", "5.4.0", OffloadOff},
		{"ChecksumOffloadBroken=maybe", "6.12.4", Undecided},
		{"SNATFullyRandom=true", "6.12.4", Undecided},
	} {
		var f model.FelixConfigurationSpec
		f.FeatureDetectOverride = c.override
		if have := ChecksumOffload(&f, c.release); have != c.want {
			t.Errorf("%q on kernel %q: %d, want %d", c.override, c.release, have, c.want)
		}
	}
}
