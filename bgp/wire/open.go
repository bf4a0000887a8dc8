package wire

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"time"

	"github.com/osrg/gobgp/v4/pkg/packet/bgp"

	"github.com/manxnet/manx/bgp/wire/message"
)

// Open is the content of a peer's OPEN that matters for the one family of the session.
type Open struct {
	AS           uint32
	RouterID     netip.Addr
	Hold         time.Duration // as offered; 0: no hold timer
	Capabilities []bgp.ParameterCapabilityInterface

	Family                 bool // the family of the session is among Families
	Families               []bgp.Family
	FourOctetAS            bool
	Refresh                bool
	SendsPaths, TakesPaths bool // several for a prefix (RFC 7911)

	// Graceful: graceful restart of the family (RFC 4724). Restarted, Forwarding and Notifications are its flags R and
	// F, and N of RFC 8538.
	Graceful                             bool
	Restarted, Forwarding, Notifications bool
	RestartTime                          time.Duration
}

// openError is an OPEN that is refused, with the NOTIFICATION that answers it.
type openError struct {
	notification message.Notification
	text         string
}

func (e *openError) Error() string { return e.text }

func refuseOpen(sub uint8, data []byte, format string, args ...any) error {
	return &openError{message.Notification{Code: message.CodeOpen, Sub: sub, Data: data}, fmt.Sprintf(format, args...)}
}

// ourOpen builds the OPEN for a peer. The speaker's own OPEN, which is never sent, also offers extended messages (RFC
// 8654) and IPv4 routes with IPv6 next hops (RFC 8950). Neither can be offered: see longestLength, and dataplane/route,
// which takes no such next hop. Restarting and forwarding are the flags R and F of RFC 4724 section 3.
func ourOpen(p Peer, routerID netip.Addr, restarting, forwarding bool) ([]byte, error) {
	family := familyOf(p.Address)
	host, _ := os.Hostname()
	caps := []bgp.ParameterCapabilityInterface{
		bgp.NewCapMultiProtocol(family), bgp.NewCapRouteRefresh(), bgp.NewCapFourOctetASNumber(p.LocalAS),
		bgp.NewCapGracefulRestart(restarting, false, p.RestartTime,
			[]*bgp.CapGracefulRestartTuple{bgp.NewCapGracefulRestartTuple(family, forwarding)}),
		bgp.NewCapAddPath([]*bgp.CapAddPathTuple{bgp.NewCapAddPathTuple(family, bgp.BGP_ADD_PATH_BOTH)}),
		bgp.NewCapFQDN(host, ""),
	}
	return openMessage(p.LocalAS, p.Hold, routerID, caps)
}

func openMessage(as uint32, hold uint16, id netip.Addr, caps []bgp.ParameterCapabilityInterface) ([]byte, error) {
	short := uint16(bgp.AS_TRANS)
	if as < 1<<16 {
		short = uint16(as)
	}
	m, err := bgp.NewBGPOpenMessage(short, hold, id, []bgp.OptionParameterInterface{
		bgp.NewOptionParameterCapability(caps)})
	if err != nil {
		return nil, err
	}
	return m.Serialize()
}

// readOpen reads and checks an OPEN of a peer (RFC 4271 section 6.2, RFC 6286, RFC 7607, RFC 9072).
func readOpen(m []byte, p Peer, routerID netip.Addr) (*Open, error) {
	body := m[bgp.BGP_HEADER_LENGTH:]
	if body[0] != 4 {
		return nil, refuseOpen(message.SubVersion, []byte{0, 4}, "its BGP version is %d", body[0])
	}
	o := &Open{AS: uint32(binary.BigEndian.Uint16(body[1:])), RouterID: netip.AddrFrom4([4]byte(body[5:9])),
		Hold: time.Duration(binary.BigEndian.Uint16(body[3:])) * time.Second}
	if err := o.readParameters(body[9:]); err != nil {
		return nil, err
	}
	o.readCapabilities(familyOf(p.Address))
	switch {
	case o.AS == 0:
		return nil, refuseOpen(message.SubPeerAS, nil, "its AS is 0, which RFC 7607 forbids")
	case o.AS != p.PeerAS:
		return nil, refuseOpen(message.SubPeerAS, nil, "expected AS %d, received AS %d", p.PeerAS, o.AS)
	case o.RouterID.IsUnspecified():
		return nil, refuseOpen(message.SubIdentifier, nil, "its router ID is 0.0.0.0")
	case o.RouterID == routerID && o.AS == p.LocalAS:
		return nil, refuseOpen(message.SubIdentifier, nil, "its router ID %s is the same as ours", o.RouterID)
	case o.Hold != 0 && o.Hold < 3*time.Second:
		return nil, refuseOpen(message.SubHoldTime, nil,
			"its hold time is %s; RFC 4271 wants 0 or at least 3 s", o.Hold)
	}
	return o, nil
}

