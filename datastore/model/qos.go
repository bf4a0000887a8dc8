package model

import (
	"math"
)

// Range is the range of a setting, both ends included.
type Range struct{ Least, Most int64 }

// QoSRanges are Calico's documented ranges for the settings of each direction.
var QoSRanges = struct{ Bandwidth, Burst, Peakrate, Minburst, PacketRate, PacketBurst, MaxConnections Range }{
	Bandwidth:      Range{1_000, 1_000_000_000_000_000}, // bits per second
	Burst:          Range{1_000, 8 * math.MaxUint32},    // bits
	Peakrate:       Range{1_010, 1_010_000_000_000_000}, // bits per second
	Minburst:       Range{1_000, 100_000_000},           // bytes
	PacketRate:     Range{1, 10_000},                    // packets per second
	PacketBurst:    Range{1, 10_000},                    // packets
	MaxConnections: Range{1, math.MaxUint32},
}
