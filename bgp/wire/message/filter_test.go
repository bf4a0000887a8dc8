package message

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/osrg/gobgp/v4/pkg/packet/bgp"
)

func attr(flags, kind byte, value ...byte) []byte {
	if len(value) > 255 {
		head := []byte{flags | 0x10, kind, byte(len(value) >> 8), byte(len(value))}
		return append(head, value...)
	}
	return append([]byte{flags, kind, byte(len(value))}, value...)
}

func join(parts ...[]byte) []byte { return bytes.Join(parts, nil) }

var (
	attrOrigin = attr(0x40, 1, 0)
	attrPath   = attr(0x40, 2, 2, 1, 0, 0, 0xfe, 9)
	attrHop    = attr(0x40, 3, 10, 0, 0, 2)
	nlri24     = []byte{24, 10, 66, 6}
	basic      = join(attrOrigin, attrPath, attrHop)
)

func newFilter(v6 bool) *Filter {
	return &Filter{V6: v6, Family: true, External: true, Width: 4, Growth: func() int { return 60 }}
}

// The filter passes on, changes or drops an UPDATE by the rules of the RFCs.
func TestFilter(t *testing.T) {
	t.Parallel()
	withdrawal := appendUpdate(nil, update{withdrawn: nlri24})
	reach6 := attr(0x80, 14, join([]byte{0, 2, 1, 16}, make([]byte, 16), []byte{0, 32, 0xfd, 0, 0, 1})...)
	withdrawal6 := appendUpdate(nil, update{attrs: appendUnreach(nil, true, []byte{32, 0xfd, 0, 0, 1})})
	with := func(more ...[]byte) []byte {
		return appendUpdate(nil, update{attrs: join(basic, join(more...)), nlri: nlri24})
	}
	without := func(parts ...[]byte) []byte { return appendUpdate(nil, update{attrs: join(parts...), nlri: nlri24}) }
	for _, c := range []struct {
		name   string
		in     []byte
		v6     bool
		change func(*Filter)
		want   []byte // "same" as in if nil
		gone   bool   // nothing is passed on
		reset  uint8  // the session ends with NOTIFICATION 3/reset
		mend   Kind
		words  string // of the mend; empty: there is none
	}{
		{name: "an ordinary one", in: with()},
		{name: "End-of-RIB", in: EndOfRIB(false)},
		{name: "LOCAL_PREF, ORIGINATOR_ID and CLUSTER_LIST of another AS are removed",
			in: with(attr(0x40, 5, 0, 0, 0, 1), attr(0x80, 9, 1, 2, 3), attr(0x80, 10, 1, 2, 3, 4)), want: with()},
		{name: "those of the own AS stay", change: func(f *Filter) { f.External = false },
			in: with(attr(0x40, 5, 0, 0, 0, 1), attr(0x80, 10, 1, 2, 3, 4))},
		{name: "LOCAL_PREF of the own AS with a wrong length", change: func(f *Filter) { f.External = false },
			in: with(attr(0x40, 5, 0, 0, 1)), want: withdrawal, mend: TreatedAsWithdraw,
			words: "LOCAL_PREF has length 3"},
		{name: "unknown transitive attribute gets the partial bit", in: with(attr(0xc0, 99, 1)),
			want: with(attr(0xe0, 99, 1))},
		{name: "unknown attribute that is not transitive", in: with(attr(0x80, 99, 1))},
		{name: "empty COMMUNITIES", in: with(attr(0xc0, 8)), want: withdrawal, mend: TreatedAsWithdraw,
			words: "COMMUNITIES has length 0"},
		{name: "AS 0", in: without(attrOrigin, attr(0x40, 2, 2, 2, 0, 0, 0xfe, 9, 0, 0, 0, 0), attrHop),
			want: withdrawal, mend: TreatedAsWithdraw, words: "AS 0 (RFC 7607)"},
		{name: "AGGREGATOR with AS 0", in: with(attr(0xc0, 7, 0, 0, 0, 0, 1, 2, 3, 4)), want: with(),
			mend: Discarded, words: "AGGREGATOR has AS 0"},
		{name: "AS4_PATH and AIGP of a peer with 4-octet AS numbers are removed",
			in: with(attr(0xc0, 17, 2, 1, 0, 0, 0, 9), attr(0x80, 26, 1, 0, 3)), want: with()},
		{name: "AS4_PATH of a peer without", change: func(f *Filter) { f.Width = 2 },
			in: without(attrOrigin, attr(0x40, 2, 2, 1, 0x5b, 0xa0), attrHop, attr(0xc0, 17, 2, 1, 0, 1, 0, 9))},
		{name: "AS4_PATH without AS", change: func(f *Filter) { f.Width = 2 },
			in:   without(attrOrigin, attr(0x40, 2, 2, 1, 0x5b, 0xa0), attrHop, attr(0xc0, 17)),
			want: without(attrOrigin, attr(0x40, 2, 2, 1, 0x5b, 0xa0), attrHop), mend: Discarded,
			words: "AS4_PATH"},
		{name: "AS4_PATH beside a set", change: func(f *Filter) { f.Width = 2 },
			in:   without(attrOrigin, attr(0x40, 2, 1, 1, 0x5b, 0xa0), attrHop, attr(0xc0, 17, 2, 1, 0, 1, 0, 9)),
			want: without(attrOrigin, attr(0x40, 2, 1, 1, 0x5b, 0xa0), attrHop), mend: Discarded, words: "set"},
		{name: "empty AS_PATH of another AS", in: without(attrOrigin, attr(0x40, 2), attrHop), want: withdrawal,
			mend: TreatedAsWithdraw, words: "AS_PATH is empty"},
		{name: "empty AS_PATH of the own AS", change: func(f *Filter) { f.External = false },
			in: without(attrOrigin, attr(0x40, 2), attrHop)},
		{name: "no NEXT_HOP", in: without(attrOrigin, attrPath), want: withdrawal, mend: TreatedAsWithdraw,
			words: "NEXT_HOP is missing"},
		{name: "multicast NEXT_HOP", in: without(attrOrigin, attrPath, attr(0x40, 3, 224, 0, 0, 1)), want: withdrawal,
			mend: TreatedAsWithdraw, words: "NEXT_HOP is 224.0.0.1"},
		{name: "an attribute twice", in: with(attrOrigin), want: with(), mend: Discarded,
			words: "ORIGIN is there twice"},
		{name: "wrong flags", in: without(attr(0x80, 1, 0), attrPath, attrHop), want: withdrawal,
			mend: TreatedAsWithdraw, words: "ORIGIN has the flags 0x80"},
		{name: "unknown well-known attribute", in: with(attr(0x40, 99, 1)), reset: 2},
		{name: "NEXT_HOP beside MP_REACH_NLRI is removed", v6: true,
			in:   appendUpdate(nil, update{attrs: join(attrOrigin, attrPath, attr(0x40, 3, 0, 0, 0, 0), reach6)}),
			want: appendUpdate(nil, update{attrs: join(attrOrigin, attrPath, reach6)})},
		{name: "IPv4 routes with an IPv6 next hop", in: appendUpdate(nil, update{attrs: join(attrOrigin, attrPath,
			attr(0x80, 14, join([]byte{0, 1, 1, 16}, make([]byte, 16), []byte{0}, nlri24)...))}), want: withdrawal,
			mend: TreatedAsWithdraw, words: "the next hop in attribute MP_REACH_NLRI has length 16"},
		{name: "lengths that do not fit", in: New(bgp.BGP_MSG_UPDATE, 0, 0, 0, 9, 1, 2), reset: 1},
		{name: "attributes that do not fit", in: with([]byte{0xc0, 99, 200}), want: withdrawal, mend: TreatedAsWithdraw,
			words: "do not fit their lengths"},
		{name: "attributes that do not fit, on IPv6", v6: true, in: with([]byte{0xc0, 99, 200}), reset: 1},
		{name: "malformed prefix", reset: 10,
			in: appendUpdate(nil, update{attrs: basic, nlri: []byte{33, 1, 2, 3, 4, 5}})},
		{name: "malformed MP_REACH_NLRI", in: with(attr(0x80, 14, 0, 1)), reset: 9},
		{name: "MP_REACH_NLRI twice", in: with(reach6, reach6), reset: 1},
		{name: "routes of another family", in: with(reach6), want: with(), mend: OtherFamily, words: "ipv6-unicast"},
		{name: "End-of-RIB of another family", in: EndOfRIB(true), gone: true, mend: OtherFamily,
			words: "ipv6-unicast"},
		{name: "IPv4 on a session without it", v6: true, in: with(), gone: true, mend: OtherFamily,
			words: "ipv4-unicast"},
		{name: "IPv6", v6: true, in: appendUpdate(nil, update{attrs: join(attrOrigin, attrPath, reach6)})},
		{name: "IPv6 with AS 0", v6: true, in: appendUpdate(nil, update{attrs: join(attrOrigin,
			attr(0x40, 2, 2, 1, 0, 0, 0, 0), reach6)}), want: withdrawal6, mend: TreatedAsWithdraw, words: "AS 0"},
		{name: "too long", in: with(attr(0xc0, 99, make([]byte, 4000)...)), want: withdrawal, mend: TooLong,
			words: "its attributes take 4024 bytes"},
		{name: "just short enough", in: with(attr(0xc0, 99, make([]byte, 3973)...)),
			want: with(attr(0xe0, 99, make([]byte, 3973)...))},
		{name: "one byte too long", in: with(attr(0xc0, 99, make([]byte, 3974)...)), want: withdrawal,
			mend: TooLong, words: "4097 bytes"},
		{name: "too long for a peer without 4-octet AS numbers alone",
			in: without(attrOrigin, attr(0x40, 2, longPath(700)...), attrHop), want: withdrawal, mend: TooLong,
			words: "of at most 4096"},
	} {
		f := newFilter(c.v6)
		if c.change != nil {
			c.change(f)
		}
		in := bytes.Clone(c.in)
		got := f.Check(in)
		if c.reset != 0 {
			if got.Reset == nil || got.Reset.Code != 3 || got.Reset.Sub != c.reset || got.Message != nil {
				t.Errorf("%s: %+v", c.name, got)
			}
			continue
		}
		want := c.want
		if want == nil && !c.gone {
			want = c.in
		}
		if !bytes.Equal(got.Message, want) {
			t.Errorf("%s:\n got %x\nwant %x", c.name, got.Message, want)
		}
		switch {
		case c.words == "" && len(got.Mends) > 0:
			t.Errorf("%s: %+v", c.name, got.Mends)
		case c.words != "" && (len(got.Mends) != 1 || got.Mends[0].Kind != c.mend ||
			!strings.Contains(got.Mends[0].Detail, c.words)):
			t.Errorf("%s: %+v, want %d %q", c.name, got.Mends, c.mend, c.words)
		}
	}
}

