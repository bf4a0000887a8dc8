package speaker

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	gobgp "github.com/osrg/gobgp/v4/pkg/packet/bgp"
	"go.uber.org/zap"

	"github.com/manxnet/manx/bgp"
)

// dialect is how a peer writes its UPDATEs.
type dialect struct {
	six, addPath bool
	as           uint32
}

func (d dialect) external() bool { return d.as != 64512 }

// path begins with the AS of an external peer.
func (d dialect) path(segments ...byte) []byte {
	if d.external() {
		segments = slices.Concat([]byte{2, 1}, binary.BigEndian.AppendUint32(nil, d.as), segments)
	}
	return longAttr(0x40, 2, segments...)
}

// routes encodes prefixes; with ADD-PATH they have the identifier 1.
func (d dialect) routes(prefixes ...netip.Prefix) (list []byte) {
	for _, p := range prefixes {
		if d.addPath {
			list = append(list, 0, 0, 0, 1)
		}
		list = append(list, byte(p.Bits()))
		list = append(list, p.Addr().AsSlice()[:(p.Bits()+7)/8]...)
	}
	return list
}

// mpReach is MP_REACH_NLRI for IPv6.
func mpReach(routes []byte) []byte {
	return longAttr(0x80, 14, join([]byte{0, 2, 1, 16}, slices.Repeat([]byte{0xfd}, 16), []byte{0}, routes)...)
}

// update announces routes with some attributes beside the mandatory ones, of which AS_PATH is among more.
func (d dialect) update(routes []byte, more ...byte) []byte {
	attributes := attr(0x40, 1, 0)
	if !d.external() {
		attributes = append(attributes, attr(0x40, 5, 0, 0, 0, 100)...)
	}
	if d.six {
		return rawUpdate(nil, join(mpReach(routes), attributes, more), nil)
	}
	return rawUpdate(nil, join(attributes, attr(0x40, 3, 10, 0, 0, 2), more), routes)
}

// shortUpdate is valid and has no attribute but the mandatory ones.
func (d dialect) shortUpdate(routes []byte) []byte { return d.update(routes, d.path()...) }

// filling has attributes, AS_PATH included, that take up room.
type filling struct {
	name string
	make func(d dialect, room int) []byte // at most as long as room, which is more than some hundred bytes
}

// fillings are those that are valid in an UPDATE of any peer.
func fillings() []filling {
	path := func(kind byte, size, most int, first uint32) func(dialect, int) []byte {
		return func(d dialect, room int) []byte {
			room -= len(d.path())
			segments, as := make([]byte, 0, room), first
			for {
				n := min(size, most-int(as-first), (room-len(segments)-2)/4)
				if n <= 0 {
					return d.path(segments...)
				}
				segments = append(segments, kind, byte(n))
				for range n {
					segments = binary.BigEndian.AppendUint32(segments, as)
					as++
				}
			}
		}
	}
	list := func(flags, kind byte, element ...byte) func(dialect, int) []byte {
		return func(d dialect, room int) []byte {
			n := (room - len(d.path()) - 4) / len(element)
			value := slices.Repeat(element, n)
			for i := range n { // no two are equal
				binary.BigEndian.PutUint16(value[(i+1)*len(element)-2:], uint16(i))
			}
			return join(d.path(), longAttr(flags, kind, value...))
		}
	}
	const set, sequence, most = 1, 2, 1 << 16
	return []filling{
		{"AS_PATH of one segment, and an unknown attribute", path(sequence, 255, 255, 1000)},
		{"AS_PATH of full segments", path(sequence, 255, most, 1000)},
		{"AS_PATH of four-octet numbers", path(sequence, 255, most, 400_000)},
		{"AS_PATH of many segments", path(sequence, 1, most, 1000)},
		{"AS_SETs", path(set, 255, most, 1000)},
		{"communities", list(0xc0, 8, 0xfd, 0xe8, 0, 0)},
		{"extended communities", list(0xc0, 16, 0, 2, 0xfd, 0xe8, 0, 0, 0, 0)},
		{"large communities", list(0xc0, 32, 0, 0, 0xfd, 0xe8, 0, 0, 0, 0, 0, 0, 0, 0)},
		{"an unknown attribute", func(d dialect, room int) []byte { return d.path() }},
		{"many unknown attributes", func(d dialect, room int) []byte {
			b := d.path()
			for kind := byte(202); len(b)+103 <= room && kind < 255; kind++ {
				b = append(b, attr(0xe0, kind, make([]byte, 100)...)...)
			}
			return b
		}},
	}
}

