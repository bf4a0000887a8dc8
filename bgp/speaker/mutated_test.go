package speaker

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	gobgp "github.com/osrg/gobgp/v4/pkg/packet/bgp"
	"go.uber.org/zap"

	"github.com/manxnet/manx/bgp"
	"github.com/manxnet/manx/bgp/wire/message"
)

// The environment variables of TestMutatedMessages.
const (
	envMutations = "MANX_BGP_MUTATIONS" // number of messages; default mutationSample, or soakRound
	envSeed      = "MANX_BGP_SEED"      // of the messages; default: another one each time
	envSoak      = "MANX_BGP_SOAK"      // how long to send them, in rounds with a seed each; default: one round

	mutationSample = 400
	soakRound      = 4_000 // some five minutes
	attackers      = 48
)

// TestMutatedMessages: peers send any message on internal and external sessions, with and without ADD-PATH and in both
// families, and while a session comes up, whichever side dials. The process survives, nothing is leaked, and after each
// message the session either works or has ended with a NOTIFICATION. All routes that the speaker accepts are passed on
// to bystanders of each kind: their sessions stay up, and they get valid messages alone.
func TestMutatedMessages(t *testing.T) {
	count, seed := numberFrom(t, envMutations, mutationSample), numberFrom(t, envSeed, uint64(time.Now().UnixNano()))
	soak := durationFrom(t, envSoak)
	if soak > 0 {
		count = numberFrom(t, envMutations, soakRound)
	}
	if os.Getenv(isolatedEnv) == t.Name() {
		mutatedMessages(t, count, seed, soak)
		return
	}
	start := time.Now()
	for {
		fmt.Fprintf(os.Stderr, "%d messages, %s=%d\n", count, envSeed, seed) // also when the process dies
		isolated(t, fmt.Sprintf("%s=%d", envSeed, seed), fmt.Sprintf("%s=%s", envSoak, soak-time.Since(start)))
		if t.Failed() || time.Since(start) >= soak {
			return
		}
		seed++
	}
}

// mutatedMessages sends so many messages, or fewer if a time is not 0 and is over.
func mutatedMessages(t *testing.T, count, seed uint64, most time.Duration) {
	s, d := passingOn(t, Config{Logger: zap.NewNop(), RestartDeferral: time.Second, OpenTimeout: 3 * time.Second,
		ConnectRetry: time.Second})
	bystanders, list := bystandersOf(&d), attackersOf(t, s, &d)
	mustSet(t, s, d)
	for _, b := range bystanders {
		b.start(t, s, d)
	}
	// the state kept for each peer
	forEach(t, list, func(a *attacker) error { defer a.disconnect(); return a.connect() })
	before := usageNow(s, len(bystanders))

	var number, ended atomic.Uint64
	start := time.Now()
	every(t, time.Minute, func() {
		fmt.Fprintf(os.Stderr, "%s: %d messages, %d of which ended their session\n",
			time.Since(start).Round(time.Second), number.Load(), ended.Load())
	})
	forEach(t, list, func(a *attacker) error {
		defer a.disconnect()
		late := func() bool { return most > 0 && time.Since(start) > most }
		for n := number.Add(1); n <= count && !t.Failed() && !late(); n = number.Add(1) {
			if err := a.attack(newMutator(seed, n)); err != nil {
				return fmt.Errorf("message %d of seed %d: %w", n, seed, err)
			}
			if err := complaints(bystanders); err != nil {
				return fmt.Errorf("message %d of seed %d, or one of those beside it: %w", n, seed, err)
			}
			ended.Add(a.ended)
			a.ended = 0
		}
		return nil
	})
	forEach(t, list, func(a *attacker) error { defer a.disconnect(); return a.connect() })
	awaitOwnAlone(t, s, bystanders)
	for _, b := range bystanders {
		if st, _ := s.Session(b.session.Address); st.Flaps != 0 || !established(st) {
			t.Errorf("bystander %s: %+v", b.name, st)
		}
		n := b.count()
		t.Logf("bystander %s was sent %d UPDATEs", b.name, n)
		least := 10
		if b.session.Address.Is6() { // a quarter of the peers, and chance decides how many routes they send
			least = 4
		}
		if n < least && number.Load() >= mutationSample {
			t.Errorf("the messages are not passed on to bystander %s", b.name)
		}
	}
	if err := complaints(bystanders); err != nil {
		t.Error(err)
	}
	before.compare(t, s, len(bystanders))
	t.Logf("%d messages, %d of which ended their session", min(count, number.Load()), ended.Load())
}

// every calls f at each interval until the test ends.
func every(t *testing.T, interval time.Duration, f func()) {
	stop := make(chan struct{})
	t.Cleanup(func() { close(stop) })
	go func() {
		for {
			select {
			case <-stop:
				return
			case <-time.After(interval):
				f()
			}
		}
	}()
}

func numberFrom(t *testing.T, env string, otherwise uint64) uint64 {
	text := os.Getenv(env)
	if text == "" {
		return otherwise
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatalf("%s = %q: want a number", env, text)
	}
	return n
}

func durationFrom(t *testing.T, env string) time.Duration {
	text := os.Getenv(env)
	if text == "" {
		return 0
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		t.Fatalf("%s = %q: want a duration such as 1h", env, text)
	}
	return max(0, d)
}

// forEach runs f for all peers at once.
func forEach[P fmt.Stringer](t *testing.T, list []P, f func(P) error) {
	t.Helper()
	var wg sync.WaitGroup
	for _, p := range list {
		wg.Go(func() {
			if err := f(p); err != nil {
				t.Errorf("%s: %v", p, err)
			}
		})
	}
	wg.Wait()
	if t.Failed() {
		t.FailNow()
	}
}

