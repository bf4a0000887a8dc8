package node

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/model"
)

const (
	// takeoverAfter is the time that the Node has an address that this host lacks before that counts as a takeover: an
	// operator changes the Node and the interface one after the other.
	takeoverAfter = 10 * time.Second
	// takeoverPoll is the interval between reads of the interfaces while the Node has such an address.
	takeoverPoll = 2 * time.Second
)

// Takeover reports that the Node of this host has addresses that are on none of its interfaces, and that this host did
// not register: another host with the same name, or a person, wrote them.
type Takeover struct {
	Node      string
	Addresses []netip.Addr // none: there is no takeover
	Own       []netip.Addr // those that the Node had before
	Since     time.Time
	Ended     time.Time // time at which this host restored its own; zero: not yet
}

// String returns the advice for an operator; it is empty if there is no takeover.
func (t Takeover) String() string {
	if len(t.Addresses) == 0 {
		return ""
	}
	verb := "says"
	if !t.Ended.IsZero() {
		verb = "until " + t.Ended.UTC().Format("15:04:05 MST") + " said"
	}
	which := "which is on no interface of this host"
	if len(t.Addresses) > 1 {
		which = "which are on no interface of this host"
	}
	text := fmt.Sprintf("the Node %s %s %s, %s: another host may use the same node name, and traffic for "+
		"this node goes "+
		"there. Give each host a name of its own (NODENAME)", t.Node, verb, list(t.Addresses), which)
	if len(t.Own) > 0 {
		text += fmt.Sprintf(", or, if a person changed the Node, set its address back to %s or put the new one on an "+
			"interface", list(t.Own))
	}
	return text
}

func list(addresses []netip.Addr) string {
	var texts []string
	for _, a := range addresses {
		texts = append(texts, a.String())
	}
	return strings.Join(texts, " and ")
}

// takeoverDetector distinguishes a takeover from changes of this host.
type takeoverDetector struct {
	node string
	// hold is the time that a takeover is remembered after this host's periodic detection has restored its address in
	// the Node: the other host writes, too.
	hold time.Duration

	own           map[Family]netip.Addr // last registered by this host, or seen in the Node and on an interface
	claim, before claim                 // the present one, if the Node has foreign addresses, and the last one
	found         Takeover
}

// claim is a time in which the Node has foreign addresses.
type claim struct {
	addresses    []netip.Addr
	since, ended time.Time
}

func newTakeoverDetector(name string, registered *model.Node, hold time.Duration) *takeoverDetector {
	j := &takeoverDetector{node: name, hold: hold, own: map[Family]netip.Addr{}}
	for _, f := range bothFamilies {
		j.own[f] = addressOf(registered, f).Addr()
	}
	return j
}

// evaluate evaluates the stored Node, nil if there is none, and the interfaces of the host. It returns the takeover,
// and the time of the next call if nothing changes before, zero for never.
func (j *takeoverDetector) evaluate(now time.Time, n *model.Node, interfaces []Interface) (Takeover, time.Time) {
	foreign := j.foreign(n, interfaces)
	if len(foreign) == 0 {
		if len(j.claim.addresses) > 0 {
			j.claim.ended = now
			j.before, j.claim = j.claim, claim{}
		}
		if len(j.found.Addresses) == 0 {
			return j.found, time.Time{}
		}
		return j.after(now, interfaces)
	}
	if len(j.claim.addresses) == 0 {
		j.claim.since = now
	}
	j.claim.addresses = foreign
	if len(j.found.Addresses) == 0 {
		j.found.Since = j.claim.since
		switch {
		case j.again():
			j.found.Since = j.before.since
		case now.Sub(j.claim.since) < takeoverAfter:
			return j.found, j.claim.since.Add(takeoverAfter)
		}
	}
	j.found.Node, j.found.Addresses, j.found.Own, j.found.Ended = j.node, foreign, j.owned(), time.Time{}
	return j.found, now.Add(takeoverPoll)
}

