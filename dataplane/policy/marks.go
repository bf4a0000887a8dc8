package policy

import (
	"fmt"

	"github.com/manxnet/manx/datastore/model"
)

// Marks are the bits of a packet's mark that the rules use.
type Marks struct {
	// Decided is for packets that an untracked or pre-DNAT policy of a host endpoint allowed: that endpoint's other
	// policies are not evaluated.
	Decided uint32
	// Pass is for packets that a policy passed to the next tier.
	Pass uint32
}

// standardMarks are Calico's bits for the same, of its standard mask.
var standardMarks = Marks{Decided: 0x10000, Pass: 0x20000}

// MarksOf returns the two lowest bits of nftablesMarkMask, else of iptablesMarkMask. If the mask does not have as many
// they are the standard ones, and problem says so.
func MarksOf(f *model.FelixConfigurationSpec) (m Marks, problem string) {
	name, mask := "nftablesMarkMask", f.NftablesMarkMask
	if mask == nil {
		name, mask = "iptablesMarkMask", f.IptablesMarkMask
	}
	if mask == nil {
		return standardMarks, ""
	}
	m.Decided = *mask & -*mask
	rest := *mask &^ m.Decided
	if m.Pass = rest & -rest; m.Pass == 0 {
		return standardMarks, fmt.Sprintf("%s 0x%x has fewer than two bits: the rules use the marks 0x%x and 0x%x",
			name, *mask, standardMarks.Decided, standardMarks.Pass)
	}
	return m, ""
}
