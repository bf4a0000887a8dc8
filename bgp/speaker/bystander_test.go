package speaker

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	gobgp "github.com/osrg/gobgp/v4/pkg/packet/bgp"

	"github.com/manxnet/manx/bgp"
)

// bystander is a peer that announces nothing and checks all that the speaker passes on to it.
type bystander struct {
	name    string
	session bgp.Session
	options fakeOptions
	conn    net.Conn

	mu      sync.Mutex
	routes  map[netip.Prefix]map[uint32]int // announced and not withdrawn, by identifier: the length of the message
	updates int
	faults  []string // the first of them
	ended   error

	complained bool
}

// The last bytes of the addresses in isolated tests.
const (
	speakerHost    = 255
	bystanderHosts = 200 // from here on
)

// The filters of exports in isolated tests.
const (
	filterOwn    = "1 own routes alone"
	filterLonger = "2 longer attributes"
)

// isolatedSession is a session with a peer that dials the speaker, in the namespace of an isolated test.
func isolatedSession(six bool, host int, as uint32) bgp.Session {
	s := passive(fmt.Sprintf("127.0.6.%d", host))
	if six {
		s.Address, s.Source = ip(fmt.Sprintf("%s%x", isolatedSix, host)), ip(fmt.Sprintf("%s%x", isolatedSix,
			speakerHost))
	}
	s.PeerAS, s.Outsider = as, as != s.LocalAS
	return s
}

// isolatedOptions are the ones of a peer that speaks for this session.
func isolatedOptions(s bgp.Session) fakeOptions {
	b := s.Address.AsSlice()
	o := fakeOptions{as: s.PeerAS, id: fmt.Sprintf("10.99.%d.%d", len(b), b[len(b)-1])}
	if s.Address.Is6() {
		o.family = gobgp.RF_IPv6_UC
	}
	return o
}

// passingOn returns a speaker that passes on all routes, to which sessions can be added.
func passingOn(t *testing.T, cfg Config) (*Speaker, bgp.Desired) {
	s, d := testSpeaker(t, cfg)
	d.Refusals = bgp.Martians()
	d.Originated = []bgp.Origin{{Prefix: pfx("10.244.0.0/26"), LocalPref: 1},
		{Prefix: pfx("fd00:244::/64"), LocalPref: 1}}
	d.ExportPrefixes = []netip.Prefix{pfx("0.0.0.0/0"), pfx("::/0")}
	d.Global.ListenAddresses = append(d.Global.ListenAddresses, ip(fmt.Sprintf("%s%x", isolatedSix, speakerHost)))
	own := []bgp.Rule{{Name: filterOwn, RemotePeers: true}}
	community, large := uint32(64512<<16|7), [3]uint32{64512, 7, 8}
	longer := []bgp.Rule{{Name: filterLonger, Accept: true, Operations: []bgp.Operation{{AddCommunity: &community},
		{AddLarge: &large}, {PrependASPath: []uint32{64512, 64512, 64512, 64512}}}}}
	d.Filters = []bgp.Filter{{Name: filterOwn, ExportV4: own, ExportV6: own},
		{Name: filterLonger, ExportV4: longer, ExportV6: longer}}
	return s, d
}

// speakerAddress is where the peer of a session finds the speaker.
func speakerAddress(d bgp.Desired, s bgp.Session) string {
	return net.JoinHostPort(s.Source.String(), fmt.Sprint(d.Global.ListenPort))
}

// bystandersOf adds to d the session of one bystander of each kind.
func bystandersOf(d *bgp.Desired) (list []*bystander) {
	const internal, six = 64512, true
	add := func(name string, family bool, as uint32, change func(*bgp.Session, *fakeOptions)) {
		b := &bystander{name: name, session: isolatedSession(family, bystanderHosts+len(list), as),
			routes: map[netip.Prefix]map[uint32]int{}}
		b.options = isolatedOptions(b.session)
		b.options.graceful = true
		if change != nil {
			change(&b.session, &b.options)
		}
		d.Sessions = append(d.Sessions, b.session)
		list = append(list, b)
	}
	client := func(s *bgp.Session, _ *fakeOptions) {
		s.ReflectorClient, s.ReflectorClusterID = true, d.Global.RouterID
	}
	longer := func(s *bgp.Session, _ *fakeOptions) { s.Filters = []string{filterLonger} }
	add("eBGP", !six, 64601, nil)
	add("eBGP, extended messages", !six, 64602, func(_ *bgp.Session, o *fakeOptions) { o.extended = true })
	add("eBGP, longer attributes", !six, 64603, longer)
	add("iBGP", !six, internal, nil)
	add("reflector client", !six, internal, client)
	add("eBGP, two-octet AS", !six, 64604, func(_ *bgp.Session, o *fakeOptions) { o.twoOctets = true })
	add("eBGP, ADD-PATH", !six, 64605, func(_ *bgp.Session, o *fakeOptions) { o.addPath = true })
	add("eBGP, no graceful restart", !six, 64606, func(_ *bgp.Session, o *fakeOptions) { o.graceful = false })
	add("IPv6 eBGP", six, 64607, nil)
	add("IPv6 eBGP, longer attributes", six, 64608, longer)
	add("IPv6 reflector client", six, internal, client)
	return list
}

