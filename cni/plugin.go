package cni

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"path/filepath"
	"strings"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/manxnet/manx/dataplane/podnet"
)

// callTimeout bounds one ADD, CHECK or DEL: an allocation may compete with many others for a block. The wait for policy
// has a separate timeout.
const callTimeout = 90 * time.Second

// Versions are the supported versions of the CNI specification, for both roles.
var Versions = version.PluginSupports("0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0")

// Plugin is one run of the program in either role.
type Plugin struct {
	// Backend returns the Backend of a configuration.
	Backend func(*Config) Backend
	Getenv  func(string) string
	Stdout  io.Writer
	// Log receives events and warnings; nil disables logging.
	Log func(c *Config, what string, fields ...any)
	// BeforeStep is called before each step of an ADD; an error fails the step. It is for tests and may be nil.
	BeforeStep func(step string) error
}

// IsIPAM reports whether a program name is that of the IPAM plugin.
func IsIPAM(name string) bool { return strings.HasSuffix(filepath.Base(name), "-ipam") }

// Funcs returns the functions of a role for skel. Their errors have CNI codes.
func (p *Plugin) Funcs(ipam bool) skel.CNIFuncs {
	if ipam {
		return skel.CNIFuncs{Add: p.run((*call).ipamAdd), Check: p.run((*call).ipamCheck), Del: p.run((*call).ipamDel),
			GC: p.run((*call).nothing), Status: p.run((*call).ipamStatus)}
	}
	return skel.CNIFuncs{Add: p.run((*call).add), Check: p.run((*call).check), Del: p.run((*call).del),
		GC: p.run((*call).gc), Status: p.run((*call).status)}
}

// call is one ADD, CHECK or DEL.
type call struct {
	*Plugin
	args    *skel.CmdArgs
	conf    *Config // unchecked
	backend Backend
	begun   *podnet.Begun // the interface while its addresses are being assigned, if it could be begun
}

// run prepares a call, and converts its error or panic into a CNI error.
func (p *Plugin) run(do func(*call, context.Context) error) func(*skel.CmdArgs) error {
	return func(args *skel.CmdArgs) (err error) {
		ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
		defer cancel()
		c := &call{Plugin: p, args: args}
		if c.conf, err = parseConfig(args.StdinData); err != nil {
			return Coded(err)
		}
		c.backend = p.Backend(c.conf)
		defer func() {
			if r := recover(); r != nil {
				err = Coded(fmt.Errorf("bug: %v", r))
			}
		}()
		if err = do(c, ctx); err == nil {
			return nil
		}
		if errors.Is(err, ErrNoAnswer) { // no failure yet: the call is repeated without manxd
			c.log("manxd does not answer", "reason", err.Error())
			return err
		}
		c.log("failed", "error", err.Error())
		return Coded(err)
	}
}

func (c *call) log(what string, fields ...any) {
	if c.Log != nil {
		c.Log(c.conf, what, append([]any{"command", c.Getenv("CNI_COMMAND"), "network", c.conf.Name,
			"container", c.args.ContainerID, "interface", c.args.IfName}, fields...)...)
	}
}

// request sends a request of this call and returns the response, or the error in it.
func (c *call) request(ctx context.Context, step Step, set func(*Request)) (*Response, error) {
	q := &Request{Version: ProtocolVersion, Step: step, ContainerID: c.args.ContainerID, Netns: c.args.Netns,
		IfName: c.args.IfName, Args: c.args.Args, InterfacePrefix: c.prefix(), Config: c.args.StdinData}
	if set != nil {
		set(q)
	}
	r, err := c.backend.Call(ctx, q)
	switch {
	case err != nil:
		return nil, err
	case r.Error != nil && r.Error.Code == CodeOtherVersion:
		return nil, fmt.Errorf("%w in this plugin's words: %s", ErrNoAnswer, r.Error.Msg)
	case r.Error != nil:
		return r, r.Error
	}
	return r, nil
}

// prefix returns the prefix of host interface names from the environment, empty if it is not set.
func (c *call) prefix() string {
	first, _, _ := strings.Cut(c.Getenv("FELIX_INTERFACEPREFIX"), ",")
	return first
}

// add attaches the container. Each step with a lasting effect pushes an undo step. A failure runs the undo steps in
// reverse order, so that the container can be attached again from the start.
func (c *call) add(ctx context.Context) (err error) {
	var undo Undo
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("bug: %v", r)
		}
		if err != nil {
			err = Afterwards(err, undo.Run(func(step string) { c.log("taken back", "step", step) }))
		}
	}()
	a, routes, err := c.begin(ctx, &undo)
	if err != nil {
		return err
	}
	pod, err := c.wire(a, &undo)
	if err != nil {
		return err
	}
	r, err := c.request(ctx, StepFinish, func(q *Request) { q.Attachment = a })
	if err != nil {
		return err
	}
	c.log("attached", "hostInterface", pod.HostIf, "addresses", a.Addresses)
	return c.step("print the result", func() error {
		if r.Result == "" {
			return c.print(attached(c.args.IfName, c.args.Netns, a, pod.MAC.String(), routes))
		}
		_, err := io.WriteString(c.Stdout, r.Result)
		return err
	})
}

