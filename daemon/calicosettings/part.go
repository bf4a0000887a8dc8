// Package calicosettings reports the settings of Calico that are set for this node and that Manx does not have.
package calicosettings

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/manxnet/manx/daemon/deps"
	"github.com/manxnet/manx/daemon/part"
	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/datastore/settings"
	"github.com/manxnet/manx/proto/server"
	"github.com/manxnet/manx/retry"
)

// Part reports the settings of Calico that Manx does not have. Those that would leave the node unprotected or
// unreachable keep it from being ready until they are withdrawn or accepted.
type Part struct {
	deps.Deps
	flag       string      // accepts settings
	accepted   []string    // with that flag
	policyOnly bool        // another program makes the network of pods
	ipvs       atomic.Bool // kube-proxy of this host uses IPVS
}

// New returns the part. Settings that keep a node from being ready do not if the user accepts them with a flag.
// policyOnly is set if another program makes the network of this host's pods.
func New(d deps.Deps, flag string, accepted []string, policyOnly bool) *Part {
	return &Part{Deps: d, flag: flag, accepted: accepted, policyOnly: policyOnly}
}

func (c *Part) Name() string { return "settings" }

// Needs returns the kinds with settings that Manx does not have.
func (c *Part) Needs() part.Needs {
	return part.AllOf(model.KindFelixConfiguration, model.KindNode, model.KindBGPConfiguration, model.KindIPPool)
}

// ipvsPoll is the pause between two searches for the interface of IPVS.
const ipvsPoll = 10 * time.Second

// Run implements part.Part: it logs wrong values of this host, and looks for kube-proxy's interface. Without an
// address that is a leftover of an earlier mode of kube-proxy.
func (c *Part) Run(ctx context.Context) error {
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
func (c *Part) logWrong() {
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
func (c *Part) found() []settings.Finding {
	in := settings.Input{Reader: c.Tables.Snapshot(), Node: c.Node.Name, Local: c.Node.Felix, Getenv: os.Getenv,
		IPVS: c.ipvs.Load(), PolicyOnly: c.policyOnly}
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
func (c *Part) holds(f settings.Finding) bool {
	return f.Danger() && !slices.Contains(c.accepted, f.Name)
}

// Checks implements server.Checker: there is a check while a setting keeps the node from being ready.
func (c *Part) Checks() (list []server.Check) {
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
		"with --%s=%s (MANX_ACCEPT_SETTINGS)", strings.Join(texts, "; "), c.flag, strings.Join(names, ","))}}
}

func settingText(f settings.Finding) string {
	return fmt.Sprintf("%s is %s (%s), %s", f.Name, f.Value, f.Source, f.Answer())
}

// Notices implements server.Noticer. Settings that keep the node from being ready are told by the check, and the
// datastore reports kinds that are not read.
func (c *Part) Notices() (list []server.Notice) {
	for _, f := range c.found() {
		if f.Place == settings.Kind || c.holds(f) {
			continue
		}
		text := fmt.Sprintf("%s (%s) is %s", f.Value, f.Source, f.Answer())
		if f.Danger() {
			text += " (accepted with --" + c.flag + ")"
		}
		list = append(list, server.Notice{Topic: "node", Subject: f.Name, Text: text})
	}
	for _, name := range c.accepted {
		if !slices.Contains(settings.Holding(), name) {
			list = append(list, server.Notice{Topic: "node", Subject: "--" + c.flag, Text: name + " keeps no node " +
				"from being ready, and has its effect: remove it from the list (MANX_ACCEPT_SETTINGS)"})
		}
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
func (*Part) Describe(out chan<- *prometheus.Desc) { out <- metricSettings }

// Collect implements prometheus.Collector.
func (c *Part) Collect(out chan<- prometheus.Metric) {
	counts := map[bool]int{}
	for _, f := range c.found() {
		counts[c.holds(f)]++
	}
	for holds, consequence := range map[bool]string{true: "not_ready", false: "notice"} {
		out <- prometheus.MustNewConstMetric(metricSettings, prometheus.GaugeValue, float64(counts[holds]), consequence)
	}
}
