package kernel

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// What x/sys does not have of linux/pkt_sched.h.
const (
	tcRoot          = 0xFFFFFFFF // parent of what a device sends through
	tcIngress       = 0xFFFFFFF1 // parent of the queue for what it receives
	tcIngressHandle = 0xFFFF0000
	tcaKind         = 1
	tcaOptions      = 2

	tbfParms, tbfRate64, tbfPeakRate64 = 1, 4, 5
	linkLayerEthernet                  = 1

	// shapeHandle ("mx:") marks our token buckets.
	shapeHandle = 0x6d78 << 16
)

// qdisc is a queue of a device.
type qdisc struct {
	link   int
	handle uint32
	parent uint32
	kind   string
	bucket TokenBucket // of kind "tbf"
}

// tcHeader appends a struct tcmsg.
func (b *builder) tcHeader(link int, handle, parent, info uint32) {
	b.buf = append(b.buf, unix.AF_UNSPEC, 0, 0, 0)
	for _, v := range []uint32{uint32(link), handle, parent, info} {
		b.buf = native.AppendUint32(b.buf, v)
	}
}

const tcHeaderLen = 20

func (b *builder) attrName(kind uint16, name string) { b.attr(kind, append([]byte(name), 0)) }

func (s *socket) listQdiscs() ([]qdisc, error) {
	var all []qdisc
	err := s.dump(unix.RTM_GETQDISC, func() { all = nil }, func(b *builder) { b.tcHeader(0, 0, 0, 0) },
		func(m message) {
			if q, ok := parseQdisc(m.data); ok {
				all = append(all, q)
			}
		})
	if err != nil {
		return nil, fmt.Errorf("list queues: %w", err)
	}
	return all, nil
}

func parseQdisc(data []byte) (qdisc, bool) {
	if len(data) < tcHeaderLen {
		return qdisc{}, false
	}
	q := qdisc{link: int(native.Uint32(data[4:])), handle: native.Uint32(data[8:]), parent: native.Uint32(data[12:])}
	var options []byte
	for kind, value, rest, ok := nextAttr(data[tcHeaderLen:]); ok; kind, value, rest, ok = nextAttr(rest) {
		switch kind {
		case tcaKind:
			q.kind = unix.ByteSliceToString(value)
		case tcaOptions:
			options = value
		}
	}
	if q.kind == "tbf" {
		q.bucket = parseBucket(options)
	}
	return q, true
}

// The parameters of a token bucket are a struct tc_tbf_qopt: two of tc_ratespec (12 bytes, the rate last), then limit,
// buffer and the buffer of the peak rate.
const (
	rateSpecLen = 12
	tbfParmsLen = 2*rateSpecLen + 12
)

func parseBucket(options []byte) TokenBucket {
	var t TokenBucket
	for kind, value, rest, ok := nextAttr(options); ok; kind, value, rest, ok = nextAttr(rest) {
		switch {
		case kind == tbfParms && len(value) >= tbfParmsLen:
			t.Rate = max(t.Rate, uint64(native.Uint32(value[rateSpecLen-4:])))
			t.PeakRate = max(t.PeakRate, uint64(native.Uint32(value[2*rateSpecLen-4:])))
			t.Limit = native.Uint32(value[2*rateSpecLen:])
			t.Buffer = native.Uint32(value[2*rateSpecLen+4:])
			t.PeakBuffer = native.Uint32(value[2*rateSpecLen+8:])
		case kind == tbfRate64 && len(value) >= 8:
			t.Rate = native.Uint64(value)
		case kind == tbfPeakRate64 && len(value) >= 8:
			t.PeakRate = native.Uint64(value)
		}
	}
	return t
}

func appendRate(b []byte, rate uint64) []byte {
	if rate == 0 {
		return append(b, make([]byte, rateSpecLen)...)
	}
	b = append(b, 0, linkLayerEthernet, 0, 0, 0, 0, 0, 0)
	return native.AppendUint32(b, uint32(min(rate, 1<<32-1)))
}

// setBucket makes t the queue of what a device sends. If ours is there already it is changed, and loses nothing.
func (s *socket) setBucket(link int, t TokenBucket) error {
	err := s.request(unix.RTM_NEWQDISC, unix.NLM_F_CREATE|unix.NLM_F_REPLACE, func(b *builder) {
		b.tcHeader(link, shapeHandle, tcRoot, 0)
		b.attrName(tcaKind, "tbf")
		nest := b.nest(tcaOptions)
		parms := appendRate(appendRate(nil, t.Rate), t.PeakRate)
		for _, v := range []uint32{t.Limit, t.Buffer, t.PeakBuffer} {
			parms = native.AppendUint32(parms, v)
		}
		b.attr(tbfParms, parms)
		for kind, rate := range map[uint16]uint64{tbfRate64: t.Rate, tbfPeakRate64: t.PeakRate} {
			if rate >= 1<<32 {
				b.attr(kind, native.AppendUint64(nil, rate))
			}
		}
		b.endNest(nest)
	})
	return lacking(err, "a token bucket filter (module sch_tbf)")
}

// lacking says which part of the kernel is missing, if that is the error.
func lacking(err error, part string) error {
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EOPNOTSUPP) {
		return fmt.Errorf("%s: %w: %w", part, ErrNoShaping, err)
	}
	return err
}

// removeBucket removes our queue from a device. Any other stays.
func (s *socket) removeBucket(link int) error {
	err := s.request(unix.RTM_DELQDISC, 0, func(b *builder) {
		b.tcHeader(link, shapeHandle, tcRoot, 0)
		b.attrName(tcaKind, "tbf")
	})
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENODEV) {
		return nil // there is none, or another
	}
	return err
}

// ensureIngress makes sure that what a device receives can be filtered. Another program may have done so.
func (s *socket) ensureIngress(link int) error {
	err := s.request(unix.RTM_NEWQDISC, unix.NLM_F_CREATE|unix.NLM_F_EXCL, func(b *builder) {
		b.tcHeader(link, tcIngressHandle, tcIngress, 0)
		b.attrName(tcaKind, "ingress")
	})
	if errors.Is(err, unix.EEXIST) {
		return nil
	}
	return lacking(err, "filters on what an interface receives (module sch_ingress)")
}

func (s *socket) removeIngress(link int) error {
	err := s.request(unix.RTM_DELQDISC, 0, func(b *builder) {
		b.tcHeader(link, tcIngressHandle, tcIngress, 0)
		b.attrName(tcaKind, "ingress")
	})
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENODEV) {
		return nil // it is gone, or another program's clsact
	}
	return err
}