// begin gets the addresses of the container and the parameters of its wiring.
func (c *call) begin(ctx context.Context, undo *Undo) (*Attachment, []*types.Route, error) {
	var delegated *Attachment
	var routes []*types.Route
	if !c.conf.OwnIPAM() {
		var err error
		if delegated, routes, err = c.delegateAdd(ctx, undo); err != nil {
			return nil, nil, err
		}
	}
	r, err := c.request(ctx, StepAdd, func(q *Request) {
		q.Attachment, q.Begin = delegated, func(a *Attachment) { c.beginWiring(a, undo) }
	})
	if err != nil {
		return nil, nil, err
	}
	a := r.Attachment
	if a == nil {
		return nil, nil, errors.New("the answer to ADD has no attachment")
	}
	undo.Push("give back what ADD took", func(ctx context.Context) error {
		_, err := c.request(ctx, StepAbort, func(q *Request) { q.Attachment = a })
		return err
	})
	if delegated == nil {
		routes = blockRoutes(a.Assigned)
	}
	return a, routes, nil
}

// wire connects the container, unless an earlier ADD did so correctly.
func (c *call) wire(a *Attachment, undo *Undo) (podnet.Pod, error) {
	pod, err := c.pod(a)
	if err != nil {
		return pod, err
	}
	if a.Repeated && c.begun == nil && podnet.Check(pod) == nil {
		return pod, nil
	}
	if pod.MAC, err = c.attach(pod); err != nil {
		return pod, err
	}
	undo.Push("remove the interface", func(context.Context) error {
		return podnet.Detach(c.args.Netns, c.args.IfName, pod.HostIf)
	})
	return pod, nil
}

// beginWiring creates the interface while its addresses are being assigned. After an error nothing of it stays, and the
// wiring with addresses meets the error again.
func (c *call) beginWiring(a *Attachment, undo *Undo) {
	pod, err := c.pod(a)
	if err != nil {
		return
	}
	if c.begun, err = podnet.Begin(pod, c.wiringOptions()); err == nil {
		undo.Push("remove the interface without addresses", func(context.Context) error { return c.begun.Undo() })
	}
}

// attach completes the interface that was begun, or makes one.
func (c *call) attach(pod podnet.Pod) (net.HardwareAddr, error) {
	if c.begun == nil {
		return podnet.Attach(pod, c.wiringOptions())
	}
	if c.begun.Fits(pod) {
		return c.begun.Finish(pod)
	}
	if err := c.begun.Undo(); err != nil {
		return nil, err
	}
	return podnet.Attach(pod, c.wiringOptions())
}

func (c *call) wiringOptions() podnet.Options {
	return podnet.Options{BeforeStep: c.BeforeStep,
		Warn: func(what string, err error) { c.log(what, "error", err.Error()) }}
}

// hostRoute marks the routes to local containers. Protocol boot (3) is the one of Calico's plugin: an agent takes such
// a route for its own only if it knows the WorkloadEndpoint. The metric is the agent's, so that the agent can replace
// the route in one step, without a gap.
var hostRoute = podnet.Route{Protocol: 3, Metric: 1024}

// pod returns the attachment in the form for the wiring.
func (c *call) pod(a *Attachment) (podnet.Pod, error) {
	mac, err := net.ParseMAC(a.MAC)
	if err != nil && a.MAC != "" {
		return podnet.Pod{}, err
	}
	return podnet.Pod{
		Netns: c.args.Netns, IfName: c.args.IfName, HostIf: a.HostIf, MAC: mac,
		MTU: a.MTU, Queues: c.conf.NumQueues, Addresses: a.Addresses, IPv4: a.IPv4, IPv6: a.IPv6, Routes: a.Routes,
		Forwarding: a.Forwarding, HostRoute: hostRoute, Exclusive: a.Exclusive, Routed: a.Routed,
	}, nil
}

// del detaches the container. A missing part is no error. The addresses are released last, so that no other container
// gets them while this one can still use them.
func (c *call) del(ctx context.Context) error {
	r, err := c.request(ctx, StepDel, nil)
	if err != nil {
		return err
	}
	hostIf := ""
	if r.Attachment != nil {
		hostIf = r.Attachment.HostIf
	}
	if err := podnet.Detach(c.args.Netns, c.args.IfName, hostIf); err != nil {
		return err
	}
	if c.conf.OwnIPAM() {
		_, err = c.request(ctx, StepRelease, func(q *Request) { q.Attachment = r.Attachment })
	} else {
		_, err = c.delegate(ctx, "DEL", r.Config)
	}
	if err == nil {
		c.log("detached", "hostInterface", hostIf)
	}
	return err
}

