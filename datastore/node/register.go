package node

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net/netip"
	"os"
	"reflect"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/retry"
)

// errLocked is the error while ClusterInformation reports that the datastore is not ready: it is being migrated.
var errLocked = errors.New("the datastore is locked (ClusterInformation default has datastoreReady: false), as " +
	"during a migration")

// retryInterval is the interval between attempts to use a datastore that does not answer or is locked.
const retryInterval = time.Second

// Register makes this host a node of the cluster: it determines name and addresses, creates or updates the Node, and
// writes the objects that the cluster needs if this is its first node. It must precede every other use of the
// datastore.
func Register(
	ctx context.Context, c Config, store datastore.Store, host HostAddresses, log *zap.Logger,
) (Result, error) {
	name, from, err := Name(c.Name)
	if err != nil {
		return Result{}, err
	}
	if err := c.Check(); err != nil {
		return Result{}, fmt.Errorf("register node %s: %w", name, err)
	}
	log = log.With(zap.String("node", name))
	if err := c.waitForDatastore(ctx, store, log); err != nil {
		return Result{}, err
	}
	r := registrar{config: c, name: name, store: store, host: host, log: log}
	var result Result
	// Existing objects stay unchanged, so that all of it can be repeated: definitions of a datastore may come late.
	err = c.waitFor(ctx, "the datastore", log, func() (bool, error) {
		result, err = r.ensureAll(ctx, log)
		return c.WaitForDatastore && errors.Is(err, datastore.ErrUnavailable), err
	})
	result.Name, result.NameFrom = name, from
	if err != nil {
		return result, err
	}
	if w := renamed(c.Name.File, name); w != "" {
		result.Warnings = append(result.Warnings, w)
	}
	for _, w := range result.Warnings {
		log.Warn(w)
	}
	log.Info("registered", zap.String("nameFrom", from), zap.Any("bgp", result.Node.Spec.BGP))
	return result, nil
}

// ensureAll writes the objects that must exist before this node works.
func (r *registrar) ensureAll(ctx context.Context, log *zap.Logger) (Result, error) {
	if err := ensureCluster(ctx, r.store, r.config.ClusterType); err != nil {
		return Result{}, err
	}
	if err := r.config.waitForKubelet(ctx, r.name, r.store, log); err != nil {
		return Result{}, err
	}
	result, err := r.ensureNode(ctx)
	if err != nil {
		return result, err
	}
	warnings, err := r.ensureSettings(ctx)
	result.Warnings = append(result.Warnings, warnings...)
	return result, err
}

// ensureSettings writes the default pools and the configuration objects.
func (r *registrar) ensureSettings(ctx context.Context) (warnings []string, err error) {
	if !r.config.PolicyOnly {
		if warnings, err = r.ensurePools(ctx); err != nil {
			return warnings, err
		}
	}
	return warnings, r.config.ensureDefaults(ctx, r.store, r.name)
}

// renamed returns a warning if the name differs from that of an earlier run.
func renamed(file, name string) string {
	b, err := os.ReadFile(file)
	if old := strings.TrimSpace(string(b)); err == nil && old != "" && old != name {
		return fmt.Sprintf("this host was node %s and is now %s: blocks, workloads and the Node of the old name stay "+
			"until someone deletes them", old, name)
	}
	return ""
}

// waitForDatastore returns when the datastore answers and is not locked. Without WaitForDatastore it tries once.
func (c *Config) waitForDatastore(ctx context.Context, store datastore.Store, log *zap.Logger) error {
	return c.waitFor(ctx, "the datastore", log, func() (bool, error) {
		err := datastoreReady(ctx, store)
		return c.WaitForDatastore && !errors.Is(err, datastore.ErrUnauthorized), err
	})
}

// waitForKubelet returns when Kubernetes has this host's Node, if only the kubelet can create it.
func (c *Config) waitForKubelet(ctx context.Context, name string, store datastore.Store, log *zap.Logger) error {
	if !c.KubernetesDatastore {
		return nil
	}
	return c.waitFor(ctx, "the kubelet", log, func() (bool, error) {
		_, err := store.Get(ctx, model.ResourceKey(model.KindNode, name))
		if errors.Is(err, datastore.ErrNotFound) {
			return true, fmt.Errorf("there is no Node %s in Kubernetes, which this host's kubelet has to register "+
				"(is the name right? "+
				"NODENAME sets it): %w", name, err)
		}
		return c.WaitForDatastore && errors.Is(err, datastore.ErrUnavailable), err
	})
}