// readParameters reads the optional parameters; b begins with their length.
func (o *Open) readParameters(b []byte) error {
	malformed := refuseOpen(0, nil, "its optional parameters do not fit their lengths")
	length, header := int(b[0]), 2
	b = b[1:]
	if length != 0 && len(b) >= 3 && b[0] == 255 { // RFC 9072: two octets for each length
		length, header = int(binary.BigEndian.Uint16(b[1:])), 3
		b = b[3:]
	}
	if len(b) != length {
		return malformed
	}
	for len(b) > 0 {
		if len(b) < header {
			return malformed
		}
		kind, n := b[0], int(b[1])
		if header == 3 {
			n = int(binary.BigEndian.Uint16(b[1:]))
		}
		if len(b) < header+n {
			return malformed
		}
		if kind != bgp.BGP_OPT_CAPABILITY {
			return refuseOpen(message.SubParameter, nil, "its optional parameter %d is unknown", kind)
		}
		if err := o.decodeCapabilities(b[header : header+n]); err != nil {
			return err
		}
		b = b[header+n:]
	}
	return nil
}

func (o *Open) decodeCapabilities(b []byte) error {
	for len(b) > 0 {
		if len(b) < 2 || len(b) < 2+int(b[1]) {
			return refuseOpen(0, nil, "its capabilities do not fit their lengths")
		}
		one := b[: 2+int(b[1]) : 2+int(b[1])]
		c, err := bgp.DecodeCapability(one)
		if err != nil || c.Len() != len(one) {
			code := bgp.BGPCapabilityCode(b[0])
			if negotiated[code] {
				return refuseOpen(0, nil, "its capability %s is malformed", code)
			}
			c = bgp.NewCapUnknown(code, bytes.Clone(one[2:]))
		}
		o.Capabilities = append(o.Capabilities, c)
		b = b[len(one):]
	}
	return nil
}

// negotiated are the capabilities that the session depends on. A malformed one of another kind is ignored.
var negotiated = map[bgp.BGPCapabilityCode]bool{bgp.BGP_CAP_MULTIPROTOCOL: true, bgp.BGP_CAP_GRACEFUL_RESTART: true,
	bgp.BGP_CAP_FOUR_OCTET_AS_NUMBER: true}

func (o *Open) readCapabilities(family bgp.Family) {
	multiprotocol := false
	for _, c := range o.Capabilities {
		switch c := c.(type) {
		case *bgp.CapMultiProtocol:
			multiprotocol = true
			if !slices.Contains(o.Families, c.CapValue) {
				o.Families = append(o.Families, c.CapValue)
			}
		case *bgp.CapFourOctetASNumber:
			o.AS, o.FourOctetAS = c.CapValue, true
		case *bgp.CapRouteRefresh:
			o.Refresh = true
		case *bgp.CapGracefulRestart:
			o.readGraceful(c, family)
		case *bgp.CapAddPath:
			for _, t := range c.Tuples {
				if t.Family == family {
					o.SendsPaths = t.Mode&bgp.BGP_ADD_PATH_SEND != 0
					o.TakesPaths = t.Mode&bgp.BGP_ADD_PATH_RECEIVE != 0
				}
			}
		}
	}
	if !multiprotocol { // RFC 4760 section 8
		o.Families = []bgp.Family{bgp.RF_IPv4_UC}
	}
	o.Family = slices.Contains(o.Families, family)
}

// readGraceful reads a graceful restart capability. Of several, the last one counts (RFC 4724 section 3).
func (o *Open) readGraceful(c *bgp.CapGracefulRestart, family bgp.Family) {
	const restartState, notification, forwardingState = 8, 4, 0x80
	o.RestartTime = time.Duration(c.Time) * time.Second
	o.Restarted, o.Notifications = c.Flags&restartState != 0, c.Flags&notification != 0
	o.Graceful, o.Forwarding = false, false
	for _, t := range c.Tuples {
		if bgp.NewFamily(t.AFI, t.SAFI) == family {
			o.Graceful, o.Forwarding = true, t.Flags&forwardingState != 0
		}
	}
}

