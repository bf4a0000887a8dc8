package overlay

import (
	"strconv"
	"strings"

	"github.com/manxnet/manx/datastore/model"
)

// Offload says whether a VXLAN device leaves the checksums of the packets that it carries to the hardware.
type Offload int

// The values of Offload. Undecided: the device stays as it is.
const (
	Undecided Offload = iota
	OffloadOn
	OffloadOff
)

// ChecksumOffload returns the Offload of VXLAN devices that ChecksumOffloadBroken of featureDetectOverride decides, or
// by default the kernel, given its release as in uname(2): up to 5.7.0 the offload is broken with many NICs, as Calico
// has it.
func ChecksumOffload(f *model.FelixConfigurationSpec, release string) Offload {
	decided := Undecided
	if oldKernel(release) {
		decided = OffloadOff
	}
	for pair := range strings.SplitSeq(f.FeatureDetectOverride, ",") {
		name, value, _ := strings.Cut(strings.TrimSpace(pair), "=")
		broken, err := strconv.ParseBool(value)
		switch {
		case name != "ChecksumOffloadBroken" || err != nil:
		case broken:
			decided = OffloadOff
		default:
			decided = OffloadOn
		}
	}
	return decided
}

// oldKernel reports whether a release is 5.7.0 at most.
func oldKernel(release string) bool {
	numbers := strings.FieldsFunc(release, func(r rune) bool { return r < '0' || r > '9' })
	for i, last := range []int{5, 7, 0} {
		if i >= len(numbers) {
			return i > 1 // 5.7 is 5.7.0
		}
		n, err := strconv.Atoi(numbers[i])
		if err != nil || n != last {
			return err == nil && n < last
		}
	}
	return true
}
