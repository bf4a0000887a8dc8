// Package settings determines the controllers to run and their configuration: from KubeControllersConfiguration, and
// with priority from the environment variables of Calico's kube-controllers.
package settings

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/manxnet/manx/datastore/model"
)

// Names of environment variables.
const (
	envEnabled     = "ENABLED_CONTROLLERS"
	envPeriod      = "RECONCILER_PERIOD"
	envCompaction  = "COMPACTION_PERIOD"
	envHealth      = "HEALTH_ENABLED"
	envSyncLabels  = "SYNC_NODE_LABELS"
	envHosts       = "AUTO_HOST_ENDPOINTS"
	envWorkersTail = "_WORKERS"
)

// Default values.
const (
	defaultPeriod     = 5 * time.Minute
	defaultCompaction = 10 * time.Minute
	defaultGrace      = 15 * time.Minute
)

// Env has the settings of the environment. Fields without a variable are nil.
type Env struct {
	enabled            []string
	period, compaction *time.Duration
	syncLabels, health *bool
	hosts              *bool
	texts              map[string]string // the texts of the variables, for the status
}

// FromEnv reads the environment. The error lists all invalid values. Numbers of workers are read and ignored, since a
// controller decides its objects sequentially.
func FromEnv(lookup func(string) (string, bool)) (Env, error) {
	e := Env{texts: map[string]string{}}
	var errs []error
	read := func(name string, parse func(string) error) {
		text, ok := lookup(name)
		if !ok {
			return
		}
		e.texts[name] = text
		if err := parse(text); err != nil {
			errs = append(errs, fmt.Errorf("environment variable %s = %q: %w", name, text, err))
		}
	}
	read(envEnabled, e.readEnabled)
	read(envPeriod, duration(&e.period))
	read(envCompaction, duration(&e.compaction))
	read(envHealth, boolean(&e.health))
	read(envSyncLabels, boolean(&e.syncLabels))
	read(envHosts, func(text string) error {
		on := strings.EqualFold(text, "enabled")
		if e.hosts = &on; !on && !strings.EqualFold(text, "disabled") {
			return errors.New("want enabled or disabled")
		}
		return nil
	})
	for _, of := range []string{"WORKLOAD_ENDPOINT", "PROFILE", "POLICY", "NODE"} {
		name := of + envWorkersTail
		read(name, func(text string) error {
			if n, err := strconv.Atoi(text); err != nil || n < 1 {
				return errors.New("want a number of 1 or more")
			}
			return nil
		})
		delete(e.texts, name)
	}
	return e, errors.Join(errs...)
}

func (e *Env) readEnabled(text string) error {
	known := []string{"workloadendpoint", "namespace", "profile", "policy", "node", "serviceaccount", "loadbalancer"}
	e.enabled = []string{}
	for name := range strings.SplitSeq(text, ",") {
		if !slices.Contains(known, name) {
			return fmt.Errorf("%q is no controller of Manx: want some of %s, with commas and without blanks", name,
				strings.Join(known, ", "))
		}
		e.enabled = append(e.enabled, name)
	}
	return nil
}

func duration(to **time.Duration) func(string) error {
	return func(text string) error {
		d, err := time.ParseDuration(text)
		if err == nil && d < 0 {
			err = errors.New("must not be negative")
		}
		*to = &d
		return err
	}
}

func boolean(to **bool) func(string) error {
	return func(text string) error {
		b, err := strconv.ParseBool(text)
		*to = &b
		return err
	}
}

// Running is the configuration of the controllers to run. A nil controller does not run.
type Running struct {
	Policy, Namespace, ServiceAccount, WorkloadEndpoint *Carrier
	Node                                                *Node
	LoadBalancer                                        *LoadBalancer
	// PolicyNames is set if policies are renamed.
	PolicyNames bool
	// Compaction is the interval between compactions of etcd; 0: none.
	Compaction time.Duration
}

// Carrier is a controller that copies objects to Calico's datastore.
type Carrier struct{ Period time.Duration }

// Node has the controllers of nodes.
type Node struct {
	// Labels and Delete are for etcd alone.
	Labels, Delete bool
	Grace          time.Duration
	Hosts          *model.AutoHostEndpoints
}

