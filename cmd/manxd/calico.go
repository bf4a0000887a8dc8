package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"text/tabwriter"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/manxnet/manx/daemon/deps"
	"github.com/manxnet/manx/daemon/envflag"
	"github.com/manxnet/manx/daemon/part"
	"github.com/manxnet/manx/dataplane/kernel/device"
	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/connect"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/datastore/node"
	"github.com/manxnet/manx/datastore/settings"
	"github.com/manxnet/manx/datastore/userinfo"
	"github.com/manxnet/manx/proto/server"
	"github.com/manxnet/manx/retry"
)

const acceptFlag = "accept-settings"

// acceptOptions name the settings of Calico that Manx does not have and that do not keep this node from being ready.
type acceptOptions struct{ list string }

// Flags implements group.
func (o *acceptOptions) Flags(s envflag.Set) {
	s.String(&o.list, acceptFlag, "", "settings of Calico that Manx does not have and that no longer keep this node "+
		"from being ready, comma separated: "+strings.Join(settings.Holding(), ", "), "MANX_ACCEPT_SETTINGS")
}

// Check implements group.
func (o *acceptOptions) Check() error {
	for _, name := range names(o.list) {
		if !slices.Contains(settings.Holding(), name) {
			return fmt.Errorf("--%s=%s: want %s", acceptFlag, name, strings.Join(settings.Holding(), ", "))
		}
	}
	return nil
}

// calicoSettings reports the settings of Calico that Manx does not have. Those that would leave the node unprotected or
// unreachable keep it from being ready until they are withdrawn or accepted.
type calicoSettings struct {
	deps.Deps
	accepted []string
	ipvs     atomic.Bool // kube-proxy of this host uses IPVS
}

func newCalicoSettings(d deps.Deps, o acceptOptions) *calicoSettings {
	return &calicoSettings{Deps: d, accepted: names(o.list)}
}

func (c *calicoSettings) Name() string { return "settings" }

// Needs returns the kinds with settings that Manx does not have.
func (c *calicoSettings) Needs() part.Needs {
	return part.AllOf(model.KindFelixConfiguration, model.KindNode, model.KindBGPConfiguration, model.KindIPPool)
}

// ipvsPoll is the pause between two searches for the interface of IPVS.
const ipvsPoll = 10 * time.Second

// Run implements part.Part: it logs wrong values of this host, and looks for kube-proxy's interface. Without an
// address that is a leftover of an earlier mode of kube-proxy.
func (c *calicoSettings) Run(ctx context.Context) error {
	c.logWrong()
	for {
		if found, err := c.Kernel.Device().HasAddress(settings.IPVSInterface); err == nil {
			c.ipvs.Store(found)
		}
		if !retry.Sleep(ctx, ipvsPoll) {
			return nil
		}
	}
}

// logWrong logs the values of this host that are not used, and the lines of Felix's file that cannot be read.
func (c *calicoSettings) logWrong() {
	if c.Node.Felix == nil {
		return
	}
	for _, v := range c.Node.Felix.Values {
		if v.Err != nil {
			c.Log.Warn("a setting of Felix is not used", zap.String("source", v.Source), zap.Error(v.Err))
		}
	}
	for _, text := range c.Node.Felix.Problems {
		c.Log.Warn("a line of Felix's file is not used", zap.String("reason", text))
	}
}

// found returns the settings here that ask for something that Manx does not do.
func (c *calicoSettings) found() []settings.Finding {
	in := settings.Input{Reader: c.Tables.Snapshot(), Node: c.Node.Name, Local: c.Node.Felix, Getenv: os.Getenv,
		IPVS: c.ipvs.Load()}
	var store datastore.Store = c.Store
	if w, ok := store.(interface{ Unwrap() datastore.Backend }); ok {
		store = w.Unwrap()
	}
	if s, ok := store.(interface{ Unread() []string }); ok {
		in.Unread = s.Unread()
	}
	return slices.DeleteFunc(settings.Here(in), func(f settings.Finding) bool { return !f.Matters() })
}

// holds reports whether a setting keeps the node from being ready.
func (c *calicoSettings) holds(f settings.Finding) bool {
	return f.Danger() && !slices.Contains(c.accepted, f.Name)
}

// Checks implements server.Checker: there is a check while a setting keeps the node from being ready.
func (c *calicoSettings) Checks() (list []server.Check) {
	var texts, names []string
	for _, f := range c.found() {
		if c.holds(f) {
			texts, names = append(texts, settingText(f)), append(names, f.Name)
		}
	}
	if len(texts) == 0 {
		return nil
	}
	return []server.Check{{Name: c.Name(), Reason: fmt.Sprintf("%s. Withdraw the setting, or accept the consequence "+
		"with --%s=%s (MANX_ACCEPT_SETTINGS)", strings.Join(texts, "; "), acceptFlag, strings.Join(names, ","))}}
}

