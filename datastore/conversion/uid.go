package conversion

import (
	"encoding/hex"
	"fmt"
	"math/bits"
	"strings"

	"k8s.io/apimachinery/pkg/types"
)

// The bytes of a UUID with its version and variant (RFC 9562, section 4).
const (
	versionByte = 6
	variantByte = 8
)

// DerivedUID returns the UID that Calico gives an object derived from another one, which must not have the same: the
// bits of each byte are reversed, except in the bytes of version and variant. A text that is no UUID stays unchanged.
// The function is its own inverse.
func DerivedUID(of types.UID) types.UID {
	b, err := hex.DecodeString(strings.ReplaceAll(string(of), "-", ""))
	if err != nil || len(b) != 16 {
		return of
	}
	for i := range b {
		if i != versionByte && i != variantByte {
			b[i] = bits.Reverse8(b[i])
		}
	}
	return types.UID(fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:]))
}
