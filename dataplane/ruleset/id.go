package ruleset

import (
	"crypto/sha256"
	"encoding/base32"
	"encoding/binary"
	"net/netip"
)

// idLength is the length of an ID in characters of 5 bits: among a million rules, two share an ID with a chance of one
// in two million.
const idLength = 12

var idEncoding = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

// ID names a rule by its effect and its Comment: equal rules have equal IDs, in every release. It is 12 lower-case
// letters and digits, which the kernel keeps with the rule, so that an edited rule can be recognised.
func (r Rule) ID() string {
	sum := sha256.Sum256(r.appendCanonical(make([]byte, 0, 256)))
	return idEncoding.EncodeToString(sum[:8])[:idLength]
}

// Tags of the canonical form. A field at its zero value is left out, so that a field which is added one day changes the
// ID of no rule that does without it. The values are for ever.
const (
	tagMatch byte = iota + 1
	tagField
	tagNot
	tagName
	tagPrefix
	tagSet
	tagLow
	tagHigh
	tagMask
	tagLimitPackets
	tagLimitBurst
	tagLimitConnections
	tagCounter
	tagLogGroup
	tagLogPrefix
	tagLogRate
	tagLogBurst
	tagMarkValue
	tagMarkMask
	tagNoTrack
	tagAction
	tagChain
	tagMap
	tagOut
	tagAddress
	tagPortLow
	tagPortHigh
	tagRandom
	tagComment
	tagLogPer
	tagLogKernel
	tagLimitBytes
	tagCountedBy
	tagDSCP
	tagClampMSS
)

// appendCanonical appends tag, length and value of each field that is set.
func (r Rule) appendCanonical(b []byte) []byte {
	for _, m := range r.Matches {
		b = append(b, tagMatch)
		b = appendNumber(b, tagField, uint64(m.Field))
		b = appendFlag(b, tagNot, m.Not)
		b = appendText(b, tagName, m.Name)
		b = appendPrefix(b, m.Prefix)
		b = appendText(b, tagSet, m.Set)
		b = appendNumber(b, tagLow, uint64(m.Low))
		b = appendNumber(b, tagHigh, uint64(m.High))
		b = appendNumber(b, tagMask, uint64(m.Mask))
	}
	b = appendNumber(b, tagLimitPackets, r.Over.Packets)
	b = appendNumber(b, tagLimitBurst, uint64(r.Over.Burst))
	b = appendNumber(b, tagLimitConnections, uint64(r.Over.Connections))
	b = appendNumber(b, tagLimitBytes, uint64(r.Over.Bytes))
	b = appendFlag(b, tagCounter, r.Counter)
	b = appendText(b, tagCountedBy, r.CountedBy)
	b = appendNumber(b, tagLogGroup, uint64(r.Log.Group))
	b = appendText(b, tagLogPrefix, r.Log.Prefix)
	kernelLog := tagLogKernel
	if r.Log.Group == 0 { // from the time when a rule could log only to one of both
		kernelLog = tagLogPrefix
	}
	b = appendText(b, kernelLog, r.Log.Kernel)
	b = appendNumber(b, tagLogRate, r.Log.Rate)
	b = appendNumber(b, tagLogBurst, uint64(r.Log.Burst))
	b = appendNumber(b, tagLogPer, uint64(r.Log.Per))
	b = appendNumber(b, tagMarkValue, uint64(r.Mark.Value))
	b = appendNumber(b, tagMarkMask, uint64(r.Mark.Mask))
	if r.DSCP.Set {
		b = appendNumber(b, tagDSCP, uint64(r.DSCP.Value)+1)
	}
	b = appendFlag(b, tagNoTrack, r.NoTrack)
	b = appendFlag(b, tagClampMSS, r.ClampMSS)
	v := r.Verdict
	b = appendNumber(b, tagAction, uint64(v.Action))
	b = appendText(b, tagChain, v.Chain)
	b = appendText(b, tagMap, v.Map)
	b = appendFlag(b, tagOut, v.Out)
	if v.Address.IsValid() {
		b = appendText(b, tagAddress, v.Address.String())
	}
	b = appendNumber(b, tagPortLow, uint64(v.Low))
	b = appendNumber(b, tagPortHigh, uint64(v.High))
	b = appendFlag(b, tagRandom, v.Random)
	return appendText(b, tagComment, r.Comment)
}

func appendNumber(b []byte, tag byte, n uint64) []byte {
	if n == 0 {
		return b
	}
	return binary.BigEndian.AppendUint64(append(b, tag, 8), n)
}

func appendFlag(b []byte, tag byte, set bool) []byte {
	if !set {
		return b
	}
	return append(b, tag, 0)
}

func appendText(b []byte, tag byte, s string) []byte {
	if s == "" {
		return b
	}
	return append(binary.AppendUvarint(append(b, tag), uint64(len(s))), s...)
}

func appendPrefix(b []byte, p netip.Prefix) []byte {
	if !p.IsValid() {
		return b
	}
	return appendText(b, tagPrefix, p.String())
}
