package cluster

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os/exec"
	"strings"
	"sync"
	"time"

	"github.com/manxnet/manx/integration/kubernetes/lab"
)

// soakPlan has random faults of a cluster under pings. The faults follow from the seed alone; when they come depends on
// the machine, too.
type soakPlan struct {
	seed     uint64
	duration time.Duration
	// apart is the least time between two ends of a node's manxd.
	apart time.Duration
}

// firstBackOff is the least time that the kubelet waits with a container that ended a second time.
const firstBackOff = 10 * time.Second

// crashesApart is the time between two crashes of a node that cost no packet.
const crashesApart = 3 * time.Second

// faultKinds are the faults, with their shares.
var faultKinds = []struct {
	share    int
	name     string
	needsAPI bool
	do       func(*soaking, fault) error
}{
	{14, "crash", false, (*soaking).crash},
	{3, "crash everywhere", false, (*soaking).crash},
	{3, "stop and continue", false, (*soaking).freeze},
	{2, "delete the agent", true, (*soaking).deleteAgent},
	{1, "rollout", true, (*soaking).rollout},
	{1, "API server away", true, (*soaking).outage},
	{4, "a pod comes or goes", true, (*soaking).pod},
	{4, "a policy comes or goes", true, (*soaking).policy},
}

// fault is one drawn fault.
type fault struct {
	kind  int
	nodes []*lab.Node
	// signal ends a daemon in a crash.
	signal string
	// pause is the time before it, and length that of a fault which takes time.
	pause, length time.Duration
}

func (f fault) String() string {
	var names []string
	for _, n := range f.nodes {
		names = append(names, n.Name)
	}
	return fmt.Sprintf("%s (%s, %s, %s)", faultKinds[f.kind].name, strings.Join(names, " "), f.signal,
		f.length.Round(time.Millisecond))
}

// draw draws the next fault: 0.5 to 6 s after the one before.
func draw(r *rand.Rand, workers []*lab.Node) fault {
	total := 0
	for _, k := range faultKinds {
		total += k.share
	}
	f := fault{pause: 500*time.Millisecond + time.Duration(r.Int64N(int64(5500*time.Millisecond))),
		length: 500*time.Millisecond + time.Duration(r.Int64N(int64(2500*time.Millisecond))),
		// Most crashes in the field are panics (ABRT, as manxd makes them), faults of memory, and kills for want of it.
		signal: []string{"KILL", "KILL", "SEGV", "ABRT"}[r.IntN(4)]}
	at, node := r.IntN(total), workers[r.IntN(len(workers))]
	for at >= faultKinds[f.kind].share {
		at -= faultKinds[f.kind].share
		f.kind++
	}
	f.nodes = []*lab.Node{node}
	if faultKinds[f.kind].name == "crash everywhere" {
		f.nodes = workers
	}
	return f
}

// soaking is a soak that runs.
type soaking struct {
	*World
	soakPlan
	ended   map[string]time.Time // when the manxd of a node ended last, or its successor in another container began
	away    chan error           // gets the result of an outage that is under way; nil: none is
	journal []string             // the last faults
	pods    []string
	closed  bool
	crashes int

	watchers sync.WaitGroup
	mu       sync.Mutex
	longest  time.Duration // from a crash to the next process
}

// soak lets faults happen until the time is up. No ping may get lost. It returns a report.
func (w *World) soak(s soakPlan) error {
	run := &soaking{World: w, soakPlan: s, ended: map[string]time.Time{}}
	r := rand.New(rand.NewPCG(s.seed, 0))
	fmt.Fprintf(w.out, "soak of %s, ends of a node's manxd %s apart; repeat it with SEED=%d\n", s.duration, s.apart,
		s.seed)
	end := time.Now().Add(s.duration)
	faults := 0
	var lost []error
	for minute := 1; time.Now().Before(end); minute++ {
		until := time.Now().Add(min(time.Minute, time.Until(end)))
		run.journal = nil
		err := w.pings(fmt.Sprintf("minute %d of the soak", minute), func() error {
			for time.Now().Before(until) {
				if err := run.next(draw(r, w.Workers)); err != nil {
					return err
				}
				faults++
			}
			run.watchers.Wait()
			return run.settle()
		})
		fmt.Fprintf(w.out, "minute %d: %d faults, %d crashes, back after %s at most\n", minute, faults, run.crashes,
			run.longest.Round(time.Millisecond))
		if err != nil {
			lost = append(lost, fmt.Errorf("%w\nfaults:\n%s", err, strings.Join(run.journal, "\n")))
		}
	}
	if err := errors.Join(lost...); err != nil {
		return fmt.Errorf("SEED=%d: %w", s.seed, err)
	}
	if err := run.tidy(); err != nil {
		return err
	}
	return errors.Join(w.whole(), run.visible())
}

