package session

import (
	"fmt"
	"net/netip"
	"strings"
	"syscall"
	"time"

	gobgp "github.com/osrg/gobgp/v4/pkg/packet/bgp"

	"github.com/manxnet/manx/bgp/wire"
	"github.com/manxnet/manx/bgp/wire/message"
)

func (e *entry) peerName() string {
	return e.session.Address.String()
}

func (e *entry) port() uint16 {
	if e.session.Port == 0 {
		return gobgp.BGP_PORT
	}
	return e.session.Port
}

func (e *entry) endpoint() string {
	return netipPort(e.session.Address, e.port())
}

func establishedWords(e *entry) string {
	s := fmt.Sprintf("established with AS %d, router ID %s", e.peer.as, addrText(e.peer.routerID))
	if e.peer.hold != 0 {
		s += fmt.Sprintf(", hold time %s", e.peer.hold)
	}
	return s
}

func connectingWords(e *entry) string {
	switch e.fsm {
	case gobgp.BGP_FSM_OPENSENT:
		return "connected with " + e.peerName() + ", waiting for its OPEN"
	case gobgp.BGP_FSM_OPENCONFIRM:
		return "OPEN of " + e.peerName() + " accepted, waiting for it to accept ours"
	}
	return "connecting to " + e.endpoint()
}

// dialErrors explains the errors of a connect call, of which there are a few.
var dialErrors = []struct {
	err   syscall.Errno
	words func(e *entry, to string) string
}{
	{syscall.ECONNREFUSED, func(e *entry, _ string) string {
		return fmt.Sprintf("connection refused by %s: nothing listens on port %d there, or a firewall rejects it",
			e.peerName(), e.port())
	}},
	{syscall.EHOSTUNREACH, func(_ *entry, to string) string {
		return fmt.Sprintf("no answer from %s: the host is unreachable (no ARP or ND reply on its network, or a "+
			"router reports it unreachable)", to)
	}},
	{syscall.ENETUNREACH, func(_ *entry, to string) string {
		return fmt.Sprintf("no route to %s on this host", to)
	}},
	{syscall.EADDRNOTAVAIL, func(e *entry, _ string) string {
		return fmt.Sprintf("source address %s of the session is not an address of this host",
			addrText(e.session.Source))
	}},
	{syscall.ECONNRESET, func(e *entry, _ string) string {
		return e.peerName() + " resets the connection: it probably has no session for our address"
	}},
}

// closedWords explains why the peer closed a connection without a word; stranger has no session here and connects to
// us, if it is valid.
func closedWords(e *entry, ev wire.Ended, stranger netip.Addr) string {
	if ev.Detail != "" {
		return fmt.Sprintf("%s ended the connection before it sent an OPEN: %s", e.peerName(), ev.Detail)
	}
	return e.peerName() + " closed the connection before it sent an OPEN: it probably has no session for our address" +
		strangerWords(e, stranger)
}

// rejected reports whether a NOTIFICATION is a Cease that answers a connection (RFC 4486 section 4).
func rejected(n message.Notification) bool {
	return n.Code == gobgp.BGP_ERROR_CEASE && n.Sub == gobgp.BGP_ERROR_SUB_CONNECTION_REJECTED
}

// collided reports whether a NOTIFICATION ends the loser of a collision.
func collided(n message.Notification) bool {
	return n.Code == gobgp.BGP_ERROR_CEASE && n.Sub == gobgp.BGP_ERROR_SUB_CONNECTION_COLLISION_RESOLUTION
}

// reconfigured reports whether a NOTIFICATION is a Cease because the peer's settings changed or an administrator reset
// the session: it is over at once, and explains no later failure.
func reconfigured(n message.Notification) bool {
	return n.Code == gobgp.BGP_ERROR_CEASE && (n.Sub == gobgp.BGP_ERROR_SUB_OTHER_CONFIGURATION_CHANGE ||
		n.Sub == gobgp.BGP_ERROR_SUB_ADMINISTRATIVE_RESET)
}

func rejectedWords(e *entry, stranger netip.Addr) string {
	return e.peerName() + " rejects our connections: it probably has no session for our address (received " +
		"NOTIFICATION 6/5)" + strangerWords(e, stranger)
}

// strangerWords is about an address without a session that connects to us, and may be the peer's.
func strangerWords(e *entry, stranger netip.Addr) string {
	if !stranger.IsValid() || stranger.Is4() != e.session.Address.Unmap().Is4() {
		return ""
	}
	return fmt.Sprintf("; %s, for which there is no session here, connects to us: if it is the same router, have it "+
		"connect from %s, or peer with %s instead", stranger, e.peerName(), stranger)
}

