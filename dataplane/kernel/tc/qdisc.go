package tc

import (
	"encoding/binary"
	"errors"
	"fmt"

	vnetlink "github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/manxnet/manx/dataplane/kernel/netlink"
)

// Constants of linux/pkt_sched.h that x/sys lacks.
const (
	tcRoot     = 0xFFFFFFFF // parent of a device's send queue
	tcaKind    = 1
	tcaOptions = 2

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

// appendHeader appends a struct tcmsg.
func appendHeader(b *netlink.Builder, link int, handle, parent, info uint32) {
	b.Buf = append(b.Buf, unix.AF_UNSPEC, 0, 0, 0)
	for _, v := range []uint32{uint32(link), handle, parent, info} {
		b.Buf = binary.NativeEndian.AppendUint32(b.Buf, v)
	}
}

const headerLen = 20

func (s socket) listQdiscs() ([]qdisc, error) {
	var all []qdisc
	err := s.Dump(unix.RTM_GETQDISC, func() { all = nil }, func(b *netlink.Builder) { appendHeader(b, 0, 0, 0, 0) },
		func(m netlink.Message) {
			if q, ok := parseQdisc(m.Data); ok {
				all = append(all, q)
			}
		})
	if err != nil {
		return nil, fmt.Errorf("list queues: %w", err)
	}
	return all, nil
}

func parseQdisc(data []byte) (qdisc, bool) {
	if len(data) < headerLen {
		return qdisc{}, false
	}
	q := qdisc{link: int(binary.NativeEndian.Uint32(data[4:])), handle: binary.NativeEndian.Uint32(data[8:]),
		parent: binary.NativeEndian.Uint32(data[12:])}
	var options []byte
	for kind, value := range netlink.Attrs(data[headerLen:]) {
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
	for kind, value := range netlink.Attrs(options) {
		switch {
		case kind == tbfParms && len(value) >= tbfParmsLen:
			t.Rate = max(t.Rate, uint64(binary.NativeEndian.Uint32(value[rateSpecLen-4:])))
			t.PeakRate = max(t.PeakRate, uint64(binary.NativeEndian.Uint32(value[2*rateSpecLen-4:])))
			t.Limit = binary.NativeEndian.Uint32(value[2*rateSpecLen:])
			t.Buffer = binary.NativeEndian.Uint32(value[2*rateSpecLen+4:])
			t.PeakBuffer = binary.NativeEndian.Uint32(value[2*rateSpecLen+8:])
		case kind == tbfRate64 && len(value) >= 8:
			t.Rate = binary.NativeEndian.Uint64(value)
		case kind == tbfPeakRate64 && len(value) >= 8:
			t.PeakRate = binary.NativeEndian.Uint64(value)
		}
	}
	return t
}

func appendRate(b []byte, rate uint64) []byte {
	if rate == 0 {
		return append(b, make([]byte, rateSpecLen)...)
	}
	b = append(b, 0, linkLayerEthernet, 0, 0, 0, 0, 0, 0)
	return binary.NativeEndian.AppendUint32(b, uint32(min(rate, 1<<32-1)))
}

// setBucket makes t the send queue of a device. If ours is there already it is changed, and loses nothing.
func (s socket) setBucket(link int, t TokenBucket) error {
	err := s.Request(unix.RTM_NEWQDISC, unix.NLM_F_CREATE|unix.NLM_F_REPLACE, func(b *netlink.Builder) {
		appendHeader(b, link, shapeHandle, tcRoot, 0)
		b.AttrText(tcaKind, "tbf")
		nest := b.Nest(tcaOptions)
		parms := appendRate(appendRate(nil, t.Rate), t.PeakRate)
		for _, v := range []uint32{t.Limit, t.Buffer, t.PeakBuffer} {
			parms = binary.NativeEndian.AppendUint32(parms, v)
		}
		b.Attr(tbfParms, parms)
		for kind, rate := range map[uint16]uint64{tbfRate64: t.Rate, tbfPeakRate64: t.PeakRate} {
			if rate >= 1<<32 {
				b.Attr(kind, binary.NativeEndian.AppendUint64(nil, rate))
			}
		}
		b.EndNest(nest)
	})
	return lacking(err, "a token bucket filter (module sch_tbf)")
}

// lacking returns an error that names the missing part of the kernel, if err is about that.
func lacking(err error, part string) error {
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EOPNOTSUPP) {
		return fmt.Errorf("%s: %w: %w", part, ErrNoShaping, err)
	}
	return err
}

// removeBucket removes our queue from a device. Any other stays.
func (s socket) removeBucket(link int) error {
	err := s.Request(unix.RTM_DELQDISC, 0, func(b *netlink.Builder) {
		appendHeader(b, link, shapeHandle, tcRoot, 0)
		b.AttrText(tcaKind, "tbf")
	})
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENODEV) {
		return nil // there is none, or another
	}
	return err
}

// ingress is the queue for what a device receives.
func ingress(link int) *vnetlink.Ingress {
	return &vnetlink.Ingress{QdiscAttrs: vnetlink.QdiscAttrs{LinkIndex: link, Parent: vnetlink.HANDLE_INGRESS,
		Handle: vnetlink.MakeHandle(0xffff, 0)}}
}

// ensureIngress makes sure that a device's received packets can be filtered. Another program may have done so.
func (s socket) ensureIngress(link int) error {
	err := s.device.QdiscAdd(ingress(link))
	if errors.Is(err, unix.EEXIST) {
		return nil
	}
	return lacking(err, "filters on what an interface receives (module sch_ingress)")
}

// removeIngress is own code: the library's request does not name the kind, and would remove another program's clsact,
// which has the same handle and parent.
func (s socket) removeIngress(link int) error {
	of := ingress(link)
	err := s.Request(unix.RTM_DELQDISC, 0, func(b *netlink.Builder) {
		appendHeader(b, link, of.Handle, of.Parent, 0)
		b.AttrText(tcaKind, of.Type())
	})
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENODEV) {
		return nil // it is gone, or another program's clsact
	}
	return err
}