func settingText(f settings.Finding) string {
	return fmt.Sprintf("%s is %s (%s), %s", f.Name, f.Value, f.Source, f.Answer())
}

// Notices implements server.Noticer. Settings that keep the node from being ready are told by the check, and the
// datastore reports kinds that are not read.
func (c *calicoSettings) Notices() (list []server.Notice) {
	for _, f := range c.found() {
		if f.Place == settings.Kind || c.holds(f) {
			continue
		}
		text := fmt.Sprintf("%s (%s) is %s", f.Value, f.Source, f.Answer())
		if f.Danger() {
			text += " (accepted with --" + acceptFlag + ")"
		}
		list = append(list, server.Notice{Topic: "node", Subject: f.Name, Text: text})
	}
	if c.Node.Felix != nil {
		for _, text := range c.Node.Felix.Problems {
			list = append(list, server.Notice{Topic: "node", Subject: "felix.cfg", Text: text})
		}
	}
	return list
}

var metricSettings = prometheus.NewDesc("manx_calico_settings", "Settings of Calico that are set for this node and "+
	"that Manx does not have, by what follows: not_ready, notice.", []string{"consequence"}, nil)

// Describe implements prometheus.Collector.
func (*calicoSettings) Describe(out chan<- *prometheus.Desc) { out <- metricSettings }

// Collect implements prometheus.Collector.
func (c *calicoSettings) Collect(out chan<- prometheus.Metric) {
	counts := map[bool]int{}
	for _, f := range c.found() {
		counts[c.holds(f)]++
	}
	for holds, consequence := range map[bool]string{true: "not_ready", false: "notice"} {
		out <- prometheus.MustNewConstMetric(metricSettings, prometheus.GaugeValue, float64(counts[holds]), consequence)
	}
}

// explainCalico prints the settings of Calico that are set here, with the source of each and the answer; all: every
// setting that Calico has.
func (o *options) explainCalico(ctx context.Context, out, complaints io.Writer, getenv func(string) string,
	all bool) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	if all {
		fmt.Fprintln(w, "PLACE\tSETTING\tVARIABLE\tWHAT MANX DOES")
		for _, r := range settings.Rows() {
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", r.Place, r.Name, r.Variable, r.Answer())
		}
		return w.Flush()
	}
	fmt.Fprintln(out, "The environment and felix.cfg are those that this command sees, which the running manxd need "+
		"not have: run it where manxd runs.")
	in := settings.Input{Local: o.localSettings(), Getenv: getenv}
	var err error
	if in.Node, _, err = node.Name(o.node.nameSources()); err != nil {
		return err
	}
	if in.Reader, err = o.readSettings(ctx); err != nil {
		fmt.Fprintf(complaints, "The datastore is not read, so only the settings of this host follow: %v\n", err)
	}
	if h, err := device.Open(); err == nil {
		in.IPVS, _ = h.HasAddress(settings.IPVSInterface)
		h.Close()
	}
	fmt.Fprintln(w, "SETTING\tVALUE\tSOURCE\tWHAT MANX DOES")
	for _, f := range settings.Here(in) {
		answer := f.Answer()
		if f.Danger() && !slices.Contains(names(o.accept.list), f.Name) {
			answer += " (the node is not ready: --" + acceptFlag + ")"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", f.Name, userinfo.Hide([]byte(f.Value)), f.Source, answer)
	}
	for _, text := range in.Local.Problems {
		fmt.Fprintf(w, "-\t\t%s\tnot used: the line cannot be read\n", text)
	}
	return w.Flush()
}

// readSettings reads the objects with settings from the datastore of the manxd that runs on this host, or of the
// settings.
func (o *options) readSettings(ctx context.Context) (model.Reader, error) {
	ctx, cancel := context.WithTimeout(ctx, kubernetesTimeout)
	defer cancel()
	s := connect.Settings{RunDir: o.host.runDir}
	if kind := o.datastore.kind; kind != connect.Embedded {
		config, _, err := o.datastore.etcd(ctx, zap.NewNop())
		if err != nil {
			return nil, err
		}
		s.Type, s.Etcd, s.Kube = kind, config, o.kubernetes()
	}
	store, err := connect.Open(ctx, s, zap.NewNop())
	if err != nil {
		return nil, err
	}
	defer store.Close() //nolint:errcheck // nothing was written
	set := model.Set{}
	for _, kind := range (*calicoSettings)(nil).Needs().Kinds() {
		objects, _, err := store.List(ctx, kind, "")
		if err != nil {
			return nil, err
		}
		for _, object := range objects {
			set[object.Key] = object
		}
	}
	return set, nil
}