// otherAddressWords explains that the peer uses another address of this node than the session has, with the two
// commands that change this side. The mesh always has the node's address.
func otherAddressWords(e *entry, other string) string {
	flag := "ip"
	if e.session.Address.Unmap().Is6() {
		flag = "ip6"
	}
	s := fmt.Sprintf("%s connects to %s, but this session uses %s: have it peer with %s; or make %s the address of "+
		"this node (manxd --%s=%s, or --%s-autodetection-method=can-reach=%s)",
		e.peerName(), other, addrText(e.session.Source), addrText(e.session.Source), other, flag, other, flag,
		e.peerName())
	if len(e.session.From) > 0 && strings.HasPrefix(e.session.From[0], "BGPPeer/") {
		s += fmt.Sprintf("; or let the session use any address (manxctl apply %s with sourceAddress: None)",
			e.session.From[0])
	}
	return s
}

func passwordGuess(e *entry) string {
	if e.session.Password == "" {
		return "the peer wants an MD5 password and none is set here"
	}
	return "a wrong MD5 password"
}

// lossWords explains why an established session ended, and which side sent a message about it.
func lossWords(e *entry, ev wire.Ended) (Direction, string) {
	kept := ""
	if ev.Graceful {
		kept = fmt.Sprintf("; its routes are kept for %d s (graceful restart)", int(ev.RestartTime/time.Second))
	}
	switch {
	case ev.Received != nil:
		return DirectionReceived, receivedWords(e, *ev.Received)
	case ev.Cause == wire.CauseReplaced:
		return DirectionLocal, fmt.Sprintf("%s connects again although its session is established: it has restarted%s",
			e.peerName(), kept)
	case ev.Cause == wire.CauseSendHold:
		return DirectionSent, fmt.Sprintf("%s has taken no data for too long: its send hold timer expired (RFC 9687)",
			e.peerName())
	case ev.Sent != nil:
		return DirectionSent, sentWords(e, *ev.Sent, ev.Detail)
	case ev.Cause == wire.CauseConnection && ev.Detail != "":
		return DirectionLocal, fmt.Sprintf("connection with %s ended: %s", e.peerName(), ev.Detail)
	case ev.Cause == wire.CauseConnection && ev.Graceful:
		return DirectionLocal, fmt.Sprintf("connection with %s lost%s", e.peerName(), kept)
	case ev.Cause == wire.CauseConnection:
		return DirectionLocal, "connection with " + e.peerName() + " lost: it closed the connection, or the network " +
			"between was cut"
	}
	return DirectionLocal, "session ended on this side without a message"
}

func holdWords(e *entry) string {
	hold := ""
	if e.peer.hold != 0 {
		hold = fmt.Sprintf(" for %s", e.peer.hold)
	}
	return fmt.Sprintf("hold timer expired: nothing was heard from %s%s", e.peerName(), hold)
}

// silenceWords explains a connection on which the OPEN exchange was not finished.
func silenceWords(e *entry, detail string) string {
	why := fmt.Sprintf("%s is connected but %s", e.peerName(), detail)
	if hops := e.session.TTLSecurity; hops != 0 {
		why += fmt.Sprintf(": it may be more than %d hops away, or send with a TTL below 255 (ttlSecurity)", hops)
	}
	return why
}

// refusedWords explains a message before the session is established that this side has refused.
func refusedWords(e *entry, ev wire.Ended) string {
	n := fmt.Sprintf("sent NOTIFICATION %d/%d", ev.Sent.Code, ev.Sent.Sub)
	switch code, sub := ev.Sent.Code, ev.Sent.Sub; {
	case code == gobgp.BGP_ERROR_OPEN_MESSAGE_ERROR && sub == gobgp.BGP_ERROR_SUB_BAD_PEER_AS:
		return fmt.Sprintf("OPEN of %s refused: its AS is not %d as configured here: %s (%s)", e.peerName(),
			e.session.PeerAS, ev.Detail, n)
	case code == gobgp.BGP_ERROR_OPEN_MESSAGE_ERROR:
		return fmt.Sprintf("OPEN of %s refused: %s (%s)", e.peerName(), ev.Detail, n)
	case code == gobgp.BGP_ERROR_MESSAGE_HEADER_ERROR && !ev.Opened:
		return fmt.Sprintf("%s does not speak BGP: %s (%s)", e.endpoint(), ev.Detail, n)
	}
	return fmt.Sprintf("a message of %s is refused before the session is up: %s (%s)", e.peerName(),
		joinSentences(notificationName(ev.Sent.Code, ev.Sent.Sub), ev.Detail), n)
}

// sentWords explains a NOTIFICATION with which this side ended a session.
func sentWords(e *entry, sent message.Notification, detail string) string {
	n := fmt.Sprintf("sent NOTIFICATION %d/%d", sent.Code, sent.Sub)
	name := notificationName(sent.Code, sent.Sub)
	switch {
	case sent.Code == gobgp.BGP_ERROR_HOLD_TIMER_EXPIRED:
		return holdWords(e)
	case sent.Code == gobgp.BGP_ERROR_CEASE && sent.Sub == gobgp.BGP_ERROR_SUB_OTHER_CONFIGURATION_CHANGE:
		return "session restarted on this side because its settings changed (" + n + ")"
	case sent.Code == gobgp.BGP_ERROR_CEASE:
		if text := sent.Text(); text != "" {
			name += fmt.Sprintf(", saying %q", text)
		}
		return fmt.Sprintf("session ended on this side: %s (%s)", joinSentences(name, detail), n)
	}
	if detail != "" {
		name += ": " + detail
	}
	return fmt.Sprintf("session reset because a message of %s is malformed: %s (%s)", e.peerName(), name, n)
}

