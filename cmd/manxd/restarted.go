package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/manxnet/manx/daemon/kubenode"
	"github.com/manxnet/manx/daemon/restarts"
	"github.com/manxnet/manx/proto/server"
)

// restartedNotice is how long there is a notice after a crash.
const restartedNotice = time.Hour

var (
	metricRestarts = prometheus.NewDesc("manx_restarts_total",
		"How often manx-supervise has started manxd again in its container after an unexpected end.", nil, nil)
	metricLastRestart = prometheus.NewDesc("manx_last_restart_timestamp_seconds",
		"When manxd ended unexpectedly for the last time; the label says how.", []string{"reason"}, nil)
)

// restarted is the part that shows how often, and why, this daemon was started again in its container: the kubelet does
// not count that. Without manx-supervise it shows nothing; systemd and the kubelet count for themselves.
type restarted struct {
	supervised bool
	restarts.Record
	log *zap.Logger
}

func newRestarted(log *zap.Logger) *restarted {
	r := &restarted{log: log}
	text := os.Getenv(restarts.Variable)
	if text == "" {
		return r
	}
	var err error
	if r.Record, err = restarts.Parse(text); err != nil {
		log.Warn("the number of restarts is not known", zap.Error(err))
		return r
	}
	r.supervised = true
	return r
}

func (r *restarted) Name() string { return "restarts" }

// Run implements part.Part.
func (r *restarted) Run(context.Context) error {
	if r.Count > 0 {
		r.log.Warn("started again after an unexpected end", zap.Int("restarts", r.Count),
			zap.String("reason", r.Reason), zap.Time("ended", r.Last))
	}
	return nil
}

// report records an Event about the restart.
func (r *restarted) report(e *kubenode.Events) {
	if r.Count > 0 && r.Report {
		e.Warn(kubenode.Restarted, r.text())
	}
}

func (r *restarted) text() string {
	return fmt.Sprintf("manxd ended unexpectedly (%s) and was started again in its container, for the %s since the "+
		"container's start; the log of the container has the cause", r.Reason, times(r.Count))
}

// times is such as "1st time".
func times(n int) string {
	suffix := "th"
	if n%100 < 11 || n%100 > 13 {
		switch n % 10 {
		case 1:
			suffix = "st"
		case 2:
			suffix = "nd"
		case 3:
			suffix = "rd"
		}
	}
	return fmt.Sprintf("%d%s time", n, suffix)
}

// Notices implements server.Noticer.
func (r *restarted) Notices() []server.Notice {
	if r.Count == 0 || time.Since(r.Last) > restartedNotice {
		return nil
	}
	return []server.Notice{{Topic: "daemon", Subject: "manxd", Text: r.text(), Since: r.Last}}
}

// Describe implements prometheus.Collector.
func (r *restarted) Describe(out chan<- *prometheus.Desc) {
	out <- metricRestarts
	out <- metricLastRestart
}

// Collect implements prometheus.Collector.
func (r *restarted) Collect(out chan<- prometheus.Metric) {
	if !r.supervised {
		return
	}
	out <- prometheus.MustNewConstMetric(metricRestarts, prometheus.CounterValue, float64(r.Count))
	if r.Count > 0 {
		out <- prometheus.MustNewConstMetric(metricLastRestart, prometheus.GaugeValue, float64(r.Last.UnixMilli())/1000,
			r.Reason)
	}
}