// edited is the OPEN as the speaker gets it. It lacks the capabilities that our OPEN did not offer, since the speaker
// takes them for negotiated, and those of other families. Capabilities that the speaker does not act upon come last,
// as far as they fit.
func (o *Open) edited(p Peer) ([]byte, error) {
	family := familyOf(p.Address)
	var caps, more []bgp.ParameterCapabilityInterface
	for _, c := range o.Capabilities {
		switch c := c.(type) {
		case *bgp.CapExtendedMessage, *bgp.CapExtendedNexthop, *bgp.CapLongLivedGracefulRestart,
			*bgp.CapGracefulRestart, *bgp.CapAddPath, *bgp.CapFourOctetASNumber:
		case *bgp.CapMultiProtocol:
			if c.CapValue != family {
				more = append(more, c)
			}
		default:
			more = append(more, c)
		}
	}
	if o.Family {
		caps = append(caps, bgp.NewCapMultiProtocol(family))
	}
	if o.FourOctetAS {
		caps = append(caps, bgp.NewCapFourOctetASNumber(o.AS))
	}
	if o.Graceful {
		caps = append(caps, bgp.NewCapGracefulRestart(o.Restarted, o.Notifications,
			uint16(o.RestartTime/time.Second),
			[]*bgp.CapGracefulRestartTuple{bgp.NewCapGracefulRestartTuple(family, o.Forwarding)}))
	}
	if mode := o.pathMode(); mode != 0 {
		caps = append(caps, bgp.NewCapAddPath([]*bgp.CapAddPathTuple{bgp.NewCapAddPathTuple(family, mode)}))
	}
	slices.SortStableFunc(more, func(a, b bgp.ParameterCapabilityInterface) int {
		return cmp.Compare(a.Len(), b.Len())
	})
	const room = 253 // for capabilities in one optional parameter
	length := 0
	for _, c := range caps {
		length += capabilityLength(c)
	}
	for _, c := range more {
		if n := capabilityLength(c); length+n <= room {
			length += n
			caps = append(caps, c)
		}
	}
	return openMessage(o.AS, uint16(o.Hold/time.Second), o.RouterID, caps)
}

func capabilityLength(c bgp.ParameterCapabilityInterface) int {
	b, err := c.Serialize()
	if err == nil {
		_, err = bgp.DecodeCapability(b)
	}
	if err != nil {
		return 1 << 16 // left out
	}
	return len(b)
}

func (o *Open) pathMode() (mode bgp.BGPAddPathMode) {
	if o.SendsPaths {
		mode |= bgp.BGP_ADD_PATH_SEND
	}
	if o.TakesPaths {
		mode |= bgp.BGP_ADD_PATH_RECEIVE
	}
	return mode
}

// timers returns the negotiated hold time, and the time between KEEPALIVEs: that of the settings, and at most a third
// of the hold time (RFC 4271 sections 4.2 and 4.4). tooRare reports whether the speaker sends them less often: with a
// hold time of the peer it does not use the one of the settings.
func (o *Open) timers(p Peer) (hold, interval time.Duration, tooRare bool) {
	ours := time.Duration(p.Hold) * time.Second
	hold = min(o.Hold, ours)
	interval = hold / 3
	if wanted := time.Duration(p.Keepalive) * time.Second; wanted != 0 && wanted < interval {
		return hold, wanted, hold < ours
	}
	return hold, interval, false
}

// refusal is the NOTIFICATION that answers an error of a message before the session is established, and its text.
func refusal(err error) (n message.Notification, text string, answer bool) {
	if e := (&openError{}); errors.As(err, &e) {
		return e.notification, e.text, true
	}
	if e := (&message.HeaderError{}); errors.As(err, &e) {
		return e.Notification, e.Text, !e.Unanswered
	}
	return message.Notification{}, "", false
}

func familyOf(a netip.Addr) bgp.Family {
	if a.Unmap().Is4() {
		return bgp.RF_IPv4_UC
	}
	return bgp.RF_IPv6_UC
}
