package engine

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	"go.uber.org/zap"

	"github.com/manxnet/manx/cni"
	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/ipam"
)

// readyTimeout bounds the query of the datastore's readiness, so that a runtime can try again.
const readyTimeout = 10 * time.Second

// Store has the datastore methods that the engine uses.
type Store interface {
	ipam.Store
	// Keeps reports whether this datastore stores objects of a kind.
	Keeps(kind model.Kind) bool
}

// Config has the parameters of an Engine.
type Config struct {
	// Open returns the datastore for one request about a network, and a function to call after the request.
	Open func(context.Context, *cni.Config) (Store, func(), error)
	// Kubernetes reads pods and namespaces from the Kubernetes API, for networks with policy.type k8s and another
	// datastore. Its error explains why the API cannot be reached.
	Kubernetes func(*cni.Config) (Kubernetes, error)
	// Node returns the name of this node for a network.
	Node func(*cni.Config) (string, error)
	// Prefix is the prefix of host interface names unless the plugin's environment sets one; empty for cali.
	Prefix  string
	MTUFile string
	// Agent reports whether an agent of this host says when the containers of a network have policy and routes. ADD
	// waits then, unless the network configuration sets the time. Nil: there is no agent.
	Agent func(*cni.Config) bool
	// Connected returns the wait until the agent says so about a container; the error is why it never will. The wait
	// returns an error if its context ends before.
	Connected func(*cni.Config, Container) (wait func(context.Context) error, err error)
	// Enforced returns nil if the kernel has rules of policy, or needs none for a network. Without rules all packets of
	// a container pass, so ADD fails with the error. Nil: not checked.
	Enforced func(*cni.Config) error
	// Report receives the time that an ADD waited for policy.
	Report func(ctx context.Context, c *cni.Config, endpoint string, waited time.Duration, timedOut bool)
	// Lasting is set if this process lives on after a response: the response to Add then waits only for the write of
	// the block, and Finish waits for the others.
	Lasting bool
	// InterfaceWith returns the name of the interface of this host that has an address or leads to a workload with it,
	// empty if there is none: such an address is not assigned. Nil: not checked.
	InterfaceWith func(netip.Addr) (string, error)
	// Confirm is called with the addresses of a container before its endpoint is written, and without any when the
	// endpoint is deleted. Nil: an agent in another process reads them from IPAM.
	Confirm func(endpoint model.Key, addresses ...netip.Addr)
	// Released is called with the addresses of a container that are released.
	Released func(endpoint model.Key, addresses ...netip.Addr)
	// HasInterface reports whether this host has an interface of that name. The ADD of a pod is refused if its
	// interface exists and is another pod's. Nil: not checked.
	HasInterface func(name string) (bool, error)
	// Assigned is called with each served request. It must not block.
	Assigned func(ipam.Request)
	Log      *zap.Logger
	Now      func() time.Time
	// Deferred is the folder for DELs that are answered while the datastore is not reachable; see CatchUp. If empty,
	// such DELs fail.
	Deferred string
	// BeforeStep is called before each step of Add; an error fails the step. It is for tests and may be nil.
	BeforeStep func(step string) error
}

// Engine serves requests. It is safe for concurrent use; requests about one container are serialized.
type Engine struct {
	Config
	ipam      sync.Mutex // one assignment or release at a time: most would conflict on one block
	lockFails atomic.Bool
	under     sync.WaitGroup // writes after a response
	wake      chan struct{}  // signals a deferred DEL

	mu         sync.Mutex
	containers map[string]*container
	pods       map[string]*attaching
}

// New returns an Engine.
func New(c Config) *Engine {
	if c.Log == nil {
		c.Log = zap.NewNop()
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	return &Engine{Config: c, containers: map[string]*container{}, pods: map[string]*attaching{},
		wake: make(chan struct{}, 1)}
}

// container is the state of one interface of a container.
type container struct {
	turn    chan struct{} // holds one token while a call has the turn
	users   int
	pending *writes // of an Add that was answered
}

// take waits for the turn of a container; the returned function ends the turn.
func (e *Engine) take(ctx context.Context, id string) (*container, func(), error) {
	e.mu.Lock()
	c := e.containers[id]
	if c == nil {
		c = &container{turn: make(chan struct{}, 1)}
		e.containers[id] = c
	}
	c.users++
	e.mu.Unlock()
	leave := func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		if c.users--; c.users == 0 && c.pending == nil {
			delete(e.containers, id)
		}
	}
	select {
	case c.turn <- struct{}{}:
		return c, func() { <-c.turn; leave() }, nil
	case <-ctx.Done():
		leave()
		return nil, nil, fmt.Errorf("another call for the same container is under way: %w", ctx.Err())
	}
}

// call is one request.
type call struct {
	*Engine
	q     *cni.Request
	conf  *cni.Config
	extra cni.Args
	work  workload
	log   *zap.Logger
	store Store
	own   *container
	reply *cni.Response
	// machine is the virtual machine of the container that keeps its addresses, nil for none.
	machine *machine
	used    map[netip.Addr]bool // the results of inUse
	// exclusive: an interface of this name that leads to another namespace is an error, see checkInterface.
	exclusive bool
}

// steps are the handlers of the requests.
var steps = map[cni.Step]func(*call, context.Context) error{
	cni.StepPrepare: (*call).prepare, cni.StepAdd: (*call).add, cni.StepFinish: (*call).finish,
	cni.StepAbort: (*call).abort, cni.StepDel: (*call).del, cni.StepRelease: (*call).release,
	cni.StepCheck: (*call).check, cni.StepStatus: (*call).status, cni.StepGC: (*call).gc,
	cni.StepIPAMAdd: (*call).ipamAdd, cni.StepIPAMDel: (*call).release, cni.StepIPAMCheck: (*call).ipamCheck,
}

