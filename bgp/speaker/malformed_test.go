package speaker

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/manxnet/manx/bgp"
	"github.com/manxnet/manx/bgp/wire/message"
)

// Builders of raw messages; their input is not checked.

func rawMessage(kind byte, length int, body ...byte) []byte {
	b := append(bytes.Repeat([]byte{0xff}, 16), 0, 0, kind)
	binary.BigEndian.PutUint16(b[16:], uint16(length))
	return append(b, body...)
}

func rawUpdate(withdrawn, attrs, nlri []byte) []byte {
	b := binary.BigEndian.AppendUint16(nil, uint16(len(withdrawn)))
	b = append(b, withdrawn...)
	b = binary.BigEndian.AppendUint16(b, uint16(len(attrs)))
	return message.New(2, append(append(b, attrs...), nlri...)...)
}

// attr returns an attribute with its correct length.
func attr(flags, kind byte, value ...byte) []byte {
	return append([]byte{flags, kind, byte(len(value))}, value...)
}

func join(parts ...[]byte) []byte { return bytes.Join(parts, nil) }

type malformed struct {
	name  string
	bytes []byte
}

func malformedUpdates() []malformed {
	origin, path, hop, lp := attr(0x40, 1, 0), attr(0x40, 2), attr(0x40, 3, 10, 0, 0, 2), attr(0x40, 5, 0, 0, 0, 100)
	base := join(origin, path, hop, lp)
	nlri, six := []byte{24, 10, 66, 6}, []byte{64, 0xfd, 0, 0, 1, 0, 0, 0, 0}
	with := func(more ...byte) []byte { return rawUpdate(nil, join(base, more), nlri) }
	without := func(parts ...[]byte) []byte { return rawUpdate(nil, join(parts...), nlri) }
	list := []malformed{
		// RFC 4271 section 6.1: header
		{"no marker", make([]byte, 19)},
		{"half a marker", append(bytes.Repeat([]byte{0xff}, 8), make([]byte, 11)...)},
		{"length 0", rawMessage(2, 0)},
		{"length 18", rawMessage(2, 18)},
		{"length 4097", rawMessage(2, 4097, make([]byte, 4078)...)},
		{"length 65535", rawMessage(2, 65535, make([]byte, 65516)...)},
		{"type 0", message.New(0)},
		{"type 6", message.New(6)},
		{"type 255", message.New(255, 1, 2, 3)},
		{"KEEPALIVE with a body", message.New(4, 1, 2, 3)},
		{"UPDATE of 20 bytes", message.New(2, 0)},
		{"OPEN while established", message.New(1, 4, 0xfc, 0, 0, 240, 10, 0, 0, 2, 0)},
		{"empty NOTIFICATION", message.New(3)},
		{"NOTIFICATION of one byte", message.New(3, 6)},
		{"ROUTE-REFRESH without a body", message.New(5)},
		{"ROUTE-REFRESH of 3 bytes", message.New(5, 0, 1, 0)},
		{"ROUTE-REFRESH of another family", message.New(5, 0, 99, 0, 99)},
		{"ROUTE-REFRESH with ORF", message.New(5, 0, 1, 0, 1, 1, 64, 0, 200, 0)},
		{"enhanced ROUTE-REFRESH 255", message.New(5, 0, 1, 255, 1)},
		// section 6.3: UPDATE
		{"withdrawn length beyond the message", message.New(2, 0xff, 0xff, 0, 0)},
		{"attribute length beyond the message", message.New(2, 0, 0, 0xff, 0xff)},
		{"withdrawn /33", rawUpdate([]byte{33, 10, 0, 0, 0, 0}, nil, nil)},
		{"withdrawn /255", rawUpdate([]byte{255}, nil, nil)},
		{"withdrawn cut off", rawUpdate([]byte{24, 10, 0}, nil, nil)},
		{"NLRI /33", rawUpdate(nil, base, []byte{33, 10, 0, 0, 0, 0})},
		{"NLRI cut off", rawUpdate(nil, base, []byte{24, 10})},
		{"NLRI with host bits", rawUpdate(nil, base, []byte{8, 10, 24})},
		{"NLRI without attributes", rawUpdate(nil, nil, nlri)},
		{"no ORIGIN", without(path, hop, lp)},
		{"no AS_PATH", without(origin, hop, lp)},
		{"no NEXT_HOP", without(origin, path, lp)},
		{"ORIGIN 3", without(attr(0x40, 1, 3), path, hop, lp)},
		{"ORIGIN of 2 bytes", without(attr(0x40, 1, 0, 0), path, hop, lp)},
		{"ORIGIN of 0 bytes", without(attr(0x40, 1), path, hop, lp)},
		{"ORIGIN twice", with(origin...)},
		{"ORIGIN flagged optional", without(attr(0xc0, 1, 0), path, hop, lp)},
		{"AS_PATH of one byte", without(origin, attr(0x40, 2, 2), hop, lp)},
		{"AS_PATH segment beyond its length", without(origin, attr(0x40, 2, 2, 9, 0, 0, 0, 1), hop, lp)},
		{"AS_PATH segment of type 9", without(origin, attr(0x40, 2, 9, 1, 0, 0, 0, 1), hop, lp)},
		{"AS_PATH segment of 0 ASes", without(origin, attr(0x40, 2, 2, 0), hop, lp)},
		{"AS_PATH with AS 0", without(origin, attr(0x40, 2, 2, 1, 0, 0, 0, 0), hop, lp)},
		{"NEXT_HOP of 3 bytes", without(origin, path, attr(0x40, 3, 1, 2, 3), lp)},
		{"NEXT_HOP of 16 bytes", without(origin, path, attr(0x40, 3, make([]byte, 16)...), lp)},
		{"NEXT_HOP 0.0.0.0", without(origin, path, attr(0x40, 3, 0, 0, 0, 0), lp)},
		{"NEXT_HOP 255.255.255.255", without(origin, path, attr(0x40, 3, 255, 255, 255, 255), lp)},
		{"NEXT_HOP 224.0.0.1", without(origin, path, attr(0x40, 3, 224, 0, 0, 1), lp)},
		{"MED of 3 bytes", with(attr(0x80, 4, 1, 2, 3)...)},
		{"LOCAL_PREF of 5 bytes", without(origin, path, hop, attr(0x40, 5, 1, 2, 3, 4, 5))},
		{"ATOMIC_AGGREGATE of 1 byte", with(attr(0x40, 6, 1)...)},
		{"AGGREGATOR of 5 bytes", with(attr(0xc0, 7, 1, 2, 3, 4, 5)...)},
		{"COMMUNITIES of 3 bytes", with(attr(0xc0, 8, 1, 2, 3)...)},
		{"COMMUNITIES of 0 bytes", with(attr(0xc0, 8)...)},
		{"ORIGINATOR_ID of 3 bytes", with(attr(0x80, 9, 1, 2, 3)...)},
		{"CLUSTER_LIST of 5 bytes", with(attr(0x80, 10, 1, 2, 3, 4, 5)...)},
		{"MP_REACH of 0 bytes", with(attr(0x80, 14)...)},
		{"MP_REACH of 3 bytes", with(attr(0x80, 14, 0, 1, 1)...)},
		{"MP_REACH next hop of 200 bytes announced", with(attr(0x80, 14, 0, 1, 1, 200, 1, 2)...)},
		{"MP_REACH IPv6 /129",
			with(attr(0x80, 14, join([]byte{0, 2, 1, 16}, make([]byte, 16), []byte{0, 129}, make([]byte, 17))...)...)},
		{"MP_REACH of an unknown family", with(attr(0x80, 14, 0x40, 0x99, 77, 4, 1, 2, 3, 4, 0, 8, 10)...)},
		{"MP_REACH EVPN cut off", with(attr(0x80, 14, 0, 25, 70, 4, 1, 2, 3, 4, 0, 2, 33, 1)...)},
		{"MP_REACH flow specification cut off", with(attr(0x80, 14, 0, 1, 133, 0, 0, 200, 1)...)},
		{"MP_REACH link state cut off", with(attr(0x80, 14, 0x40, 4, 71, 4, 1, 2, 3, 4, 0, 0, 1, 0, 99, 1)...)},
		{"MP_REACH VPN with label 0", with(attr(0x80, 14, 0, 1, 128, 4, 1, 2, 3, 4, 0, 88)...)},
		{"MP_UNREACH of 1 byte", with(attr(0x80, 15, 0)...)},
		{"MP_UNREACH IPv6 cut off", with(attr(0x80, 15, 0, 2, 1, 64, 0x20)...)},
		{"EXTENDED COMMUNITIES of 7 bytes", with(attr(0xc0, 16, 1, 2, 3, 4, 5, 6, 7)...)},
		{"AS4_PATH malformed", with(attr(0xc0, 17, 2, 200, 1)...)},
		{"AS4_AGGREGATOR of 2 bytes", with(attr(0xc0, 18, 1, 2)...)},
		{"PMSI_TUNNEL of 1 byte", with(attr(0xc0, 22, 1)...)},
		{"TUNNEL_ENCAP cut off", with(attr(0xc0, 23, 0, 15, 0, 200, 1)...)},
		{"AIGP cut off", with(attr(0x80, 26, 1, 0, 99)...)},
		{"LINK_STATE cut off", with(attr(0x80, 29, 4, 0, 0, 200)...)},
		{"LARGE_COMMUNITIES of 11 bytes", with(attr(0xc0, 32, make([]byte, 11)...)...)},
		{"PREFIX_SID cut off", with(attr(0xc0, 40, 1, 0, 99, 1)...)},
		{"unknown well-known attribute", with(attr(0x40, 200, 1)...)},
		{"unknown optional attribute", with(attr(0xc0, 201, 1)...)},
		{"attribute header cut off", rawUpdate(nil, join(base, []byte{0xc0}), nlri)},
		{"attribute longer than the rest", rawUpdate(nil, join(base, []byte{0xc0, 8, 200, 1}), nlri)},
		{"extended length cut off", rawUpdate(nil, join(base, []byte{0xd0, 8, 1}), nlri)},
		{"2000 times the same prefix", rawUpdate(nil, base, bytes.Repeat(nlri, 900))},
		// RFC 7606 section 3 (h): a fault of little weight hides no other
		{"no NEXT_HOP beside a malformed AGGREGATOR", without(origin, path, lp, attr(0xc0, 7, 1))},
		{"next hop of another family beside a malformed AGGREGATOR",
			rawUpdate(nil, join(mpReach(six), origin, path, lp, attr(0xc0, 7, 1)), nlri)},
		{"IPv6 beside a malformed AGGREGATOR",
			rawUpdate(nil, join(mpReach(six), origin, path, lp, attr(0xc0, 7, 1)), nil)},
		{"AS4_PATH as long as an AS_PATH with an AS_SET", // RFC 6793 section 4.2.3
			without(origin, attr(0x40, 2, 1, 2, 0, 0, 0, 5, 0, 0, 0, 6, 2, 1, 0, 0, 0, 7), hop, lp,
				attr(0xc0, 17, 2, 2, 0, 0, 0, 8, 0, 0, 0, 9))},
		// families that were not negotiated (RFC 4760 section 8)
		{"End-of-RIB of IPv6", rawUpdate(nil, attr(0x80, 15, 0, 2, 1), nil)},
		{"End-of-RIB of EVPN", rawUpdate(nil, attr(0x80, 15, 0, 25, 70), nil)},
		{"End-of-RIB of an unknown family", rawUpdate(nil, attr(0x80, 15, 0x40, 0x99, 77), nil)},
		{"MP_REACH of IPv6 alone", rawUpdate(nil, join(mpReach(six), origin, path, lp), nil)},
		{"MP_UNREACH of IPv6 alone", rawUpdate(nil, attr(0x80, 15, join([]byte{0, 2, 1}, six)...), nil)},
	}
	return list
}

