package kubenode

import (
	"context"
	"errors"
	"fmt"
	"math/big"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/record"

	"github.com/manxnet/manx/bgp"
	"github.com/manxnet/manx/bgp/speaker"
	"github.com/manxnet/manx/integration/kubernetes/apiserver"
	"github.com/manxnet/manx/ipam"
)

const (
	user  = "system:serviceaccount:kube-system:manx-node"
	limit = time.Minute
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func eventually(t *testing.T, check func() error) {
	t.Helper()
	var err error
	for end := time.Now().Add(limit); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if err = check(); err == nil {
			return
		}
	}
	t.Fatal(err)
}

// rig is an API with a Node, and a role with the rights that a node needs for Events and its condition, and no others.
type rig struct {
	server *apiserver.Server
	admin  *kubernetes.Clientset
}

func newRig(t *testing.T) *rig {
	r := &rig{server: apiserver.Start(t)}
	r.server.AddUsers(t, user)
	var err error
	r.admin, err = kubernetes.NewForConfig(r.server.Config(apiserver.Admin))
	must(t, err)
	_, err = r.admin.RbacV1().ClusterRoles().Create(t.Context(), &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: "node"}, Rules: []rbacv1.PolicyRule{
			{Verbs: []string{"get"}, APIGroups: []string{""}, Resources: []string{"nodes"}},
			{Verbs: []string{"patch"}, APIGroups: []string{""}, Resources: []string{"nodes/status"}},
			{Verbs: []string{"create", "patch"}, APIGroups: []string{""}, Resources: []string{"events"}}}},
		metav1.CreateOptions{})
	must(t, err)
	r.bind(t)
	r.addNode(t)
	return r
}

func (r *rig) bind(t *testing.T) {
	_, err := r.admin.RbacV1().ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "node"},
		RoleRef:    rbacv1.RoleRef{APIGroup: "rbac.authorization.k8s.io", Kind: "ClusterRole", Name: "node"},
		Subjects:   []rbacv1.Subject{{APIGroup: "rbac.authorization.k8s.io", Kind: "User", Name: user}}},
		metav1.CreateOptions{})
	must(t, err)
}

func (r *rig) addNode(t *testing.T) *corev1.Node {
	n, err := r.admin.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}},
		metav1.CreateOptions{})
	must(t, err)
	n.Status.Conditions = []corev1.NodeCondition{
		{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady"}}
	n, err = r.admin.CoreV1().Nodes().UpdateStatus(t.Context(), n, metav1.UpdateOptions{})
	must(t, err)
	return n
}

func (r *rig) client(t *testing.T, config *rest.Config) typedcorev1.CoreV1Interface {
	c, err := typedcorev1.NewForConfig(config)
	must(t, err)
	return c
}

// condition returns the Node's NetworkUnavailable in short, and its version.
func (r *rig) condition(t *testing.T) (text, version string) {
	n, err := r.admin.CoreV1().Nodes().Get(t.Context(), "n1", metav1.GetOptions{})
	must(t, err)
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeNetworkUnavailable {
			text = fmt.Sprintf("%s %s %s", c.Status, c.Reason, c.Message)
		}
	}
	if !slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady
	}) {
		t.Error("the conditions of others are gone")
	}
	return text, n.ResourceVersion
}

// TestInTheAPI runs its tests with one API, one after the other.
func TestInTheAPI(t *testing.T) {
	r := newRig(t)
	t.Run("the condition", r.testCondition)
	t.Run("a right that is missing", r.testRefused)
	t.Run("events", r.testEvents)
	t.Run("events while the API is away", r.testEventsAway)
}

const up = "False CalicoIsUp Calico is running on this node"

// run runs a Condition until the returned function is called.
func run(c *Condition) (end func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); _ = c.Run(ctx) }()
	return func() { cancel(); <-done }
}