// attacker is a peer that sends malformed messages.
type attacker struct {
	*rawPeer
	dialect
	s     *Speaker
	ended uint64 // sessions
}

// newAttacker adds the session of an attacker to d. It gets no routes of others, so that each UPDATE is an answer.
func newAttacker(s *Speaker, d *bgp.Desired, kind dialect, host int) *attacker {
	sess := isolatedSession(kind.six, host, kind.as)
	sess.Filters = []string{filterOwn}
	o := isolatedOptions(sess)
	o.addPath = kind.addPath
	d.Sessions = append(d.Sessions, sess)
	return &attacker{s: s, dialect: kind,
		rawPeer: &rawPeer{session: sess, options: o, speaker: speakerAddress(*d, sess)}}
}

// attackersOf adds attackers of all kinds to d.
func attackersOf(t *testing.T, s *Speaker, d *bgp.Desired) (list []*attacker) {
	for i := range attackers {
		kind := dialect{as: 64512, addPath: i%4 > 1, six: i%16 > 11}
		if i%2 == 1 {
			kind.as = 64999
		}
		a := newAttacker(s, d, kind, i+1)
		a.options.extended = i%5 == 0
		if i%6 == 0 {
			a.session.ReflectorClient, a.session.ReflectorClusterID = true, d.Global.RouterID
		}
		if i >= attackers*2/3 {
			a.listen(t, d.Global.ListenPort)
		}
		d.Sessions[len(d.Sessions)-1] = a.session
		list = append(list, a)
	}
	return list
}

func (a *attacker) String() string {
	return fmt.Sprintf("peer %s (AS %d, ADD-PATH %v, dialled %v)", a.session.Address, a.as, a.addPath,
		a.listener != nil)
}

// host is the last byte of its address.
func (a *attacker) host() int { b := a.session.Address.AsSlice(); return int(b[len(b)-1]) }

// attack sends one message and determines the state of the session.
func (a *attacker) attack(m mutator) error {
	if m.often(12) {
		return a.attackOpening(m)
	}
	if a.conn == nil {
		if err := a.connect(); err != nil {
			return err
		}
	}
	b := m.established(a.dialect)
	a.write(b)
	a.write(a.refresh())
	kind := a.await(kindUpdate, short)
	// the cut-off part swallows later messages
	for _, more := range []int{gobgp.BGP_MAX_MESSAGE_LENGTH, gobgp.BGP_MAX_EXTENDED_MESSAGE_LENGTH} {
		for sent := 0; kind == kindNothing && sent < more; sent += 23 {
			a.write(a.refresh())
		}
		if kind == kindNothing {
			kind = a.await(kindUpdate, 10*short)
		}
	}
	if kind == kindNothing {
		kind = a.await(kindUpdate, patience)
	}
	switch kind {
	case kindUpdate:
		return nil
	case kindNothing:
		return fmt.Errorf("%x: neither an answer nor a NOTIFICATION", b)
	}
	return a.endedWith(kind, b)
}

// endedWith checks that a session ended with a NOTIFICATION. One that the speaker sent may be lost with the connection
// when it closes with bytes unread, so that its own record counts as well.
func (a *attacker) endedWith(kind byte, b []byte) error {
	a.ended++
	a.disconnect()
	if kind == kindNotification || len(b) > 18 && b[18] == kindNotification { // one that is malformed is not answered
		return nil
	}
	var st SessionStatus
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		st, _ = a.s.Session(a.session.Address)
		if !established(st) && (st.LastErrorBy == DirectionSent || st.LastErrorBy == DirectionReceived) {
			return nil
		}
	}
	return fmt.Errorf("%x: the session ended without a NOTIFICATION: %s, %q", b, st.State, st.LastError)
}

// attackOpening sends wrong first messages. The speaker must refuse it, end the connection, or have the session.
func (a *attacker) attackOpening(m mutator) error {
	a.disconnect()
	if err := a.joined(); err != nil {
		return err
	}
	defer a.disconnect()
	b := m.opening(a.dialect, byte(a.host()))
	a.write(b)
	a.write(message.New(4))
	a.ended++
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); {
		if a.await(kindUpdate, short) != kindNothing {
			return nil
		}
		if st, _ := a.s.Session(a.session.Address); established(st) { // without a family in common no routes come
			return nil
		}
	}
	return fmt.Errorf("OPEN %x: no NOTIFICATION, no session, and the connection stays", b)
}

// usage has the resources that a leak increases.
type usage struct {
	goroutines, files int
	objects           uint64
}

// usageNow waits until no sessions are up but those that stay.
func usageNow(s *Speaker, stay int) usage {
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
		up := 0
		for _, st := range s.Sessions() {
			if established(st) {
				up++
			}
		}
		if up == stay {
			break
		}
	}
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	files, _ := os.ReadDir("/proc/self/fd")
	return usage{runtime.NumGoroutine(), len(files), m.HeapObjects}
}

// compare waits until no count is higher than before, except for sessions that are about to be set up. A leak would be
// one for each message.
func (u usage) compare(t *testing.T, s *Speaker, stay int) {
	t.Helper()
	var now usage
	for deadline := time.Now().Add(2 * patience); time.Now().Before(deadline); time.Sleep(time.Second) {
		now = usageNow(s, stay)
		if now.goroutines <= u.goroutines+attackers && now.files <= u.files+attackers/2 &&
			now.objects <= u.objects+u.objects/10+20_000 {
			t.Logf("before %+v, after %+v", u, now)
			return
		}
	}
	t.Errorf("leaked: before %+v, after %+v", u, now)
}
