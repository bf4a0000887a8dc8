package shape

import (
	"math"

	"github.com/manxnet/manx/dataplane/kernel/tc"
)

// limit is a limit of bandwidth in one direction, as Calico's QoS controls have it.
type limit struct {
	Bandwidth int64 // bits per second; 0 for no limit
	Burst     int64 // bits that may pass at any rate, or at PeakRate, after a pause; 0 is defaultBurst
	PeakRate  int64 // bits per second; 0, or not above Bandwidth, for none
	MinBurst  int64 // bytes that may pass at any rate even so; at least one packet
}

// defaultBurst is Calico's default: 4 Gibit.
const defaultBurst = 4 << 30

const (
	// maxWaitNanoseconds limits how long a packet may wait, as in Calico: 25 ms.
	maxWaitNanoseconds = 25e6
	ethernetHeader     = 14
)

// bucket translates a limit for an interface with this MTU. A bucket that holds no whole packet would let none pass.
func (l limit) bucket(mtu int) tc.TokenBucket {
	packet := uint64(mtu + ethernetHeader)
	burst := uint64(defaultBurst / 8)
	if l.Burst > 0 {
		burst = uint64(l.Burst) / 8
	}
	burst = min(max(burst, packet), math.MaxUint32)
	t := tc.TokenBucket{Rate: max(uint64(l.Bandwidth)/8, 1)}
	t.Buffer = ticks(burst, t.Rate)
	t.Limit = queueSize(burst, t.Rate)
	if l.PeakRate > l.Bandwidth {
		least := min(max(uint64(l.MinBurst), packet), math.MaxUint32)
		t.PeakRate = uint64(l.PeakRate) / 8
		t.PeakBuffer = ticks(least, t.PeakRate)
		t.Limit = min(t.Limit, queueSize(least, t.PeakRate))
	}
	return t
}

// ticks returns the time to send so many bytes, rounded up.
func ticks(bytes, rate uint64) uint32 {
	return uint32(min(math.Ceil(float64(bytes)*1e9/float64(rate)/tc.TickNanoseconds), math.MaxUint32))
}

// queueSize returns how many bytes may be in the queue.
func queueSize(burst, rate uint64) uint32 {
	return uint32(min(float64(burst)+float64(rate)*maxWaitNanoseconds/1e9, math.MaxUint32))
}