// visible checks that the crashes were repaired in the containers, and that Kubernetes shows them.
func (s *soaking) visible() error {
	if s.longest > firstBackOff {
		return fmt.Errorf("manxd was back only after %s, which is the kubelet's back-off", s.longest)
	}
	out, err := s.Kubectl("get", "events", "-A", "--field-selector=reason=DaemonRestarted", "-o",
		"jsonpath={.items[*].message}")
	if err == nil && s.crashes > 0 && !strings.Contains(out, "ended unexpectedly") {
		err = fmt.Errorf("no Event about %d crashes: %s", s.crashes, out)
	}
	return err
}

// pings calls do while pings are sent: between pods of different nodes, and from the router to a pod of each node.
func (w *World) pings(what string, do func() error) error {
	programs, err := w.pingers()
	if err != nil {
		return err
	}
	return w.underFlows(what, do, programs)
}

func (w *World) pingers() (map[string]*exec.Cmd, error) {
	pods, err := w.pods()
	if err != nil {
		return nil, err
	}
	address := map[string]string{}
	for _, p := range pods {
		name, _, _ := strings.Cut(p.name, "-")
		address[name+" on "+p.node] = p.ip
	}
	client, server, web := "client on node1", "server on node2", "web on "+w.web()
	programs := map[string]*exec.Cmd{}
	for _, f := range [][2]string{{client, server}, {web, client}, {"", client}, {"", server}, {"", web}} {
		from, to := f[0], f[1]
		if address[to] == "" {
			return nil, fmt.Errorf("no pod %s", to)
		}
		ping := "-ping=" + address[to]
		if from == "" {
			programs["from outside to "+to] = w.outside(w.Traffic(), ping)
			continue
		}
		name, node, _ := strings.Cut(from, " on ")
		if programs["from "+from+" to "+to], err = w.inPod(node, name, w.Traffic(), ping); err != nil {
			return nil, err
		}
	}
	return programs, nil
}

// next waits until the fault may come, and causes it.
func (s *soaking) next(f fault) error {
	// The faults are 0.5 to 6 s apart.
	time.Sleep(f.pause)
	kind := faultKinds[f.kind]
	if kind.needsAPI {
		if err := s.settle(); err != nil {
			return err
		}
	}
	s.journal = append(s.journal, time.Now().UTC().Format("15:04:05.000 ")+f.String())
	if err := kind.do(s, f); err != nil {
		return fmt.Errorf("%s: %w", f, err)
	}
	return nil
}

// settle waits for the end of an outage.
func (s *soaking) settle() error {
	if s.away == nil {
		return nil
	}
	err := <-s.away
	s.away = nil
	return err
}

// mayEnd waits until the daemon of a node may end again.
func (s *soaking) mayEnd(n *lab.Node) { time.Sleep(time.Until(s.ended[n.Name].Add(s.apart))) }

// crash ends the daemons of nodes at once. It does not wait until they are back: the next crash may come at any time
// after that.
func (s *soaking) crash(f fault) error {
	for _, n := range f.nodes {
		s.mayEnd(n)
	}
	errs := make([]error, len(f.nodes))
	at := make([]time.Time, len(f.nodes))
	var all sync.WaitGroup
	for i, n := range f.nodes {
		all.Go(func() {
			var pid string
			pid, errs[i] = s.signalDaemon(n, f.signal)
			at[i] = time.Now()
			s.watchers.Go(func() { s.measureReturn(n, pid, at[i]) })
		})
	}
	all.Wait()
	for i, n := range f.nodes {
		s.ended[n.Name] = at[i]
		s.crashes++
	}
	return errors.Join(errs...)
}