// waitFor repeats a try until it succeeds, or until its error is permanent.
func (c *Config) waitFor(ctx context.Context, what string, log *zap.Logger, try func() (again bool, _ error)) error {
	logged := ""
	for {
		again, err := try()
		if err == nil || !again || ctx.Err() != nil {
			return err
		}
		if c.Waiting != nil {
			c.Waiting(err)
		}
		if err.Error() != logged {
			logged = err.Error()
			log.Warn("waiting for "+what, zap.Error(err))
		}
		if !retry.Sleep(ctx, retryInterval) {
			return fmt.Errorf("waiting for %s: %w", what, err)
		}
	}
}

func datastoreReady(ctx context.Context, store datastore.Store) error {
	o, err := store.Get(ctx, model.ResourceKey(model.KindClusterInformation, "default"))
	if err != nil {
		if errors.Is(err, datastore.ErrNotFound) {
			return nil // a new cluster
		}
		return err
	}
	if model.Locks(o) {
		return errLocked
	}
	return nil
}

// registrar maintains the Node of this host according to the configuration and the host's interfaces.
type registrar struct {
	config Config
	name   string
	store  datastore.Store
	host   HostAddresses
	log    *zap.Logger
}

// ensureNode creates or updates the Node. It does not write an unchanged one.
func (r *registrar) ensureNode(ctx context.Context) (Result, error) {
	var result Result
	node, err := ensure(ctx, r.store, model.ResourceKey(model.KindNode, r.name), func(n *model.Node) (bool, error) {
		before := model.NewObject(model.ResourceKey(model.KindNode, r.name), n).Clone().Value.(*model.Node)
		var err error
		result.Candidates, result.Warnings, err = r.fill(ctx, n)
		if err != nil {
			return false, err
		}
		// Addresses that the Node has already were checked when they were written. The Keeper reports another Node that
		// has taken one since: the running node continues.
		if !r.config.DisableConflictCheck && addressesChanged(before, n) {
			if err := r.checkConflict(ctx, n); err != nil {
				return false, err
			}
		}
		return !reflect.DeepEqual(before, n), nil
	})
	result.Node = node
	if err != nil {
		return result, fmt.Errorf("register node %s: %w", r.name, err)
	}
	return result, nil
}

// fill sets all fields of n that this host decides and leaves the rest unchanged.
func (r *registrar) fill(ctx context.Context, n *model.Node) (candidates []Candidate, warnings []string, err error) {
	if r.config.K8sNodeRef != "" {
		n.Spec.OrchRefs = withKubernetesRef(n.Spec.OrchRefs, r.config.K8sNodeRef)
	}
	if r.config.PolicyOnly {
		return nil, nil, nil
	}
	bgp := model.NodeBGPSpec{}
	if n.Spec.BGP != nil {
		bgp = *n.Spec.BGP
	}
	candidates, warnings, err = r.fillAddresses(ctx, &bgp)
	if err != nil {
		return candidates, warnings, err
	}
	as, err := r.config.asNumber()
	if err != nil {
		return candidates, warnings, err
	}
	if replaced := r.config.ReplacesAS(n); replaced != "" {
		r.log.Warn(replaced) // no warning that stays: from now on the Node has the configured number
	}
	if as != nil {
		bgp.ASNumber = as
	}
	n.Spec.BGP = &bgp
	interfaces, err := r.host.Interfaces()
	if err != nil {
		return candidates, warnings, err
	}
	n.Spec.Interfaces = nodeInterfaces(&r.config, interfaces)
	return candidates, warnings, nil
}

// fillAddresses sets the addresses. There must be one.
func (r *registrar) fillAddresses(ctx context.Context, bgp *model.NodeBGPSpec) (candidates []Candidate,
	warnings []string, err error) {
	for _, f := range []struct {
		family Family
		field  *string
	}{{IPv4, &bgp.IPv4Address}, {IPv6, &bgp.IPv6Address}} {
		d, err := decide(ctx, &r.config, f.family, *f.field, r.host)
		candidates = append(candidates, d.candidates...)
		if err != nil {
			return candidates, warnings, err
		}
		if d.warning != "" {
			warnings = append(warnings, d.warning)
		}
		*f.field = d.address
	}
	if bgp.IPv4Address == "" && bgp.IPv6Address == "" {
		return candidates, warnings,
			errors.New(strings.Join(append([]string{"the node has neither an IPv4 nor an IPv6 address: set IP or IP6"},
				warnings...), "; "))
	}
	return candidates, warnings, nil
}

