package tc

import (
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/manxnet/manx/dataplane/kernel/netlink"
)

// Constants of linux/pkt_cls.h and linux/tc_act that x/sys lacks.
const (
	tcIngressFilters = 0xFFFFFFF2 // parent of filters on a device's received packets, with ingress and clsact alike
	u32Selector      = 5
	u32Actions       = 7
	u32Terminal      = 1
	actKind          = 1
	actOptions       = 2
	mirredParms      = 2
	mirredLen        = 28
	actStolen        = 4
	egressRedirect   = 1
	redirectPriority = 1
)

// allProtocols is ETH_P_ALL in network byte order, as the low half of a filter's info.
var allProtocols = uint32(binary.NativeEndian.Uint16([]byte{0, unix.ETH_P_ALL}))

var redirectInfo = redirectPriority<<16 | allProtocols

// filter is one of the filters on a device's received packets.
type filter struct {
	handle uint32
	info   uint32 // priority and protocol
	// redirects packets to the device with the index to, 0 if that is gone: then they are lost.
	redirects bool
	to        int
}

// dead reports whether f is a redirect of ours whose device was removed.
func (f filter) dead() bool { return f.redirects && f.to == 0 && f.info == redirectInfo }

// listFilters returns the filters on a device's received packets.
func (s socket) listFilters(link int) (list []filter, err error) {
	begin := func() { list = nil }
	err = s.Dump(unix.RTM_GETTFILTER, begin, func(b *netlink.Builder) { appendHeader(b, link, 0, tcIngressFilters, 0) },
		func(m netlink.Message) {
			if f, ok := parseFilter(m.Data); ok {
				list = append(list, f)
			}
		})
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) {
		return nil, nil // nothing can be filtered there
	}
	if err != nil {
		return nil, fmt.Errorf("list filters of interface %d: %w", link, err)
	}
	return list, nil
}

func parseFilter(data []byte) (f filter, ok bool) {
	if len(data) < headerLen {
		return f, false
	}
	f.handle, f.info = binary.NativeEndian.Uint32(data[8:]), binary.NativeEndian.Uint32(data[16:])
	options := attrIn(data[headerLen:], tcaOptions)
	if unix.ByteSliceToString(attrIn(data[headerLen:], tcaKind)) != "u32" {
		return f, f.handle != 0 // without a handle it is the list of filters
	}
	for _, action := range netlink.Attrs(attrIn(options, u32Actions)) {
		parms := attrIn(attrIn(action, actOptions), mirredParms)
		if unix.ByteSliceToString(attrIn(action, actKind)) == "mirred" && len(parms) >= mirredLen &&
			binary.NativeEndian.Uint32(parms[20:]) == egressRedirect {
			f.redirects, f.to = true, int(binary.NativeEndian.Uint32(parms[24:]))
		}
	}
	return f, f.handle&0xfff != 0 // those without are the tables that u32 keeps its filters in
}

// attrIn returns the value of the first attribute of a kind in a list, nil if there is none.
func attrIn(list []byte, want uint16) []byte {
	for kind, value := range netlink.Attrs(list) {
		if kind == want {
			return value
		}
	}
	return nil
}

// addRedirect sends all that a device receives through another one.
func (s socket) addRedirect(link, to int) error {
	err := s.Request(unix.RTM_NEWTFILTER, unix.NLM_F_CREATE|unix.NLM_F_EXCL, func(b *netlink.Builder) {
		appendHeader(b, link, 0, tcIngressFilters, redirectInfo)
		b.AttrText(tcaKind, "u32")
		options := b.Nest(tcaOptions)
		selector := make([]byte, 32) // one key that matches every packet
		selector[0], selector[2] = u32Terminal, 1
		b.Attr(u32Selector, selector)
		actions := b.Nest(u32Actions)
		first := b.Nest(1)
		b.AttrText(actKind, "mirred")
		parms := b.Nest(actOptions)
		var mirred []byte
		for _, v := range []uint32{0, 0, actStolen, 0, 0, egressRedirect, uint32(to)} {
			mirred = binary.NativeEndian.AppendUint32(mirred, v)
		}
		b.Attr(mirredParms, mirred)
		for _, nest := range []int{parms, first, actions, options} {
			b.EndNest(nest)
		}
	})
	return lacking(err, "filters that redirect packets (modules cls_u32 and act_mirred)")
}

// removeFilter removes a filter, or all of a priority if its handle is 0.
func (s socket) removeFilter(link int, f filter) error {
	err := s.Request(unix.RTM_DELTFILTER, 0, func(b *netlink.Builder) {
		appendHeader(b, link, f.handle, tcIngressFilters, f.info)
		b.AttrText(tcaKind, "u32")
	})
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENODEV) {
		return nil
	}
	return err
}