// measureReturn measures the time from the end of manxd to its next process.
func (s *soaking) measureReturn(n *lab.Node, pid string, from time.Time) {
	if _, err := s.awaitDaemon(n, pid); err != nil {
		return // the next crash, or the end of the soak, finds that
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.longest = max(s.longest, time.Since(from))
}

// freeze stops a daemon for a while, as a debugger or a machine without time for it does.
func (s *soaking) freeze(f fault) error {
	pid, err := s.signalDaemon(f.nodes[0], "STOP")
	if err != nil {
		return err
	}
	time.Sleep(f.length) // the length of the fault
	return s.continueDaemon(f.nodes[0], pid)
}

// deleteAgent deletes the pod of manxd, and waits until the next one runs.
func (s *soaking) deleteAgent(f fault) error {
	n := f.nodes[0]
	s.mayEnd(n)
	before, err := s.awaitDaemon(n, "")
	if err != nil {
		return err
	}
	var name string
	if err := eventually(func() (err error) { name, err = s.nodePod(n.Name); return err }); err != nil {
		return err
	}
	if _, err := s.Kubectl("delete", "pod", "-n", namespace, name, "--wait=false"); err != nil {
		return err
	}
	_, err = s.awaitDaemon(n, before)
	s.ended[n.Name] = time.Now()
	return err
}

// rollout replaces the pods of manxd on all nodes, one after the other.
func (s *soaking) rollout(fault) error {
	for _, n := range s.Workers {
		s.mayEnd(n)
	}
	if _, err := s.Kubectl("rollout", "restart", "-n", namespace, "daemonset/manx-node"); err != nil {
		return err
	}
	err := s.rolledOut()
	for _, n := range s.Workers {
		s.ended[n.Name] = time.Now()
	}
	return err
}

// outage takes the API server away. The next faults come meanwhile, but for those that need it.
func (s *soaking) outage(f fault) error {
	s.away = make(chan error, 1)
	s.Outage()
	go func() {
		time.Sleep(f.length) // the length of the fault
		s.away <- s.Return()
	}()
	return nil
}

// pod starts a pod, or deletes one.
func (s *soaking) pod(f fault) error {
	if len(s.pods) > 2 {
		name := s.pods[0]
		s.pods = s.pods[1:]
		_, err := s.Kubectl("delete", "pod", name, "--grace-period=1", "--wait=false")
		return err
	}
	name := fmt.Sprintf("soak-%d", time.Now().UnixMilli())
	s.pods = append(s.pods, name)
	return s.Apply(plainPod(name, f.nodes[0].Name))
}

// policy makes a NetworkPolicy that the pings pass, or deletes it.
func (s *soaking) policy(fault) error {
	s.closed = !s.closed
	if s.closed {
		return s.Apply(closed)
	}
	_, err := s.Kubectl("delete", "networkpolicy", "closed")
	return err
}

// tidy removes the objects of the soak.
func (s *soaking) tidy() error {
	if s.closed {
		if err := s.policy(fault{}); err != nil {
			return err
		}
	}
	if len(s.pods) == 0 {
		return nil
	}
	_, err := s.Kubectl(append([]string{"delete", "pod", "--grace-period=1", "--timeout=120s"}, s.pods...)...)
	return err
}

// whole waits until the cluster is as it should be: all daemons are ready, all sessions up, and each address belongs to
// a pod.
func (w *World) whole() error {
	if err := w.rolledOut(); err != nil {
		return err
	}
	for _, n := range w.Workers {
		if err := w.showSessions(n.Name); err != nil {
			return err
		}
	}
	return eventually(w.audit)
}

// afterSession are times from the moment when the router has its session with a node back, until the second crash.
var afterSession = []time.Duration{0, 0, 0, 0, 1, 2, 5, 10, 20, 50, 200}

// crashTwice ends the manxd of a node twice within a second, the second time when it has just come back, and reports
// the lost pings. Some may get lost: peers remove the routes of a speaker that is lost again before it has sent them
// (RFC 4724 section 4.2).
func (w *World) crashTwice() error {
	n := w.Worker("node2")
	earlier := len(w.ToRs[0].Log())
	if _, err := w.ToRs[0].Birdc("debug", n.Name, "{ states, events, routes }"); err != nil {
		return err
	}
	w.show("two crashes of node2 within a second", "the flows send a ping each 10 ms")
	for _, ms := range afterSession {
		var apart time.Duration
		pods, outside, err := w.lostPings(func() (err error) {
			apart, err = w.crashAtSession(n, ms*time.Millisecond)
			// A peer that waits for 5 s until it takes the session back, and the end of the restart.
			time.Sleep(12 * time.Second)
			return err
		})
		if err != nil {
			return err
		}
		fmt.Fprintf(w.out, "%3d ms after the session with the router, %5s after the first: %3d pings lost between "+
			"pods, %3d from outside\n", ms, apart.Round(time.Millisecond), pods, outside)
	}
	fmt.Fprintf(w.out, "from the session to the first route, at the router: %s\n",
		firstRoutes(w.ToRs[0].Log()[earlier:], n.Name))
	return nil
}

// firstRoutes returns the times from each session of a node to its first route in BIRD's log, "none" where no route
// came. The log has lines like these:
//
//	2026-11-26 02:30:12.704 <TRACE> node1: BGP session established
//	2026-11-26 02:30:12.705 <TRACE> node1.ipv4 > ignored 10.244.166.128/26 unicast
func firstRoutes(log, node string) (times []string) {
	var session time.Time
	for line := range strings.Lines(log) {
		text, event, _ := strings.Cut(line, " <TRACE> ")
		at, err := time.Parse("2006-01-02 15:04:05.000", text)
		if err != nil {
			continue
		}
		switch {
		case strings.HasPrefix(event, node+": BGP session established"):
			session = at
		case session.IsZero():
		case strings.HasPrefix(event, node+".ipv4 > "):
			times, session = append(times, at.Sub(session).String()), time.Time{}
		case strings.HasPrefix(event, node+": BGP session closed"):
			times, session = append(times, "none"), time.Time{}
		}
	}
	return times
}

// crashAtSession ends manxd, and its next process a while after the router has the session back. It returns the time
// between both.
func (w *World) crashAtSession(n *lab.Node, after time.Duration) (time.Duration, error) {
	sessions := func() int { return strings.Count(w.ToRs[0].Log(), n.Name+": BGP session established") }
	before := sessions()
	pid, err := w.signalDaemon(n, "KILL")
	first := time.Now()
	if err == nil {
		pid, err = w.awaitDaemon(n, pid)
	}
	if err != nil {
		return 0, err
	}
	now, trigger := io.Pipe()
	killed := make(chan error, 1)
	go func() {
		_, err := n.RunWith(now, "sh", "-c", "read -r _; kill -KILL "+pid)
		killed <- err
	}()
	for end := first.Add(time.Minute); sessions() == before && time.Now().Before(end); time.Sleep(time.Millisecond) {
	}
	time.Sleep(after) // the measured time
	_, err = trigger.Write([]byte("now\n"))
	apart := time.Since(first)
	_ = trigger.Close()
	return apart, errors.Join(err, <-killed)
}

// hangs stops manxd for good: the kubelet ends its container, with the parent, and starts another one.
func (w *World) hangs() error {
	n := w.Worker("node3")
	container, err := w.daemonOf(n)
	if err != nil {
		return err
	}
	begin := time.Now()
	pid, err := w.signalDaemon(n, "STOP")
	if err != nil {
		return err
	}
	if _, err := w.awaitDaemon(n, pid); err != nil {
		return err
	}
	now, err := w.daemonOf(n)
	if err != nil {
		return err
	}
	if now == container {
		return errors.New("manxd that hung is in another process of the same container")
	}
	w.show("a manxd that hangs", fmt.Sprintf("the kubelet has started another container after %s",
		time.Since(begin).Round(time.Second)))
	return w.whole()
}

// lostPings counts the pings that get lost meanwhile: between pods, and from outside.
func (w *World) lostPings(do func() error) (pods, outside int, err error) {
	programs, err := w.pingers()
	if err != nil {
		return 0, 0, err
	}
	var flows []*flow
	for name, cmd := range programs {
		f, startErr := startFlow(name, cmd)
		if startErr != nil {
			err = startErr
			break
		}
		flows = append(flows, f)
	}
	if err == nil {
		time.Sleep(time.Second) // some traffic before the disturbance
		err = do()
	}
	end(flows)
	for _, f := range flows {
		counts, stopErr := f.stop()
		err = errors.Join(err, stopErr)
		if strings.HasPrefix(f.name, "from outside") {
			outside += counts["ping"].Lost
		} else {
			pods += counts["ping"].Lost
		}
	}
	return pods, outside, err
}
