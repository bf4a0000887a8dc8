package bfd

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"
)

// State of a session (RFC 5880 section 4.1).
type State uint8

const (
	AdminDown State = iota
	Down
	Init
	Up
)

func (s State) String() string {
	if int(s) < len(stateNames) {
		return stateNames[s]
	}
	return fmt.Sprintf("State(%d)", uint8(s))
}

var stateNames = [...]string{"AdminDown", "Down", "Init", "Up"}

// Diagnostic is why a session last went down (RFC 5880 section 4.1).
type Diagnostic uint8

const (
	noDiagnostic Diagnostic = iota
	detectionTimeExpired
	echoFailed
	neighborSignaledDown
	forwardingPlaneReset
	pathDown
	concatenatedPathDown
	administrativelyDown
	reverseConcatenatedPathDown
)

func (d Diagnostic) String() string {
	if int(d) < len(diagnosticNames) {
		return diagnosticNames[d]
	}
	return fmt.Sprintf("diagnostic %d", uint8(d))
}

var diagnosticNames = [...]string{"no diagnostic", "control detection time expired", "echo function failed",
	"neighbor signaled session down",
	"forwarding plane reset", "path down", "concatenated path down", "administratively down",
	"reverse concatenated path down"}

// packet is a BFD control packet without authentication (RFC 5880 section 4.1).
type packet struct {
	diag        Diagnostic
	state       State
	poll, final bool
	independent bool // C: the control plane does not share the fate of the forwarding plane
	multiplier  uint8
	my, your    uint32 // discriminators

	desiredTx, requiredRx, requiredEcho time.Duration
}

const (
	packetLength = 24
	version      = 1

	flagPoll       = 1 << 5
	flagFinal      = 1 << 4
	flagC          = 1 << 3
	flagAuth       = 1 << 2
	flagMultipoint = 1 << 0
)

func (p packet) marshal() []byte {
	b := make([]byte, packetLength)
	b[0] = version<<5 | byte(p.diag)
	b[1] = byte(p.state) << 6
	for flag, set := range map[byte]bool{flagPoll: p.poll, flagFinal: p.final, flagC: p.independent} {
		if set {
			b[1] |= flag
		}
	}
	b[2], b[3] = p.multiplier, packetLength
	binary.BigEndian.PutUint32(b[4:], p.my)
	binary.BigEndian.PutUint32(b[8:], p.your)
	for i, d := range []time.Duration{p.desiredTx, p.requiredRx, p.requiredEcho} {
		binary.BigEndian.PutUint32(b[12+4*i:], uint32(d.Microseconds()))
	}
	return b
}

// parse decodes a packet and makes the checks of RFC 5880 section 6.8.6 that precede the lookup of the session.
func parse(b []byte) (packet, error) {
	switch {
	case len(b) < packetLength:
		return packet{}, fmt.Errorf("%d octets, want at least %d", len(b), packetLength)
	case b[0]>>5 != version:
		return packet{}, fmt.Errorf("version %d, want %d", b[0]>>5, version)
	case int(b[3]) < packetLength || int(b[3]) > len(b):
		return packet{}, fmt.Errorf("length %d in a packet of %d octets", b[3], len(b))
	case b[2] == 0:
		return packet{}, errors.New("detection multiplier 0")
	case b[1]&flagMultipoint != 0:
		return packet{}, errors.New("multipoint bit is set")
	case b[1]&flagAuth != 0:
		return packet{}, errors.New("authentication is not configured")
	}
	interval := func(at int) time.Duration { return time.Duration(binary.BigEndian.Uint32(b[at:])) * time.Microsecond }
	p := packet{
		diag: Diagnostic(b[0] & 0x1f), state: State(b[1] >> 6), multiplier: b[2],
		poll: b[1]&flagPoll != 0, final: b[1]&flagFinal != 0, independent: b[1]&flagC != 0,
		my: binary.BigEndian.Uint32(b[4:]), your: binary.BigEndian.Uint32(b[8:]),
		desiredTx: interval(12), requiredRx: interval(16), requiredEcho: interval(20),
	}
	switch {
	case p.my == 0:
		return packet{}, errors.New("my discriminator is 0")
	case p.your == 0 && p.state != Down && p.state != AdminDown:
		return packet{}, fmt.Errorf("your discriminator is 0 in state %s", p.state)
	}
	return p, nil
}