// Candidates returns every address of the host, IPv4 first, with the reason why Register would choose it or not, if the
// Node had no address yet. An error reports that none would be chosen, or not the required one.
func Candidates(ctx context.Context, c Config, host HostAddresses) ([]Candidate, error) {
	r := registrar{config: c, host: host}
	candidates, _, err := r.fillAddresses(ctx, &model.NodeBGPSpec{})
	return candidates, err
}

func withKubernetesRef(refs []model.OrchRef, name string) []model.OrchRef {
	ref := model.OrchRef{NodeName: name, Orchestrator: "k8s"}
	refs = slices.Clone(refs)
	if i := slices.IndexFunc(refs, func(r model.OrchRef) bool { return r.Orchestrator == "k8s" }); i >= 0 {
		refs[i] = ref
		return refs
	}
	return append(refs, ref)
}

func addressesChanged(before, after *model.Node) bool {
	for _, f := range bothFamilies {
		if addressOf(before, f) != addressOf(after, f) {
			return true
		}
	}
	return false
}

// addressOf parses a Node's address; it returns an invalid prefix for none.
func addressOf(n *model.Node, f Family) netip.Prefix {
	return n.Spec.BGP.Address(model.Family(f))
}

// checkConflict fails if another Node has one of this host's addresses.
func (r *registrar) checkConflict(ctx context.Context, n *model.Node) error {
	nodes, _, err := r.store.List(ctx, model.KindNode, "")
	if err != nil {
		return err
	}
	if conflict := r.config.conflict(r.name, n, slices.Values(nodes)); conflict != nil {
		return conflict
	}
	return nil
}

// conflict returns the first other Node that has an address of this one, nil if there is none.
func (c *Config) conflict(name string, n *model.Node, nodes iter.Seq[*model.Object]) *conflictError {
	for o := range nodes {
		other, ok := o.Value.(*model.Node)
		if !ok || o.Key.Name == name {
			continue
		}
		for _, f := range bothFamilies {
			own := addressOf(n, f).Addr()
			if own.IsValid() && own == addressOf(other, f).Addr() {
				_, _, variable := c.ip(f)
				return &conflictError{Address: own, Other: o.Key.Name, Variable: variable}
			}
		}
	}
	return nil
}

// conflictError reports that another node has this node's address.
type conflictError struct {
	Address  netip.Addr
	Other    string // the other node's name
	Variable string // the setting to change
}

func (e *conflictError) Error() string {
	return fmt.Sprintf("address %s is already used by node %s; set %s or %s_AUTODETECTION_METHOD so that this node "+
		"gets an address of its own, delete the Node %s if that host is gone, or set DISABLE_NODE_IP_CHECK=true",
		e.Address, e.Other, e.Variable, e.Variable, e.Other)
}

// ensurePools creates the default pools, outside all addresses of this host and of the other nodes.
func (r *registrar) ensurePools(ctx context.Context) ([]string, error) {
	return ensurePools(ctx, r.store, &r.config, r.prefixesInUse)
}

// prefixesInUse returns the addresses of this host and of the other nodes.
func (r *registrar) prefixesInUse(ctx context.Context) (inUse []netip.Prefix, err error) {
	interfaces, err := r.host.Interfaces()
	if err != nil {
		return nil, err
	}
	for _, i := range interfaces {
		inUse = append(inUse, i.Addresses...)
	}
	nodes, _, err := r.store.List(ctx, model.KindNode, "")
	if err != nil {
		return nil, err
	}
	for _, o := range nodes {
		if n, ok := o.Value.(*model.Node); ok {
			inUse = append(inUse, addressOf(n, IPv4))
		}
	}
	return slices.DeleteFunc(inUse, func(p netip.Prefix) bool { return !p.IsValid() || p.Bits() == 0 }), nil
}