// again reports whether an address comes back soon after this host has replaced it. Two hosts that both write their
// address each interval may do so one shortly after the other, so that one of them never sees the other's for long.
func (j *takeoverDetector) again() bool {
	was := func(a netip.Addr) bool { return slices.Contains(j.before.addresses, a) }
	return j.claim.since.Before(j.before.ended.Add(j.hold)) && slices.ContainsFunc(j.claim.addresses, was)
}

// foreign returns the addresses of the Node that are not this host's. Those that are on an interface become its own.
func (j *takeoverDetector) foreign(n *model.Node, interfaces []Interface) (addresses []netip.Addr) {
	if n == nil {
		return nil
	}
	for _, f := range bothFamilies {
		a := addressOf(n, f).Addr()
		switch {
		case !a.IsValid():
		case onInterface(interfaces, a):
			j.own[f] = a
		case a != j.own[f]:
			addresses = append(addresses, a)
		}
	}
	return addresses
}

// after returns the state when the Node has addresses of this host again.
func (j *takeoverDetector) after(now time.Time, interfaces []Interface) (Takeover, time.Time) {
	if j.found.Ended.IsZero() {
		j.found.Ended = now
	}
	end := j.found.Ended.Add(j.hold)
	moved := slices.ContainsFunc(j.found.Addresses, func(a netip.Addr) bool { return onInterface(interfaces, a) })
	if moved || !now.Before(end) {
		j.found = Takeover{}
		return j.found, time.Time{}
	}
	return j.found, end
}

func (j *takeoverDetector) owned() (addresses []netip.Addr) {
	for _, f := range bothFamilies {
		if j.own[f].IsValid() {
			addresses = append(addresses, j.own[f])
		}
	}
	return addresses
}

func onInterface(interfaces []Interface, a netip.Addr) bool {
	return slices.ContainsFunc(interfaces, func(i Interface) bool {
		return slices.ContainsFunc(i.Addresses, func(p netip.Prefix) bool { return p.Addr() == a })
	})
}

// TakeoverWatch detects, while this node runs, that another host has taken over its Node.
type TakeoverWatch struct {
	Config     Config
	Registered Result
	Host       HostAddresses
	Log        *zap.Logger

	mu    sync.Mutex
	found Takeover
}

// Found returns the last result.
func (w *TakeoverWatch) Found() Takeover {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.found
}

// Run watches the Node until ctx ends. With DISABLE_NODE_IP_CHECK it returns at once.
func (w *TakeoverWatch) Run(ctx context.Context, tables *datastore.Tables) error {
	if w.Config.DisableConflictCheck {
		return nil
	}
	if _, err := tables.WaitInSync(ctx); err != nil {
		return err
	}
	key := model.ResourceKey(model.KindNode, w.Registered.Name)
	j := newTakeoverDetector(w.Registered.Name, w.Registered.Node, w.Config.hold())
	var last *model.Node
	var due time.Time // the next evaluation if the Node does not change before
	for first := true; ; first = false {
		snapshot := tables.Snapshot()
		changed := snapshot.ReplacedOf(model.KindNode)
		n := model.Get[model.Node](snapshot, key)
		if first || n != last || !due.IsZero() && !time.Now().Before(due) {
			last, due = n, w.step(j, n)
		}
		if err := await(ctx, due, changed, nil, nil); err != nil {
			return err
		}
	}
}

// hold returns the time that a takeover is remembered: this host may have to write its address twice to see the other
// one again.
func (c *Config) hold() time.Duration {
	if !c.autodetects() {
		return 0
	}
	return 2 * c.pollInterval()
}

// step evaluates once, and returns the time of the next evaluation.
func (w *TakeoverWatch) step(j *takeoverDetector, n *model.Node) time.Time {
	interfaces, err := w.Host.Interfaces()
	if err != nil {
		return time.Now().Add(takeoverPoll) // the last result stays
	}
	found, due := j.evaluate(time.Now(), n, interfaces)
	w.mu.Lock()
	before := w.found
	w.found = found
	w.mu.Unlock()
	switch was, is := before.String(), found.String(); {
	case is == "" && was != "":
		w.Log.Info("the Node of this host has its own addresses again", zap.String("node", j.node))
	case is != was && found.Ended.IsZero():
		w.Log.Error(is)
	}
	return due
}