func (r *rig) testCondition(t *testing.T) {
	var ready atomic.Bool
	var checks atomic.Int64
	checked := func() { // the third check begins after all effects of the two before
		t.Helper()
		before := checks.Load()
		eventually(t, func() error {
			if checks.Load() < before+3 {
				return errors.New("the condition does not check the node")
			}
			return nil
		})
	}
	var out, identity atomic.Value
	out.Store("")
	identity.Store("1")
	c := &Condition{Client: r.client(t, r.server.Config(user)), Node: "n1", Log: zap.NewNop(),
		Ready:        func() bool { checks.Add(1); return ready.Load() },
		OutOfService: func() string { checks.Add(1); return out.Load().(string) }, Identity: func() string {
			return identity.Load().(string)
		}}
	await := func(want string) {
		t.Helper()
		eventually(t, func() error {
			if got, _ := r.condition(t); got != want {
				return fmt.Errorf("the condition is %q, want %q", got, want)
			}
			return nil
		})
	}
	end := run(c)
	checked()
	if got, _ := r.condition(t); got != "" {
		t.Errorf("before the node is ready: %q", got)
	}
	ready.Store(true)
	await(up)
	_, version := r.condition(t)
	end() // as for an update, ...
	ready.Store(false)
	end = run(c)
	checked()
	ready.Store(true)
	checked()
	if got, now := r.condition(t); got != up || now != version { // ... which writes nothing
		t.Errorf("after an update the condition is %q, and the Node is at %s, before at %s", got, now, version)
	}
	out.Store("out of service")
	await("True CalicoIsDown out of service")
	out.Store("")
	await(up)
	must(t, r.admin.CoreV1().Nodes().Delete(t.Context(), "n1", metav1.DeleteOptions{}))
	r.addNode(t)
	identity.Store("2")
	await(up)
	end()
}

func (r *rig) testRefused(t *testing.T) {
	must(t, r.admin.RbacV1().ClusterRoleBindings().Delete(t.Context(), "node", metav1.DeleteOptions{}))
	c := &Condition{Client: r.client(t, r.server.Config(user)), Node: "n1", Ready: func() bool { return true },
		OutOfService: func() string { return "out" }, Identity: func() string { return "" }, Log: zap.NewNop()}
	e := NewEvents(r.client(t, r.server.Config(user)), "n1")
	defer e.Close()
	defer run(c)()
	e.Warn(PolicyRefused, "a test")
	eventually(t, func() error {
		for _, err := range []error{c.Problem(), e.Refused()} {
			if err == nil || !strings.Contains(err.Error(), "is forbidden") {
				return fmt.Errorf("the problem is %v", err)
			}
		}
		return nil
	})
	r.bind(t)
	eventually(t, func() error {
		e.Warn(DriftRepaired, "another test")
		return errors.Join(c.Problem(), e.Refused())
	})
}

// events lists the Events with a reason.
func (r *rig) events(t *testing.T, reason Reason) []corev1.Event {
	list, err := r.admin.CoreV1().Events("default").List(t.Context(), metav1.ListOptions{
		FieldSelector: "involvedObject.kind=Node,involvedObject.name=n1,involvedObject.uid=n1,reason=" +
			string(reason)})
	must(t, err)
	return list.Items
}

func (r *rig) testEvents(t *testing.T) {
	e := NewEvents(r.client(t, r.server.Config(user)), "n1")
	defer e.Close()
	for i := range 1000 { // as on a node with many faults
		e.Warn(SessionDown, fmt.Sprintf("the BGP session with 10.0.%d.%d is down", i/256, i%256))
	}
	e.note(AddressChanged, strings.Repeat("long ", 1000))
	eventually(t, func() error {
		if n := len(r.events(t, AddressChanged)); n != 1 {
			return fmt.Errorf("%d events of another reason", n)
		}
		return e.Refused()
	})
	list := r.events(t, SessionDown)
	if n := len(list); n < 2 || n > burst+1 {
		t.Errorf("1000 events became %d", n)
	}
	for _, x := range list {
		if x.Type != corev1.EventTypeWarning || x.Source.Component != component || x.Source.Host != "n1" {
			t.Errorf("%+v", x)
		}
	}
}

func (r *rig) testEventsAway(t *testing.T) {
	line := apiserver.NewLine(t, r.server.URL)
	e := NewEvents(r.client(t, r.server.ConfigAt(line.URL, user)), "n1")
	defer e.Close()
	line.Cut()
	for range 100_000 { // Warn does not block, and drops Events that have no room
		e.Warn(PoolNearlyFull, "a pool")
	}
	eventually(t, func() error {
		if e.Refused() == nil {
			return errors.New("no Event was sent")
		}
		return nil
	})
	line.Mend()
	eventually(t, func() error {
		if n := len(r.events(t, PoolNearlyFull)); n == 0 {
			return errors.New("no Event arrived after the API was back")
		}
		return nil
	})
}