// All routes of an UPDATE count: GoBGP takes those behind the attributes and those in them.
func TestFilterCountsAllRoutes(t *testing.T) {
	t.Parallel()
	reach := attr(0x80, 14, join([]byte{0, 1, 1, 4, 10, 0, 0, 2, 0}, nlri24, []byte{16, 10, 1})...)
	f := newFilter(false)
	got := f.Check(appendUpdate(nil, update{attrs: join(basic, reach), nlri: []byte{16, 10, 2}}))
	if list := f.Routes(got.Announced); len(list) != 3 {
		t.Errorf("%+v", list)
	}
}

// longPath is the value of an AS_PATH of n numbers.
func longPath(n int) (v []byte) {
	for n > 0 {
		k := min(n, 255)
		v = append(v, 2, byte(k))
		for range k {
			v = binary.BigEndian.AppendUint32(v, 65001)
		}
		n -= k
	}
	return v
}

// Any UPDATE is passed on no longer than it came, and in a form that GoBGP reads. Faults of attributes that the filter
// knows are its own to mend: GoBGP finds none of them afterwards.
func FuzzFilter(f *testing.F) {
	f.Add(join(basic, attr(0xc0, 8, 1, 2, 3, 4)), nlri24, nlri24, uint8(0))
	f.Add(join(attrOrigin, attrPath, attr(0x80, 14, join([]byte{0, 2, 1, 16}, make([]byte, 16),
		[]byte{0, 32, 0xfd, 0, 0, 1})...)), []byte(nil), []byte(nil), uint8(1))
	f.Add(join(basic, attr(0x80, 15, 0, 2, 1)), nlri24, []byte{0, 0, 0, 1, 24, 10, 1, 1}, uint8(2))
	f.Add(join(attrOrigin, attr(0x40, 2, longPath(900)...), attrHop), nlri24, []byte(nil), uint8(4))
	f.Fuzz(func(t *testing.T, attrs, nlri, withdrawn []byte, mode uint8) {
		if len(attrs)+len(nlri)+len(withdrawn) > longestLength-fixedLength {
			return
		}
		x := newFilter(mode&1 != 0)
		x.Paths, x.External = mode&2 != 0, mode&4 == 0
		if mode&8 != 0 {
			x.Width = 2
		}
		in := appendUpdate(nil, update{withdrawn, attrs, nlri})
		before := len(in)
		got := x.Check(in)
		if got.Message == nil {
			return
		}
		if n, err := checkHeader(got.Message[:headerLength]); err != nil || n != len(got.Message) || n > before {
			t.Fatalf("%d bytes became %x: %v", before, got.Message, err)
		}
		option := &bgp.MarshallingOption{Use2ByteAS: x.Width == 2,
			AddPath: map[bgp.Family]bgp.BGPAddPathMode{}}
		if x.Paths {
			option.AddPath[x.own()] = bgp.BGP_ADD_PATH_BOTH
		}
		m, err := bgp.ParseBGPMessage(got.Message, option)
		if err == nil {
			families := map[bgp.Family]bgp.BGPAddPathMode{x.own(): option.AddPath[x.own()]}
			_, err = bgp.ValidateUpdateMsg(m.Body.(*bgp.BGPUpdate), families, x.External, false, false)
		}
		if err != nil && onlyKnown(got.Message) {
			t.Errorf("GoBGP finds a fault that the filter has left: %v\n%x", err, got.Message)
		}
		sent := Record{V6: x.V6, Paths: x.Paths}
		if out := sent.Check(got.Message); out != nil && len(out) > len(got.Message) {
			t.Errorf("%x is sent as %x", got.Message, out)
		}
		for _, s := range sent.List() {
			if _, err := bgp.ParseBGPMessage(s.Message, option); err != nil && len(got.Mends) > 0 {
				t.Errorf("recorded %x: %v", s.Message, err)
			}
		}
	})
}