// LoadBalancer is the controller of services' addresses.
type LoadBalancer struct {
	// RequestedOnly assigns addresses only to services that request them.
	RequestedOnly bool
}

// Default returns the configuration that kube-controllers create if there is none.
func Default() *model.KubeControllersConfiguration {
	every := func() *metav1.Duration { return &metav1.Duration{Duration: defaultPeriod} }
	c := &model.KubeControllersConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "default"}}
	c.Spec = model.KubeControllersSpec{LogSeverityScreen: "Info", HealthChecks: "Enabled",
		EtcdV3CompactionPeriod: &metav1.Duration{Duration: defaultCompaction},
		Controllers: model.KubeControllers{
			Node: &model.NodeController{ReconcilerPeriod: every(), SyncLabels: "Enabled",
				HostEndpoint:    &model.AutoHostEndpoints{AutoCreate: "Disabled", CreateDefaultHostEndpoint: "Enabled"},
				LeakGracePeriod: &metav1.Duration{Duration: defaultGrace}},
			Policy:           &v3.PolicyControllerConfig{ReconcilerPeriod: every()},
			WorkloadEndpoint: &v3.WorkloadEndpointControllerConfig{ReconcilerPeriod: every()},
			ServiceAccount:   &v3.ServiceAccountControllerConfig{ReconcilerPeriod: every()},
			Namespace:        &v3.NamespaceControllerConfig{ReconcilerPeriod: every()},
			LoadBalancer:     &v3.LoadBalancerControllerConfig{AssignIPs: v3.AllServices},
			Migration:        &model.MigrationController{PolicyNameMigrator: "Enabled"},
		}}
	return c
}

// merge is the state of one merge.
type merge struct {
	env    Env
	spec   model.KubeControllersSpec
	inKube bool
	run    Running
	status model.KubeControllersSpec
}

// Merge determines the controllers to run, and the status of the configuration. inKubernetes is set if Kubernetes is
// the datastore: then there is nothing to copy.
func Merge(env Env, spec model.KubeControllersSpec, inKubernetes bool) (Running, model.KubeControllersStatus) {
	m := merge{env: env, spec: spec, inKube: inKubernetes}
	m.status.LogSeverityScreen = cmp.Or(spec.LogSeverityScreen, "Info")
	m.status.HealthChecks = "Enabled"
	if env.health != nil && !*env.health || env.health == nil && spec.HealthChecks == "Disabled" {
		m.status.HealthChecks = "Disabled"
	}
	m.compaction()
	m.carriers()
	m.loadBalancer()
	m.migration()
	m.node()
	status := model.KubeControllersStatus{RunningConfig: &m.status, EnvironmentVars: m.variables()}
	if inKubernetes {
		m.run.Policy, m.run.Namespace, m.run.ServiceAccount, m.run.WorkloadEndpoint = nil, nil, nil, nil
		m.run.Compaction = 0
	}
	return m.run, status
}

// variables returns the variables that took effect.
func (m *merge) variables() map[string]string {
	vars := map[string]string{}
	for name, text := range m.env.texts {
		of := name == envSyncLabels || name == envHosts
		if !of || m.run.Node != nil && !(name == envSyncLabels && m.inKube) {
			vars[name] = text
		}
	}
	if m.inKube && m.run.Node != nil {
		vars["DATASTORE_TYPE"] = "kubernetes"
	}
	return vars
}

// enabled reports whether a controller runs: if the environment lists controllers, if it is among them, or else if the
// configuration has a section for it.
func (m *merge) enabled(section bool, names ...string) bool {
	if m.env.enabled == nil {
		return section
	}
	return slices.ContainsFunc(names, func(n string) bool { return slices.Contains(m.env.enabled, n) })
}

func (m *merge) compaction() {
	m.run.Compaction = defaultCompaction
	if p := m.spec.EtcdV3CompactionPeriod; p != nil {
		m.run.Compaction = p.Duration
	}
	if p := m.env.compaction; p != nil {
		m.run.Compaction = *p
	}
	m.status.EtcdV3CompactionPeriod = &metav1.Duration{Duration: m.run.Compaction}
}