// recordedEvents returns Events, and a function that returns their texts since its last call.
func recordedEvents() (*Events, func() string) {
	f := record.NewFakeRecorder(100)
	return &Events{node: &corev1.ObjectReference{}, recorder: f}, func() string {
		var list []string
		for len(f.Events) > 0 {
			list = append(list, <-f.Events)
		}
		return strings.Join(list, "\n")
	}
}

func session(last byte, kind bgp.SessionType, phase speaker.Phase) speaker.SessionStatus {
	return speaker.SessionStatus{Session: bgp.Session{Address: netip.AddrFrom4([4]byte{10, 0, 0, last}), Type: kind},
		Phase: phase, Reason: "no answer"}
}

func TestSessionsThatAreDown(t *testing.T) {
	e, read := recordedEvents()
	s := NewSessions(e)
	now := time.Now()
	evaluate := func(after time.Duration, want string, list ...speaker.SessionStatus) {
		t.Helper()
		now = now.Add(after)
		s.Evaluate(now, list)
		if got := read(); got != want {
			t.Errorf("recorded\n%s\nwant\n%s", got, want)
		}
	}
	const up, down = speaker.PhaseEstablished, speaker.PhaseFailed
	tor := func(p speaker.Phase) speaker.SessionStatus { return session(1, bgp.SessionGlobal, p) }
	evaluate(0, "", tor(up))
	evaluate(time.Second, "", tor(down))
	evaluate(downFor/2, "", tor(up)) // it has restarted
	evaluate(time.Second, "", tor(down))
	evaluate(downFor, "Warning BGPSessionDown the BGP session with 10.0.0.1 is down: no answer", tor(down))
	evaluate(time.Hour, "", tor(down))
	evaluate(time.Second, "", tor(speaker.PhaseConnecting))
	evaluate(time.Second, "Normal BGPSessionUp the BGP session with 10.0.0.1 is up again", tor(up))
	evaluate(time.Second, "", tor(down))
	evaluate(time.Second, "") // it is not configured any more
	evaluate(downFor, "", tor(down))

	mesh := func(phases ...speaker.Phase) (list []speaker.SessionStatus) {
		for i, p := range phases {
			list = append(list, session(byte(10+i), bgp.SessionMesh, p))
		}
		return list
	}
	evaluate(time.Second, "", mesh(down, up, up, up)...)
	evaluate(time.Hour, "", mesh(down, up, up, up)...)
	evaluate(time.Second, "", mesh(down, down, up, up)...)
	evaluate(downFor, "Warning BGPSessionDown 2 of 4 BGP sessions of the node-to-node mesh are down, such as that "+
		"with 10.0.0.11: no answer", mesh(down, down, up, up)...)
	evaluate(downFor, "", mesh(down, down, down, down)...)
	evaluate(time.Second, "Normal BGPSessionUp 3 of 4 BGP sessions of the node-to-node mesh are up again",
		mesh(down, up, up, up)...)
}

func TestPoolsThatAreNearlyFull(t *testing.T) {
	e, read := recordedEvents()
	used := 0
	p := NewPools(e, func(context.Context) ([]ipam.PoolUsage, error) {
		return []ipam.PoolUsage{{Name: "a", CIDR: netip.MustParsePrefix("10.1.0.0/24"), Capacity: big.NewInt(256),
			Reserved: big.NewInt(20), InUse: used}, {Capacity: big.NewInt(64), InUse: 64}}, nil
	})
	for _, c := range []struct {
		used int
		want string
	}{{0, ""}, {211, ""}, {212, "Warning IPPoolNearlyFull the IPPool a (10.1.0.0/24) is nearly full: more than " +
		"90 % of its " +
		"addresses are in use or reserved"}, {236, ""}, {100, ""}, {230, "Warning IPPoolNearlyFull"}} {
		used = c.used
		must(t, p.Evaluate(t.Context()))
		if got := read(); !strings.HasPrefix(got, c.want) || c.want == "" && got != "" {
			t.Errorf("%d in use: recorded %q, want %q", c.used, got, c.want)
		}
	}
}