// ofAddresses are the steps that assign, release or compare addresses.
var ofAddresses = map[cni.Step]bool{cni.StepAdd: true, cni.StepRelease: true, cni.StepCheck: true,
	cni.StepIPAMAdd: true, cni.StepIPAMDel: true, cni.StepIPAMCheck: true}

// Call implements cni.Backend. It always returns a response.
func (e *Engine) Call(ctx context.Context, q *cni.Request) (*cni.Response, error) {
	c := &call{Engine: e, q: q, log: e.Log, reply: &cni.Response{Version: cni.ProtocolVersion}}
	if err := c.answer(ctx); err != nil {
		c.log.Error("CNI call failed", zap.String("step", string(q.Step)), zap.Error(err))
		c.reply.Error = coded(err)
	}
	return c.reply, nil
}

func (c *call) answer(ctx context.Context) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("bug: %v", r)
			c.log.Error("panic", zap.Any("value", r), zap.Stack("stack"))
		}
	}()
	do := steps[c.q.Step]
	if c.q.Version != cni.ProtocolVersion || do == nil {
		return types.NewError(cni.CodeOtherVersion, fmt.Sprintf("version %d of the protocol, step %q", c.q.Version,
			c.q.Step),
			fmt.Sprintf("this is version %d", cni.ProtocolVersion))
	}
	if err := c.read(); err != nil {
		return err
	}
	own, leave, err := c.take(ctx, c.turn())
	if err != nil {
		return err
	}
	defer leave()
	c.own = own
	closeStore, err := c.connect(ctx)
	defer closeStore()
	if err == nil && ofAddresses[c.q.Step] {
		err = c.findMachine(ctx)
	}
	if err == nil {
		err = do(c, ctx)
	}
	if err != nil && c.deferrable(err) {
		return c.deferred(err)
	}
	return err
}

// turn returns the identity of the container's interface, whose calls are serialized.
func (c *call) turn() string { return c.conf.Name + " " + c.q.ContainerID + " " + c.q.IfName }

// read parses the request.
func (c *call) read() (err error) {
	if c.conf, err = cni.ParseConfig(c.q.Config); err != nil {
		return err
	}
	if c.extra, err = cni.ParseArgs(c.q.Args); err != nil {
		return err
	}
	node, err := c.Node(c.conf)
	if err != nil {
		return err
	}
	c.work = newWorkload(c.conf.Name, node, c.q.ContainerID, c.q.IfName, c.extra)
	c.log = c.log.With(zap.String("network", c.conf.Name), zap.String("container", c.q.ContainerID),
		zap.String("interface", c.q.IfName))
	if c.work.Pod != "" {
		c.log = c.log.With(zap.String("pod", c.work.Namespace+"/"+c.work.Pod))
	}
	return nil
}

// connect opens the datastore and checks its readiness: while the datastore is locked for a migration, every call has
// to wait.
func (c *call) connect(ctx context.Context) (closeStore func(), err error) {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	c.store, closeStore, err = c.Open(ctx, c.conf)
	if err != nil {
		return func() {}, err
	}
	o, err := c.store.Get(ctx, model.ResourceKey(model.KindClusterInformation, "default"))
	if err != nil {
		return closeStore, notReady(err)
	}
	if o.Err != nil {
		return closeStore, o.Err
	}
	info, ok := o.Value.(*v3.ClusterInformation)
	if !ok || info.Spec.DatastoreReady == nil || !*info.Spec.DatastoreReady {
		return closeStore, types.NewError(types.ErrTryAgainLater, "the datastore is not ready",
			"ClusterInformation default has datastoreReady other than true: it is locked, or no node has "+
				"been set up yet")
	}
	return closeStore, nil
}

// Ready returns nil if the datastore is ready for an ADD for a network.
func (e *Engine) Ready(ctx context.Context, conf *cni.Config) error {
	c := &call{Engine: e, conf: conf, log: e.Log}
	closeStore, err := c.connect(ctx)
	closeStore()
	return err
}

// status checks what ADD requires besides the datastore, which was ready already.
func (c *call) status(context.Context) error {
	if err := c.enforced(); err != nil {
		return err
	}
	return c.withoutPodCIDRs()
}

// step runs one named step.
func (c *call) step(name string, do func() error) error {
	if c.BeforeStep != nil {
		if err := c.BeforeStep(name); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	if err := do(); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

// coded gives an error the CNI code that selects the runtime's reaction.
func coded(err error) *types.Error {
	var known *types.Error
	if !errors.As(err, &known) && (errors.Is(err, datastore.ErrUnavailable) ||
		errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)) {
		return types.NewError(types.ErrTryAgainLater, "the datastore did not answer", err.Error())
	}
	return cni.Coded(err)
}

// notReady wraps an error of reading the cluster's state.
func notReady(err error) error {
	if errors.Is(err, datastore.ErrNotFound) {
		return types.NewError(types.ErrTryAgainLater, "the datastore is not ready",
			"ClusterInformation default does not exist: no node has been set up yet")
	}
	return err
}

// invalidConf returns an error that requires a change of the network configuration.
func invalidConf(what, why string) error {
	return types.NewError(types.ErrInvalidNetworkConfig, what, why)
}