// start brings the session up.
func (b *bystander) start(t *testing.T, s *Speaker, d bgp.Desired) {
	t.Helper()
	b.conn = dialFrom(t, b.session.Address.String(), speakerAddress(d, b.session))
	put(b.conn, b.options.open(), gobgp.NewBGPKeepAliveMessage())
	go b.receive()
	awaitSession(t, s, b.session.Address.String(), "Established", established)
	every(t, 10*time.Second, func() { put(b.conn, gobgp.NewBGPKeepAliveMessage()) })
}

func (b *bystander) receive() {
	parsing := &gobgp.MarshallingOption{Use2ByteAS: b.options.twoOctets, ExtendedMessage: true}
	if b.options.addPath {
		parsing.AddPath = map[gobgp.Family]gobgp.BGPAddPathMode{gobgp.RF_IPv4_UC: gobgp.BGP_ADD_PATH_BOTH}
	}
	for {
		raw, err := readRaw(b.conn)
		if err == nil {
			b.check(raw, parsing)
			continue
		}
		b.mu.Lock()
		b.ended = err
		b.mu.Unlock()
		return
	}
}

func (b *bystander) check(raw []byte, parsing *gobgp.MarshallingOption) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(raw) > gobgp.BGP_MAX_MESSAGE_LENGTH {
		b.fault("a message of %d bytes", len(raw))
	}
	m, err := gobgp.ParseBGPMessage(raw, parsing)
	if err != nil {
		b.fault("%v: %x", err, raw)
		return
	}
	switch body := m.Body.(type) {
	case *gobgp.BGPNotification:
		b.fault("NOTIFICATION %d/%d", body.ErrorCode, body.ErrorSubcode)
	case *gobgp.BGPUpdate:
		b.record(body, len(raw))
	}
}

func (b *bystander) record(u *gobgp.BGPUpdate, length int) {
	announced, withdrawn := u.NLRI, u.WithdrawnRoutes
	for _, a := range u.PathAttributes {
		switch a := a.(type) {
		case *gobgp.PathAttributeMpReachNLRI:
			announced = append(announced, a.Value...)
		case *gobgp.PathAttributeMpUnreachNLRI:
			withdrawn = append(withdrawn, a.Value...)
		}
	}
	for _, n := range withdrawn {
		p := n.NLRI.(*gobgp.IPAddrPrefix).Prefix
		if _, known := b.routes[p][n.ID]; !known && b.session.PeerAS != b.session.LocalAS {
			b.fault("a withdrawal of %s (identifier %d), which was not announced", p, n.ID)
		}
		if delete(b.routes[p], n.ID); len(b.routes[p]) == 0 {
			delete(b.routes, p)
		}
	}
	for _, n := range announced {
		p := n.NLRI.(*gobgp.IPAddrPrefix).Prefix
		if b.routes[p] == nil {
			b.routes[p] = map[uint32]int{}
		}
		b.routes[p][n.ID] = length
	}
	b.updates++
}

// fault is called with the bystander locked.
func (b *bystander) fault(format string, args ...any) {
	if len(b.faults) < 5 {
		b.faults = append(b.faults, fmt.Sprintf(format, args...))
	}
}

// length of the longest message that announced a prefix the bystander holds; 0: it does not.
func (b *bystander) length(p netip.Prefix) (longest int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, n := range b.routes[p] {
		longest = max(longest, n)
	}
	return longest
}

// count of the UPDATEs so far.
func (b *bystander) count() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.updates
}

// complaint is an error, returned once, if something was wrong with what came, or if the session has ended.
func (b *bystander) complaint() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.complained || len(b.faults) == 0 && b.ended == nil {
		return nil
	}
	b.complained = true
	return fmt.Errorf("bystander %s: faults %q; end of the session: %v", b.name, b.faults, b.ended)
}

// complaints has those of all bystanders.
func complaints(list []*bystander) (err error) {
	for _, b := range list {
		err = errors.Join(err, b.complaint())
	}
	return err
}

// learned lists the prefixes that the bystander holds, but for the speaker's own.
func (b *bystander) learned() (list []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	own := pfx("10.244.0.0/26")
	if b.session.Address.Is6() {
		own = pfx("fd00:244::/64")
	}
	if b.routes[own] == nil {
		list = append(list, "not "+own.String())
	}
	for p := range b.routes {
		if p != own {
			list = append(list, p.String())
		}
	}
	return list
}

// awaitOwnAlone waits until the bystanders have no routes but the speaker's own.
func awaitOwnAlone(t *testing.T, s *Speaker, list []*bystander) {
	t.Helper()
	left := map[string][]string{}
	for deadline := time.Now().Add(2 * patience); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		clear(left)
		for _, b := range list {
			if more := b.learned(); len(more) > 0 {
				left[b.name] = more
			}
		}
		if len(left) == 0 {
			return
		}
	}
	t.Errorf("bystanders hold routes that nobody announces any more: %v; the speaker has %+v", left, s.Snapshot())
}