// longUpdate is a valid UPDATE of exactly this length.
func (d dialect) longUpdate(length int, f filling, routes []byte) []byte {
	all := length - len(d.update(routes))
	for room := all; ; room-- {
		b := f.make(d, room)
		switch left := all - len(b); {
		case left == 0:
			return d.update(routes, b...)
		case left >= 260:
			return d.update(routes, append(b, longAttr(0xe0, 201, make([]byte, left-4)...)...)...)
		case left >= 3 && left <= 258:
			return d.update(routes, append(b, attr(0xe0, 201, make([]byte, left-3)...)...)...)
		}
	}
}

func TestLongUpdatesAreValid(t *testing.T) {
	t.Parallel()
	for _, d := range []dialect{{as: 64512}, {as: 64999}, {as: 64999, six: true}, {as: 64512, addPath: true}} {
		parsing := &gobgp.MarshallingOption{}
		if d.addPath {
			parsing.AddPath = map[gobgp.Family]gobgp.BGPAddPathMode{gobgp.RF_IPv4_UC: gobgp.BGP_ADD_PATH_BOTH}
		}
		routes := d.routes(pfx("10.70.1.0/26"), pfx("10.70.2.0/26"))
		if d.six {
			routes = d.routes(pfx("fd00:70::/64"))
		}
		families := map[gobgp.Family]gobgp.BGPAddPathMode{gobgp.RF_IPv4_UC: 0, gobgp.RF_IPv6_UC: 0}
		for _, f := range fillings() {
			for length := 4096; length >= 1500; length -= 1 + (4096-length)/20 {
				b := d.longUpdate(length, f, routes)
				m, err := gobgp.ParseBGPMessage(b, parsing)
				if err == nil {
					_, err = gobgp.ValidateUpdateMsg(m.Body.(*gobgp.BGPUpdate), families, d.external(), false, false)
				}
				if err != nil || len(b) != length || !announces(b[19:]) {
					t.Fatalf("%+v, %s, length %d: length %d, %v", d, f.name, length, len(b), err)
				}
			}
		}
	}
}

// announcer announces one prefix, with attributes of one filling.
type announcer struct {
	*rawPeer
	dialect
	s          *Speaker
	filling    filling
	prefix     netip.Prefix
	bystanders []*bystander // those that get the routes of this peer
	without    int          // long routes that did not reach all of them
}