// onlyKnown reports whether the filter checks the values of all attributes of an UPDATE.
func onlyKnown(m []byte) bool {
	u, _ := splitUpdate(m)
	known := true
	attributes(u.attrs, func(a attribute) {
		_, fixed := attributeLengths[a.kind]
		known = known && (fixed || a.kind == bgp.BGP_ATTR_TYPE_AS_PATH)
	})
	return known
}

// A peer is sent withdrawals of routes that it has, and no others. The record has the attributes as they were sent.
func TestRecord(t *testing.T) {
	t.Parallel()
	r := &Record{}
	announce := appendUpdate(nil, update{attrs: basic, nlri: append([]byte{16, 10, 1}, nlri24...)})
	if got := r.Check(announce); !bytes.Equal(got, announce) {
		t.Errorf("an announcement is sent as %x", got)
	}
	unknown := appendUpdate(nil, update{withdrawn: []byte{24, 10, 9, 9}})
	if got := r.Check(unknown); got != nil {
		t.Errorf("the withdrawal of a route that was never sent is sent: %x", got)
	}
	if got := r.Check(EndOfRIB(false)); !bytes.Equal(got, EndOfRIB(false)) {
		t.Errorf("the End-of-RIB is sent as %x", got)
	}
	list := r.List()
	if len(list) != 1 || len(list[0].Routes) != 2 || list[0].Routes[0].Prefix != netip.MustParsePrefix("10.1.0.0/16") ||
		!bytes.Equal(list[0].Message, appendUpdate(nil, update{attrs: basic})) {
		t.Errorf("%+v", list)
	}
	mixed := appendUpdate(nil, update{withdrawn: append([]byte{24, 10, 9, 9}, nlri24...)})
	if got := r.Check(mixed); !bytes.Equal(got, appendUpdate(nil, update{withdrawn: nlri24})) {
		t.Errorf("sent %x", got)
	}
	if got := r.Check(mixed); got != nil {
		t.Errorf("sent again %x", got)
	}

	v6 := &Record{V6: true, Paths: true}
	routes6 := []byte{0, 0, 0, 7, 32, 0xfd, 0, 0, 1}
	reach := attr(0x80, 14, join([]byte{0, 2, 1, 16}, make([]byte, 16), []byte{0}, routes6)...)
	v6.Check(appendUpdate(nil, update{attrs: join(attrOrigin, attrPath, reach)}))
	if list := v6.List(); len(list) != 1 || list[0].Routes[0] != (Route{netip.MustParsePrefix("fd00:1::/32"), 7}) {
		t.Errorf("%+v", list)
	}
	other := appendUpdate(nil, update{attrs: appendUnreach(nil, true, []byte{0, 0, 0, 8, 32, 0xfd, 0, 0, 1}, routes6)})
	if got := v6.Check(other); !bytes.Equal(got, appendUpdate(nil, update{attrs: appendUnreach(nil, true, routes6)})) {
		t.Errorf("sent %x", got)
	}
}