// malformedOpens are the ones of a peer in this AS.
func malformedOpens(as uint16) []malformed {
	open := func(version byte, as uint16, hold uint16, id byte, optLen byte, opts ...byte) []byte {
		b := []byte{version}
		b = binary.BigEndian.AppendUint16(b, as)
		b = binary.BigEndian.AppendUint16(b, hold)
		return message.New(1, append(append(b, 10, 99, 9, id, optLen), opts...)...)
	}
	capability := func(code byte, value ...byte) []byte {
		return append([]byte{2, byte(len(value) + 2), code, byte(len(value))}, value...)
	}
	with := func(c []byte) []byte { return open(4, as, 240, 9, byte(len(c)), c...) }
	return []malformed{
		{"OPEN of 5 bytes", message.New(1, 4, 0, 0, 0, 0)},
		{"OPEN version 3", open(3, as, 240, 9, 0)},
		{"OPEN AS 0", open(4, 0, 240, 9, 0)},
		{"OPEN hold time 2", open(4, as, 2, 9, 0)},
		{"OPEN options beyond the message", open(4, as, 240, 9, 200)},
		{"OPEN options shorter than the message", open(4, as, 240, 9, 1, 2, 0, 2, 0)},
		{"OPEN option cut off", open(4, as, 240, 9, 2, 2, 100)},
		{"OPEN option of type 1", open(4, as, 240, 9, 4, 1, 2, 0, 0)},
		{"OPEN option of type 255 (RFC 9072)", open(4, as, 240, 9, 255, 255, 0, 9, 2)},
		{"capability cut off", open(4, as, 240, 9, 4, 2, 2, 1, 99)},
		{"capability multiprotocol of 1 byte", with(capability(1, 0))},
		{"capability multiprotocol of another family only", with(capability(1, 0, 25, 0, 70))},
		{"capability extended next hop of 3 bytes", with(capability(5, 0, 1, 0))},
		{"capability graceful restart of 1 byte", with(capability(64, 0))},
		{"capability graceful restart with half a tuple", with(capability(64, 0, 120, 0, 1))},
		{"capability 4-octet AS of 2 bytes", with(capability(65, 0, 1))},
		{"capability ADD-PATH of 3 bytes", with(capability(69, 0, 1, 1))},
		{"capability ADD-PATH mode 9", with(capability(69, 0, 1, 1, 9))},
		{"capability long-lived graceful restart of 2 bytes", with(capability(71, 0, 1))},
		{"capability FQDN cut off", with(capability(73, 200, 'a'))},
		{"capability software version cut off", with(capability(75, 200, 'a'))},
		{"unknown capability", with(capability(200, 1, 2, 3))},
		// RFC 9072, not malformed
		{"extended optional parameters", open(4, as, 240, 9, 255, 255, 0, 9, 2, 0, 6, 1, 4, 0, 1, 0, 1)},
		{"extended optional parameters beyond the message",
			open(4, as, 240, 9, 255, 255, 0xff, 0xff, 2, 0, 6, 1, 4, 0)},
		{"extended optional parameter beyond them", open(4, as, 240, 9, 255, 255, 0, 9, 2, 0xff, 6, 1, 4, 0, 1, 0, 1)},
		{"two OPENs", join(open(4, as, 240, 9, 0), open(4, as, 240, 9, 0))},
		{"KEEPALIVE with a body after the OPEN", join(open(4, as, 240, 9, 0), message.New(4, 1, 2, 3))},
		{"UPDATE before the KEEPALIVE", join(open(4, as, 240, 9, 0), rawUpdate(nil, nil, nil))},
		{"KEEPALIVE before the OPEN", join(message.New(4), open(4, as, 240, 9, 0))},
		{"KEEPALIVE with a body before the OPEN", join(message.New(4, 1), open(4, as, 240, 9, 0))},
		{"NOTIFICATION before the OPEN", join(message.New(3, 6, 5), open(4, as, 240, 9, 0))},
		{"ROUTE-REFRESH before the OPEN", join(message.New(5, 0, 1, 0, 1), open(4, as, 240, 9, 0))},
		{"KEEPALIVE instead of an OPEN", message.New(4)},
		{"NOTIFICATION instead of an OPEN", message.New(3, 2, 2)},
		{"NOTIFICATION of one byte instead of an OPEN", message.New(3, 2)},
		{"UPDATE instead of an OPEN", rawUpdate(nil, nil, nil)},
		{"a TLS hello", append([]byte{22, 3, 1, 0, 200, 1, 0, 0}, bytes.Repeat([]byte{7}, 64)...)},
	}
}

