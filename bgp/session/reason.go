package session

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/osrg/gobgp/v4/api"
	"github.com/osrg/gobgp/v4/pkg/apiutil"
	gobgp "github.com/osrg/gobgp/v4/pkg/packet/bgp"
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
	switch {
	case e.fsm == gobgp.BGP_FSM_OPENSENT || !e.connectedAt.IsZero():
		return "connected with " + e.peerName() + ", waiting for its OPEN"
	case e.fsm == gobgp.BGP_FSM_OPENCONFIRM:
		return "OPEN of " + e.peerName() + " accepted, waiting for it to accept ours"
	}
	return "connecting to " + e.endpoint()
}

// dialWords explains why no TCP connection came about.
func dialWords(e *entry, err string) string {
	to := e.endpoint()
	switch {
	case strings.Contains(err, "connection refused"):
		return fmt.Sprintf("connection refused by %s: nothing listens on port %d there, or a firewall rejects it",
			e.peerName(), e.port())
	case strings.Contains(err, "timeout"), strings.Contains(err, "timed out"):
		return fmt.Sprintf("no answer from %s (timeout): address unreachable, a firewall, or %s", to, passwordGuess(e))
	case strings.Contains(err, "no route to host"):
		return fmt.Sprintf("no answer from %s: the host is unreachable (no ARP or ND reply on its network, or a "+
			"router reports it unreachable)", to)
	case strings.Contains(err, "network is unreachable"):
		return fmt.Sprintf("no route to %s on this host", to)
	case strings.Contains(err, "cannot assign requested address"):
		return fmt.Sprintf("source address %s of the session is not an address of this host",
			addrText(e.session.Source))
	case strings.Contains(err, "connection reset"):
		return e.peerName() + " resets the connection: it probably has no session for our address"
	}
	return fmt.Sprintf("cannot connect to %s: %s", to, err)
}

