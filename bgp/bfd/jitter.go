package bfd

import (
	"math/rand/v2"
	"time"
)

// jitter shortens an interval at random to 75 to 100 percent, to at most 90 if one lost packet is enough to end the
// session (RFC 5880 section 6.8.7).
func jitter(d time.Duration, multiplier uint8) time.Duration {
	span := d / 4
	longest := d
	if multiplier == 1 {
		longest, span = d*9/10, d*15/100
	}
	return longest - time.Duration(rand.Int64N(int64(span)+1))
}
