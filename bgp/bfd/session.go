package bfd

import (
	"errors"
	"fmt"
	"net/netip"
	"time"
)

// Session is one path that is watched. Remote identifies it.
type Session struct {
	Remote netip.Addr
	Local  netip.Addr // source address; invalid: the kernel chooses
	// Multihop is RFC 5883 (UDP port 4784) for peers that routers may lie between; else RFC 5881 (3784), where packets
	// that were forwarded are not accepted.
	Multihop bool
	// Transmit and Receive are the desired minimum intervals of sending and the required minimum of receiving.
	Transmit, Receive time.Duration
	Multiplier        uint8 // packets that may be missing
	// MinTTL is the least TTL of accepted packets; 0: any. Multihop only; single hop requires 255 (RFC 5881 section 5).
	MinTTL uint8
}

// The limits of configurable values. A Go process cannot guarantee less than some milliseconds.
const (
	MinInterval = 10 * time.Millisecond
	MaxInterval = time.Minute
)

func (s Session) check() error {
	for name, d := range map[string]time.Duration{"transmit": s.Transmit, "receive": s.Receive} {
		if d < MinInterval || d > MaxInterval {
			return fmt.Errorf("%s interval %s: want %s to %s", name, d, MinInterval, MaxInterval)
		}
	}
	switch {
	case s.Multiplier == 0:
		return errors.New("multiplier 0: want 1 to 255")
	case !s.Remote.IsValid() || s.Remote.IsUnspecified() || s.Remote.IsMulticast():
		return fmt.Errorf("remote address %s is not a unicast address", s.Remote)
	case s.Local.IsValid() && s.Local.Is4() != s.Remote.Is4():
		return fmt.Errorf("local address %s is of another family than %s", s.Local, s.Remote)
	}
	return nil
}

// Kind returns whether the session is multihop, and its port, in words.
func (s Session) Kind() string {
	if s.Multihop {
		return "multihop, UDP 4784"
	}
	return "single hop, UDP 3784"
}

// samePath reports whether two sessions differ in timers at most.
func (s Session) samePath(o Session) bool {
	return s.Remote == o.Remote && s.Local == o.Local && s.Multihop == o.Multihop
}

// Status is the state of a session.
type Status struct {
	Session Session
	State   State
	Since   time.Time
	Reason  string // why it is in this state, in words
	Error   string // why it cannot run; empty if it can

	RemoteState      State
	RemoteDiagnostic Diagnostic
	RemoteMultiplier uint8
	Independent      bool          // the remote's C bit: its BFD outlives its control plane
	Transmit         time.Duration // negotiated time between two packets, before jitter
	Detection        time.Duration // how long the remote may be silent; 0 before its first packet
	Downs            uint64        // times that it was up and went down
	LastUp           time.Time     // when the remote last sent state Up
	Sent, Received   uint64        // packets
	Confirmed        bool          // the remote's last packet named this session: it is no stranger's
	Drops            Drops
}

// Event is a session that came up or went down.
type Event struct {
	Status Status
	From   State
	// Failure: the path is broken. It is not when the remote ended its session on purpose or has only just begun it.
	Failure bool
	// Doubtful: the remote seems to have begun anew, but any host that can send from its address could have forged that
	// to hide a broken path. If it is true, the session comes up again soon.
	Doubtful bool
}
