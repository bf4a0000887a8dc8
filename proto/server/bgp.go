package server

import (
	"context"
	"fmt"
	"iter"
	"net/netip"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/manxnet/manx/bgp"
	"github.com/manxnet/manx/bgp/fib"
	"github.com/manxnet/manx/bgp/speaker"
	manxv1 "github.com/manxnet/manx/proto/manx/v1"
)

// BGPView shows the BGP sessions of this node and their routes.
type BGPView struct {
	shown[BGPSource]
	dataplane  *DataplaneView
	lists      chan struct{} // one for each list of routes that is under way
	sendWithin time.Duration
	answered   reading[struct{}]
}

// BGPSource is the source of a BGPView.
type BGPSource struct {
	Speaker BGP // nil: not started yet
	// Desired is the last configuration of the speaker; nil: none.
	Desired func() bgp.Desired
	// Off is why this node has no BGP; empty: it has.
	Off string
}

// BGP has the calls of *speaker.Speaker that the view uses.
type BGP interface {
	Sessions() []speaker.SessionStatus
	Session(netip.Addr) (speaker.SessionStatus, bool)
	History(netip.Addr) []speaker.Transition
	WatchSessions(context.Context) <-chan speaker.SessionEvent
	ReceivedFrom(netip.Addr) (iter.Seq[speaker.EvaluatedPath], error)
	AdvertisedTo(netip.Addr) (iter.Seq[speaker.EvaluatedPath], error)
	Table(ipv6 bool) ([]*speaker.TablePath, error)
	Rejected() []fib.Rejection
	Totals() map[bgp.SessionType]speaker.Totals
	Strangers() uint64
	Ready() (bool, string)
	Answers()
	ResetSession(context.Context, netip.Addr, speaker.ResetKind) error
	ClearSession(netip.Addr) (before speaker.SessionStatus, ok bool)
}

// speaker returns the speaker, or an error for the caller: there is no BGP on this node, or not yet.
func (v *BGPView) speaker() (BGP, error) {
	now := v.now()
	switch {
	case now.Off != "":
		return nil, status.Error(codes.FailedPrecondition, now.Off)
	case now.Speaker == nil:
		return nil, status.Error(codes.Unavailable, "manxd is starting: BGP does not run yet")
	}
	return now.Speaker, nil
}

func (v *BGPView) desired() bgp.Desired {
	if desired := v.now().Desired; desired != nil {
		return desired()
	}
	return bgp.Desired{}
}

// Ready reports whether all routes are known that peers have for a node that restarts (RFC 4724). It does not return
// while the speaker hangs, so that /livez fails.
func (v *BGPView) Ready() Check {
	c := Check{Name: checkBGP, Reason: notStarted}
	s := v.now().Speaker
	if s == nil {
		return c
	}
	v.answered.take(func() struct{} { s.Answers(); return struct{}{} })
	c.OK, c.Reason = s.Ready()
	if c.OK && c.Reason == "" {
		c.Reason = "restart is over, all routes are known"
	}
	return c
}

// Checks implements Checker. There are none on a node without BGP.
func (v *BGPView) Checks() []Check {
	if v.now().Off != "" {
		return nil
	}
	return []Check{v.Ready()}
}

func (v *BGPView) status(r *manxv1.GetStatusResponse) {
	r.BgpOff = v.now().Off
	if v.now().Desired != nil {
		d := v.desired()
		r.AsNumber, r.RouterId, r.Drain = d.Global.LocalAS, text(d.Global.RouterID), string(d.Drain)
	}
	for _, p := range v.peers() {
		r.Peers[p.GetState()]++
	}
}

// Notices lists the decisions of BGP that a person should know.
func (v *BGPView) Notices() (all []Notice) {
	d := v.desired()
	for _, c := range d.Conflicts {
		all = append(all, Notice{Topic: "bgp", Subject: "session with " + c.Address.String(), Text: conflictText(c)})
	}
	for _, n := range d.Notices {
		all = append(all, Notice{Topic: "bgp", Subject: n.Object, Text: n.Reason})
	}
	return all
}

func conflictText(c bgp.Conflict) string {
	return fmt.Sprintf("%s is kept, %s dropped: %s", c.Kept, strings.Join(c.Dropped, ", "), c.Reason)
}