// check compares the result of ADD with the datastore and the kernel, and reports every difference.
func (c *call) check(ctx context.Context) error {
	want, err := c.previous()
	if err != nil {
		return err
	}
	r, callErr := c.request(ctx, StepCheck, func(q *Request) { q.Previous = want })
	if r == nil || r.Attachment == nil {
		return callErr
	}
	pod, err := c.pod(r.Attachment)
	if err != nil {
		return err
	}
	problems := []error{callErr, podnet.Check(pod)}
	if !c.conf.OwnIPAM() {
		_, err = c.delegate(ctx, "CHECK", r.Config)
		problems = append(problems, err)
	}
	return errors.Join(problems...)
}

// ipamAdd assigns addresses and prints them.
func (c *call) ipamAdd(ctx context.Context) error {
	r, err := c.request(ctx, StepIPAMAdd, nil)
	if err != nil {
		return err
	}
	return c.print(assignment(r.Attachment.Assigned))
}

// ipamDel releases all addresses of the container in this network.
func (c *call) ipamDel(ctx context.Context) error {
	_, err := c.request(ctx, StepIPAMDel, nil)
	return err
}

// ipamCheck checks that the container still has the addresses that ADD returned.
func (c *call) ipamCheck(ctx context.Context) error {
	want, err := c.previous()
	if err == nil {
		_, err = c.request(ctx, StepIPAMCheck, func(q *Request) { q.Previous = want })
	}
	return err
}

// status reports whether an ADD would be served, also by another IPAM plugin.
func (c *call) status(ctx context.Context) error {
	r, err := c.request(ctx, StepStatus, nil)
	if err == nil && !c.conf.OwnIPAM() {
		_, err = c.delegate(ctx, "STATUS", r.Config)
	}
	return err
}

// ipamStatus reports whether an ADD of the IPAM role would be served.
func (c *call) ipamStatus(ctx context.Context) error {
	_, err := c.request(ctx, StepStatus, nil)
	return err
}

// gc requests the removal of addresses and endpoints of containers that the runtime does not know any more. An error
// does not keep another IPAM plugin from its part (CNI specification 1.1, GC).
func (c *call) gc(ctx context.Context) error {
	conf, err := ParseConfig(c.args.StdinData)
	if err != nil {
		return err
	}
	r, err := c.request(ctx, StepGC, func(q *Request) { q.Valid = conf.ValidAttachments })
	if c.conf.OwnIPAM() || errors.Is(err, ErrNoAnswer) { // then the call is repeated without manxd
		return err
	}
	var config []byte
	if r != nil {
		config = r.Config
	}
	_, others := c.delegate(ctx, "GC", config)
	return errors.Join(err, others)
}

// nothing implements the garbage collection of the IPAM role: the network plugin's is sufficient.
func (c *call) nothing(context.Context) error { return nil }

// previous reads the addresses of this interface from prevResult.
func (c *call) previous() ([]netip.Addr, error) {
	conf, err := ParseConfig(c.args.StdinData)
	if err != nil {
		return nil, err
	}
	if err := version.ParsePrevResult(&conf.PluginConf); err != nil {
		return nil, types.NewError(types.ErrDecodingFailure, "prevResult cannot be read", err.Error())
	}
	if conf.PrevResult == nil {
		return nil, types.NewError(types.ErrInvalidNetworkConfig, "prevResult is missing",
			"CHECK needs what ADD returned")
	}
	r, err := current.NewResultFromResult(conf.PrevResult)
	if err != nil {
		return nil, types.NewError(types.ErrDecodingFailure, "prevResult cannot be read", err.Error())
	}
	var addrs []netip.Addr
	for _, ip := range r.IPs {
		if ip == nil || !belongsTo(c.args.IfName, r, ip.Interface) {
			continue // of another plugin in the chain
		}
		if a, ok := netip.AddrFromSlice(ip.Address.IP); ok {
			addrs = append(addrs, a.Unmap())
		}
	}
	return addrs, nil
}

// belongsTo reports whether an address of a result, with the index of its interface, is on the interface of that name.
// An address without interface counts as being on it.
func belongsTo(name string, r *current.Result, index *int) bool {
	if index == nil {
		return true
	}
	i := *index
	return i >= 0 && i < len(r.Interfaces) && r.Interfaces[i] != nil && r.Interfaces[i].Name == name
}

// print writes a result in the requested version.
func (c *call) print(r *current.Result) error {
	converted, err := r.GetAsVersion(c.conf.CNIVersion)
	if err != nil {
		return err
	}
	return converted.PrintTo(c.Stdout)
}

// step runs one named step of an ADD.
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