// TestMalformedMessages: the process survives any message of a peer, other sessions are untouched and are sent nothing
// malformed, and the peer can come back with a valid session.
func TestMalformedMessages(t *testing.T) {
	if !isolated(t) {
		return
	}
	s, d := passingOn(t, Config{Logger: zap.NewNop(), RestartDeferral: time.Second, OpenTimeout: 3 * time.Second})
	bystanders, list := bystandersOf(&d), []*attacker(nil)
	todo, updates := map[*attacker]malformed{}, len(malformedUpdates())
	for i := range updates + len(malformedOpens(0)) {
		for _, six := range []bool{false, true} {
			kind := dialect{as: 64512, six: six, addPath: i%3 == 0}
			if (i%2 == 0) == six { // each is sent by an internal and an external peer
				kind.as = 64999
			}
			a := newAttacker(s, &d, kind, i+1)
			todo[a] = slices.Concat(malformedUpdates(), malformedOpens(uint16(a.as)))[i]
			list = append(list, a)
		}
	}
	mustSet(t, s, d)
	for _, b := range bystanders {
		b.start(t, s, d)
	}
	// the state kept for each peer
	forEach(t, list, func(a *attacker) error { defer a.disconnect(); return a.connect() })
	before := usageNow(s, len(bystanders))
	forEach(t, list, func(a *attacker) error {
		defer a.disconnect()
		begin := a.joined
		if a.host() <= updates {
			begin = a.connect
		}
		if err := begin(); err != nil {
			return fmt.Errorf("%s: %w", todo[a].name, err)
		}
		a.write(todo[a].bytes)
		// A valid message after the malformed one ensures that the speaker has processed the malformed one.
		a.write(message.New(4))
		a.await(kindClosed, short)
		if err := complaints(bystanders); err != nil {
			return fmt.Errorf("%s, or one of those beside it: %w", todo[a].name, err)
		}
		return nil
	})
	// The speaker still works.
	d.Originated = append(d.Originated, bgp.Origin{Prefix: pfx("10.244.1.0/26"), LocalPref: 1})
	mustSet(t, s, d)
	for _, b := range bystanders {
		for end := time.Now().Add(patience); b.session.Address.Is4() && b.length(pfx("10.244.1.0/26")) == 0; {
			if time.Now().After(end) {
				t.Fatalf("bystander %s does not get a new route", b.name)
			}
			time.Sleep(10 * time.Millisecond)
		}
	}
	d.Originated = d.Originated[:len(d.Originated)-1]
	mustSet(t, s, d)
	forEach(t, list, func(a *attacker) error { defer a.disconnect(); return a.connect() })
	awaitOwnAlone(t, s, bystanders)
	if err := complaints(bystanders); err != nil {
		t.Error(err)
	}
	before.compare(t, s, len(bystanders))
	for _, st := range s.Sessions() {
		if strings.Contains(st.Reason, "%!") {
			t.Errorf("broken reason %q", st.Reason)
		}
	}
}