// carrier decides on one controller that carries objects; shown is its period for the status.
func (m *merge) carrier(section bool, period *metav1.Duration, names ...string) (c *Carrier, shown *metav1.Duration) {
	if !m.enabled(section, names...) {
		return nil, nil
	}
	c, shown = &Carrier{Period: defaultPeriod}, period
	if period != nil {
		c.Period = period.Duration
	}
	if p := m.env.period; p != nil {
		c.Period, shown = *p, &metav1.Duration{Duration: *p}
	}
	return c, shown
}

func (m *merge) carriers() {
	in, out := m.spec.Controllers, &m.status.Controllers
	var period, shown *metav1.Duration
	if in.Policy != nil {
		period = in.Policy.ReconcilerPeriod
	}
	if m.run.Policy, shown = m.carrier(in.Policy != nil, period, "policy"); m.run.Policy != nil {
		out.Policy = &v3.PolicyControllerConfig{ReconcilerPeriod: shown}
	}
	period = nil
	if in.Namespace != nil {
		period = in.Namespace.ReconcilerPeriod
	}
	if m.run.Namespace, shown = m.carrier(in.Namespace != nil, period, "namespace", "profile"); m.run.Namespace != nil {
		out.Namespace = &v3.NamespaceControllerConfig{ReconcilerPeriod: shown}
	}
	period = nil
	if in.ServiceAccount != nil {
		period = in.ServiceAccount.ReconcilerPeriod
	}
	m.run.ServiceAccount, shown = m.carrier(in.ServiceAccount != nil, period, "serviceaccount")
	if m.run.ServiceAccount != nil {
		out.ServiceAccount = &v3.ServiceAccountControllerConfig{ReconcilerPeriod: shown}
	}
	period = nil
	if in.WorkloadEndpoint != nil {
		period = in.WorkloadEndpoint.ReconcilerPeriod
	}
	m.run.WorkloadEndpoint, shown = m.carrier(in.WorkloadEndpoint != nil, period, "workloadendpoint")
	if m.run.WorkloadEndpoint != nil {
		out.WorkloadEndpoint = &v3.WorkloadEndpointControllerConfig{ReconcilerPeriod: shown}
	}
}

func (m *merge) loadBalancer() {
	in := m.spec.Controllers.LoadBalancer
	if !m.enabled(in != nil, "loadbalancer") {
		return
	}
	assign := v3.AllServices
	if in != nil && in.AssignIPs != "" {
		assign = in.AssignIPs
	}
	m.run.LoadBalancer = &LoadBalancer{RequestedOnly: assign == v3.RequestedServicesOnly}
	m.status.Controllers.LoadBalancer = &v3.LoadBalancerControllerConfig{AssignIPs: assign}
}

func (m *merge) migration() {
	in := m.spec.Controllers.Migration
	m.run.PolicyNames = in == nil || in.PolicyNameMigrator != "Disabled"
	m.status.Controllers.Migration = &model.MigrationController{PolicyNameMigrator: onOff(m.run.PolicyNames)}
}

func (m *merge) node() {
	in := m.spec.Controllers.Node
	if !m.enabled(in != nil, "node") {
		return
	}
	n, out := &Node{Grace: defaultGrace, Delete: !m.inKube, Labels: !m.inKube}, &model.NodeController{}
	m.run.Node, m.status.Controllers.Node = n, out
	switch {
	case m.inKube:
	case m.env.syncLabels != nil:
		n.Labels = *m.env.syncLabels
	case in != nil:
		n.Labels = in.SyncLabels != "Disabled"
	}
	out.SyncLabels = onOff(n.Labels)
	if in != nil && in.LeakGracePeriod != nil {
		n.Grace = in.LeakGracePeriod.Duration
		out.LeakGracePeriod = in.LeakGracePeriod
	}
	switch {
	case m.env.hosts != nil && *m.env.hosts:
		n.Hosts = &model.AutoHostEndpoints{AutoCreate: "Enabled", CreateDefaultHostEndpoint: "Enabled"}
	case m.env.hosts == nil && in != nil && in.HostEndpoint != nil:
		h := *in.HostEndpoint
		h.AutoCreate = onOff(h.AutoCreate == "Enabled")
		h.CreateDefaultHostEndpoint = cmp.Or(h.CreateDefaultHostEndpoint, "Enabled")
		n.Hosts = &h
	}
	out.HostEndpoint = n.Hosts
}

func onOff(on bool) string {
	if on {
		return "Enabled"
	}
	return "Disabled"
}