// TestLongestUpdate: when the speaker passes a route on, its attributes grow, so that they may not fit into a message
// any more. No peer keeps an older route then, and the status of the announcing peer names the prefix.
func TestLongestUpdate(t *testing.T) {
	if !isolated(t) {
		return
	}
	s, d := passingOn(t, Config{Logger: zap.NewNop(), RestartDeferral: time.Second})
	bystanders := bystandersOf(&d)
	var list []*announcer
	for _, kind := range []dialect{{as: 64999}, {as: 64512}, {as: 64999, addPath: true}, {as: 64999, six: true},
		{as: 64512, six: true}} {
		for _, f := range fillings() {
			list = append(list, newAnnouncer(s, &d, bystanders, announcer{dialect: kind, filling: f}, len(list)+1))
		}
	}
	mustSet(t, s, d)
	for _, b := range bystanders {
		b.start(t, s, d)
	}
	var lengths []int
	for n := 4096; n >= 4060; n-- {
		lengths = append(lengths, n)
	}
	for n := 4056; n >= 3700; n -= 11 {
		lengths = append(lengths, n)
	}
	for n := 3650; n > 1400; n -= 151 { // the AS_PATH for a peer with two-octet numbers is half as long again
		lengths = append(lengths, n)
	}
	forEach(t, list, func(a *announcer) error {
		defer a.disconnect()
		if err := a.connect(); err != nil {
			return err
		}
		for _, n := range lengths {
			if t.Failed() {
				break
			}
			if err := a.replace(n); err != nil {
				return fmt.Errorf("%d bytes: %w", n, err)
			}
		}
		return nil
	})
	for _, a := range list {
		t.Logf("%s: %d of %d lengths not everywhere", a, a.without, len(lengths))
	}
	awaitOwnAlone(t, s, bystanders)
	if err := complaints(bystanders); err != nil {
		t.Error(err)
	}
}

func newAnnouncer(s *Speaker, d *bgp.Desired, bystanders []*bystander, a announcer, host int) *announcer {
	a.s, a.prefix = s, netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 70, byte(host), 0}), 26)
	if a.six {
		a.prefix = pfx(fmt.Sprintf("fd00:70:%x::/64", host))
	}
	sess := isolatedSession(a.six, host, a.as)
	sess.Filters = []string{filterOwn}
	o := isolatedOptions(sess)
	o.addPath = a.addPath
	a.rawPeer = &rawPeer{session: sess, options: o, speaker: speakerAddress(*d, sess)}
	for _, b := range bystanders {
		reflected := a.external() || b.session.PeerAS != a.as || b.session.ReflectorClient
		if b.session.Address.Is6() == a.six && reflected {
			a.bystanders = append(a.bystanders, b)
		}
	}
	d.Sessions = append(d.Sessions, sess)
	return &a
}

func (a *announcer) String() string {
	return fmt.Sprintf("peer %s (AS %d, ADD-PATH %v), %s", a.session.Address, a.as, a.addPath, a.filling.name)
}

var lengthInText = regexp.MustCompile(`\b[1-9][0-9]{3,4}\b`)

// replace announces a short route, and then one in an UPDATE of this length instead.
func (a *announcer) replace(length int) error {
	const aShortOne = 300
	routes := a.routes(a.prefix)
	a.write(a.shortUpdate(routes))
	if err := a.until(func() (err error) {
		for _, b := range a.bystanders {
			if n := b.length(a.prefix); n == 0 || n > aShortOne {
				err = fmt.Errorf("bystander %s has not got the short route", b.name)
			}
		}
		return err
	}); err != nil {
		return err
	}
	a.write(a.longUpdate(length, a.filling, routes))
	complete := false
	err := a.until(func() error {
		complete = true
		for _, b := range a.bystanders {
			switch n := b.length(a.prefix); {
			case n > 0 && n < aShortOne:
				return fmt.Errorf("bystander %s keeps the short route", b.name)
			case n == 0:
				complete = false
			}
		}
		if st, _ := a.s.Session(a.session.Address); !complete &&
			(!strings.Contains(st.Warning, a.prefix.String()) || !lengthInText.MatchString(st.Warning)) {
			return fmt.Errorf("not all bystanders have the route; the warning %q does not say so", st.Warning)
		}
		return nil
	})
	if !complete && length <= 2000 { // it fits into any message
		err = errors.Join(err, errors.New("not all bystanders have the route"))
	}
	if !complete {
		a.without++
	}
	return err
}

// until waits for a condition, which says what is missing.
func (a *announcer) until(met func() error) (err error) {
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(2 * time.Millisecond) {
		if err = met(); err == nil {
			break
		}
		select {
		case kind, ok := <-a.messages:
			if !ok || kind == kindNotification {
				return errors.New("the session ended")
			}
		default:
		}
	}
	return errors.Join(err, complaints(a.bystanders))
}