// closedWords explains why the peer closed our connection without a word; stranger has no session here and connects to
// us, if it is valid.
func closedWords(e *entry, stranger netip.Addr) string {
	s := e.peerName() + " closed the connection before it sent an OPEN: it probably has no session for our address"
	if stranger.IsValid() && stranger.Is4() == e.session.Address.Unmap().Is4() {
		s += fmt.Sprintf("; %s, for which there is no session here, connects to us: if it is the same router, have "+
			"it connect from %s, or peer with %s instead",
			stranger, e.peerName(), stranger)
	}
	return s
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

// lossWords explains why an established session ended.
func lossWords(e *entry, st apiutil.PeerState) string {
	switch st.DisconnectReason {
	case api.PeerState_DISCONNECT_REASON_GRACEFUL_RESTART:
		return fmt.Sprintf("connection with %s lost; its routes are kept for %d s (graceful restart)", e.peerName(),
			e.peer.open.restartTime)
	case api.PeerState_DISCONNECT_REASON_HOLD_TIMER_EXPIRED:
		return holdWords(e)
	case api.PeerState_DISCONNECT_REASON_READ_FAILED, api.PeerState_DISCONNECT_REASON_WRITE_FAILED:
		return "connection with " + e.peerName() + " lost: it closed the connection, or the network between was cut"
	case api.PeerState_DISCONNECT_REASON_ADMIN_DOWN:
		return "session shut down on this side"
	case api.PeerState_DISCONNECT_REASON_DECONFIGURED:
		return "session restarted on this side because its settings changed"
	}
	return fmt.Sprintf("session with %s lost: %s", e.peerName(), st.DisconnectMessage)
}

// lossBy returns the side that sent a message when the session ended.
func lossBy(st apiutil.PeerState) Direction {
	switch st.DisconnectReason {
	case api.PeerState_DISCONNECT_REASON_HOLD_TIMER_EXPIRED, api.PeerState_DISCONNECT_REASON_ADMIN_DOWN,
		api.PeerState_DISCONNECT_REASON_DECONFIGURED, api.PeerState_DISCONNECT_REASON_NOTIFICATION_SENT:
		return DirectionSent
	case api.PeerState_DISCONNECT_REASON_NOTIFICATION_RECEIVED, api.PeerState_DISCONNECT_REASON_HARD_RESET:
		return DirectionReceived
	}
	return DirectionLocal
}

func holdWords(e *entry) string {
	hold := ""
	if e.peer.hold != 0 {
		hold = fmt.Sprintf(" for %s", e.peer.hold)
	}
	return fmt.Sprintf("hold timer expired: nothing was heard from %s%s", e.peerName(), hold)
}

// openingWords explains why a connection did not become a session; empty if the log has more detail.
func openingWords(e *entry, was gobgp.FSMState, st apiutil.PeerState) (Direction, string) {
	switch st.DisconnectReason {
	case api.PeerState_DISCONNECT_REASON_READ_FAILED, api.PeerState_DISCONNECT_REASON_WRITE_FAILED:
		return DirectionLocal, fmt.Sprintf("%s closed the connection before the session was up: it may have no "+
			"session for our address, or not accept our AS %d", e.peerName(), e.session.LocalAS)
	case api.PeerState_DISCONNECT_REASON_INVALID_MSG:
		if was == gobgp.BGP_FSM_OPENCONFIRM {
			return DirectionReceived, refusedOpenWords(e)
		}
	}
	return "", ""
}

// refusedOpenWords is for a NOTIFICATION that answers our OPEN, of which GoBGP keeps only that it came.
func refusedOpenWords(e *entry) string {
	if e.hints.refusal != "" {
		return e.hints.refusal
	}
	return fmt.Sprintf("%s answered our OPEN (AS %d, hold time %d s) with a NOTIFICATION: check that it expects AS "+
		"%d, this address and these timers",
		e.peerName(), e.session.LocalAS, e.session.Wire().Hold, e.session.LocalAS)
}

// sentWords explains a NOTIFICATION that this side sent. When it answers one of the peer, it is the peer who noticed.
func sentWords(e *entry, code, sub uint8) (Direction, string) {
	n := fmt.Sprintf("sent NOTIFICATION %d/%d", code, sub)
	switch {
	case code == gobgp.BGP_ERROR_OPEN_MESSAGE_ERROR && sub == gobgp.BGP_ERROR_SUB_BAD_PEER_AS:
		return DirectionSent, fmt.Sprintf("OPEN of %s refused: its AS is not %d as configured here (%s)", e.peerName(),
			e.session.PeerAS, n)
	case code == gobgp.BGP_ERROR_OPEN_MESSAGE_ERROR && sub == gobgp.BGP_ERROR_SUB_BAD_BGP_IDENTIFIER:
		return DirectionSent, fmt.Sprintf("OPEN of %s refused: its router ID is 0.0.0.0 or the same as ours (%s)",
			e.peerName(), n)
	case code == gobgp.BGP_ERROR_OPEN_MESSAGE_ERROR && sub == gobgp.BGP_ERROR_SUB_UNACCEPTABLE_HOLD_TIME:
		return DirectionSent, fmt.Sprintf("OPEN of %s refused: its hold time is 1 or 2 s; RFC 4271 wants 0 or at "+
			"least 3 s (%s)", e.peerName(), n)
	case code == gobgp.BGP_ERROR_FSM_ERROR && e.fsm != gobgp.BGP_FSM_ESTABLISHED:
		return DirectionReceived, refusedOpenWords(e)
	case code == gobgp.BGP_ERROR_HOLD_TIMER_EXPIRED && e.fsm == gobgp.BGP_FSM_ESTABLISHED:
		return DirectionSent, holdWords(e)
	case code == gobgp.BGP_ERROR_HOLD_TIMER_EXPIRED:
		return DirectionSent, fmt.Sprintf("%s accepted the connection but sent no OPEN", e.peerName())
	case code == gobgp.BGP_ERROR_CEASE && sub == gobgp.BGP_ERROR_SUB_MAXIMUM_NUMBER_OF_PREFIXES_REACHED:
		return "", ""
	case code == gobgp.BGP_ERROR_CEASE:
		return DirectionSent, fmt.Sprintf("session ended on this side: %s (%s)", notificationName(code, sub), n)
	}
	detail := ""
	if e.hints.malformed != "" {
		detail = ": " + e.hints.malformed
	}
	what := "a message of " + e.peerName()
	if code == gobgp.BGP_ERROR_MESSAGE_HEADER_ERROR && e.fsm != gobgp.BGP_FSM_ESTABLISHED {
		return DirectionSent, fmt.Sprintf("%s does not speak BGP: %s%s (%s)", e.endpoint(), notificationName(code, sub),
			detail, n)
	}
	return DirectionSent, fmt.Sprintf("session reset because %s is malformed: %s%s (%s)", what,
		notificationName(code, sub), detail, n)
}

// receivedWords explains a NOTIFICATION that the peer sent; text is its shutdown communication (RFC 9003).
func receivedWords(e *entry, code, sub uint8, text string) string {
	n := fmt.Sprintf("received NOTIFICATION %d/%d", code, sub)
	peer := e.peerName()
	switch {
	case code == gobgp.BGP_ERROR_OPEN_MESSAGE_ERROR && sub == gobgp.BGP_ERROR_SUB_BAD_PEER_AS:
		// Any data after the codes is the AS of our OPEN, not the expected one.
		return fmt.Sprintf("OPEN refused by %s: it expects another AS, we are %d (%s)", peer, e.session.LocalAS, n)
	case code == gobgp.BGP_ERROR_OPEN_MESSAGE_ERROR && sub == gobgp.BGP_ERROR_SUB_UNACCEPTABLE_HOLD_TIME:
		return fmt.Sprintf("OPEN refused by %s: it does not accept our hold time of %d s (%s)", peer,
			e.session.Wire().Hold, n)
	case code == gobgp.BGP_ERROR_OPEN_MESSAGE_ERROR && sub == gobgp.BGP_ERROR_SUB_BAD_BGP_IDENTIFIER:
		return fmt.Sprintf("OPEN refused by %s: it has the same router ID as this node (%s)", peer, n)
	case code == gobgp.BGP_ERROR_HOLD_TIMER_EXPIRED:
		return fmt.Sprintf("%s did not hear from us in time: its hold timer expired (%s)", peer, n)
	case code == gobgp.BGP_ERROR_CEASE:
		if text != "" {
			text = fmt.Sprintf(", saying %q", text)
		}
		return fmt.Sprintf("%s ended the session: %s%s (%s)", peer, notificationName(code, sub), text, n)
	}
	return fmt.Sprintf("%s refuses a message of ours: %s (%s)", peer, notificationName(code, sub), n)
}

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
		"unsupported optional parameter", "", "unacceptable hold time", "unsupported capability"},
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