// receivedWords explains a NOTIFICATION that the peer sent.
func receivedWords(e *entry, received message.Notification) string {
	code, sub, peer := received.Code, received.Sub, e.peerName()
	n := fmt.Sprintf("received NOTIFICATION %d/%d", code, sub)
	switch {
	case code == gobgp.BGP_ERROR_OPEN_MESSAGE_ERROR && sub == gobgp.BGP_ERROR_SUB_BAD_PEER_AS:
		// Any data after the codes is the AS of our OPEN, not the expected one.
		return fmt.Sprintf("OPEN refused by %s: it expects another AS, we are %d (%s)", peer, e.session.LocalAS, n)
	case code == gobgp.BGP_ERROR_OPEN_MESSAGE_ERROR && sub == gobgp.BGP_ERROR_SUB_UNACCEPTABLE_HOLD_TIME:
		return fmt.Sprintf("OPEN refused by %s: it does not accept our hold time of %d s (%s)", peer,
			e.session.Wire().Hold, n)
	case code == gobgp.BGP_ERROR_OPEN_MESSAGE_ERROR && sub == gobgp.BGP_ERROR_SUB_BAD_BGP_IDENTIFIER:
		return fmt.Sprintf("OPEN refused by %s: it has the same router ID as this node (%s)", peer, n)
	case code == gobgp.BGP_ERROR_OPEN_MESSAGE_ERROR && sub == subRoleMismatch:
		return fmt.Sprintf("OPEN refused by %s: it requires a BGP role (RFC 9234), and this node announces none; turn "+
			"its strict mode off (%s)", peer, n)
	case code == gobgp.BGP_ERROR_OPEN_MESSAGE_ERROR:
		return fmt.Sprintf("OPEN refused by %s: %s (%s)", peer, notificationName(code, sub), n)
	case code == gobgp.BGP_ERROR_HOLD_TIMER_EXPIRED:
		return fmt.Sprintf("%s did not hear from us in time: its hold timer expired (%s)", peer, n)
	case code == gobgp.BGP_ERROR_CEASE:
		text := received.Text()
		if text != "" {
			text = fmt.Sprintf(", saying %q", text)
		}
		return fmt.Sprintf("%s ended the session: %s%s (%s)", peer, notificationName(code, sub), text, n)
	}
	return fmt.Sprintf("%s refuses a message of ours: %s (%s)", peer, notificationName(code, sub), n)
}

// subRoleMismatch is a subcode of OPEN errors (RFC 9234 section 4.2).
const subRoleMismatch = 11

// notificationName names the codes of RFC 4271 section 4.5, RFC 4486 and RFC 8203 in plain words.
func notificationName(code, sub uint8) string {
	names, ok := notificationNames[code]
	if !ok {
		return fmt.Sprintf("unknown error %d/%d", code, sub)
	}
	if int(sub) < len(names) && names[sub] != "" {
		return names[sub]
	}
	return names[0]
}

var notificationNames = map[uint8][]string{
	1: {"message header error", "connection not synchronized (no BGP marker)", "bad message length",
		"bad message type"},
	2: {"OPEN message error", "unsupported BGP version", "bad peer AS", "bad router ID",
		"unsupported optional parameter", "", "unacceptable hold time", "unsupported capability", "",
		"", "", "role mismatch"},
	3: {"UPDATE message error", "malformed attribute list", "unknown well-known attribute",
		"missing well-known attribute", "attribute flags error",
		"attribute length error", "invalid ORIGIN", "", "invalid NEXT_HOP", "optional attribute error",
		"invalid network field", "malformed AS_PATH"},
	4: {"hold timer expired"},
	5: {"message in the wrong state of the session", "unexpected message in OpenSent",
		"unexpected message in OpenConfirm", "unexpected message in Established"},
	6: {"session ended", "too many prefixes", "administrative shutdown", "session deconfigured", "administrative reset",
		"connection rejected",
		"other configuration change", "connection collision", "out of resources", "hard reset", "BFD down"},
	7: {"route refresh error", "bad route refresh length"},
	8: {"send hold timer expired"},
}

func joinSentences(a, b string) string {
	if a == "" || b == "" {
		return a + b
	}
	return a + "; " + b
}

func netipPort(a netip.Addr, port uint16) string { return netip.AddrPortFrom(a, port).String() }

func addrText(a netip.Addr) string {
	if !a.IsValid() {
		return ""
	}
	return a.String()
}