// A route can be withdrawn without the speaker, unless it was sent again meanwhile.
func TestWithdrawFromRecord(t *testing.T) {
	t.Parallel()
	reach33 := attr(0x80, 14, join([]byte{0, 2, 1, 16}, make([]byte, 16), []byte{0, 33, 0xfd, 0, 0, 1, 0})...)
	for prefix, c := range map[string]struct {
		v6       bool
		announce []byte
		want     []byte
	}{
		"10.66.6.0/24": {false, appendUpdate(nil, update{attrs: basic, nlri: nlri24}),
			appendUpdate(nil, update{withdrawn: nlri24})},
		"0.0.0.0/0": {false, appendUpdate(nil, update{attrs: basic, nlri: []byte{0}}),
			appendUpdate(nil, update{withdrawn: []byte{0}})},
		"fd00:1::/33": {true, appendUpdate(nil, update{attrs: join(attrOrigin, attrPath, reach33)}),
			appendUpdate(nil, update{attrs: appendUnreach(nil, true, []byte{33, 0xfd, 0, 0, 1, 0})})},
	} {
		p := netip.MustParsePrefix(prefix)
		r := &Record{V6: c.v6}
		has := func() bool {
			more := map[netip.Prefix]bool{p: true}
			for i := range 3 { // more than the peer has
				more[netip.PrefixFrom(netip.AddrFrom4([4]byte{172, 16, byte(i), 0}), 24)] = true
			}
			few, many := r.Among(map[netip.Prefix]bool{p: true}), r.Among(more)
			if !slices.Equal(few, many) {
				t.Errorf("%s: %v among a few, %v among more", prefix, few, many)
			}
			return slices.Contains(few, p)
		}
		if m, late := r.Withdraw(p, time.Now()); m != nil || late || has() {
			t.Errorf("%s, never sent: %x, %v", prefix, m, late)
		}
		before := time.Now()
		r.Check(c.announce)
		if m, late := r.Withdraw(p, before); m != nil || !late || !has() {
			t.Errorf("%s, sent later: %x, %v", prefix, m, late)
		}
		if m, late := r.Withdraw(p, time.Now().Add(time.Second)); !bytes.Equal(m, c.want) || late || has() {
			t.Errorf("%s: %x, %v, want %x", prefix, m, late, c.want)
		}
	}
}
