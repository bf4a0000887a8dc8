package server

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"

	manxv1 "github.com/manxnet/manx/proto/manx/v1"
)

// overview sums up the data of all views and parts.
type overview struct {
	server *Server
}

// GetStatus implements manxv1.ManxServer.
func (o *overview) GetStatus(context.Context, *manxv1.GetStatusRequest) (*manxv1.GetStatusResponse, error) {
	return o.status(), nil
}

func (o *overview) status() *manxv1.GetStatusResponse {
	s := o.server
	v := s.config.Version
	ready, checks := s.Ready()
	r := &manxv1.GetStatusResponse{
		Node:          s.config.Node,
		Version:       &manxv1.Version{Manx: v.Manx, Commit: v.Commit, Gobgp: v.GoBGP, Go: v.Go},
		StartedUnixMs: unixMs(s.started),
		Ready:         ready,
		Peers:         map[string]uint32{},
		Routes:        map[string]uint32{},
		Endpoints:     map[string]uint32{},
		Notices:       uint32(len(s.Notices())),
	}
	for _, c := range checks {
		r.Checks = append(r.Checks, &manxv1.Check{Name: c.Name, Ok: c.OK, Reason: c.Reason})
	}
	for _, x := range s.all() {
		if x, ok := x.(interface {
			status(*manxv1.GetStatusResponse)
		}); ok {
			x.status(r)
		}
	}
	return r
}

// ListSettings implements manxv1.ManxServer.
func (o *overview) ListSettings(context.Context, *manxv1.ListSettingsRequest) (*manxv1.ListSettingsResponse, error) {
	r := &manxv1.ListSettingsResponse{}
	for _, x := range o.server.config.Settings {
		r.Settings = append(r.Settings, &manxv1.Setting{Name: x.Name, Value: x.Value, Source: x.Source,
			Environment: x.Environment})
	}
	return r, nil
}

// ListNotices implements manxv1.ManxServer.
func (o *overview) ListNotices(context.Context, *manxv1.ListNoticesRequest) (*manxv1.ListNoticesResponse, error) {
	r := &manxv1.ListNoticesResponse{}
	for _, n := range o.server.Notices() {
		r.Notices = append(r.Notices, &manxv1.Notice{Topic: n.Topic, Subject: n.Subject, Text: n.Text,
			SinceUnixMs: unixMs(n.Since)})
	}
	return r, nil
}

const (
	metricBuildInfo = "manx_build_info"
	metricReady     = "manx_ready"
	metricNotices   = "manx_notices"
)

var overviewMetrics = describe([]description{
	{metricBuildInfo, "Always 1; the labels say what runs.", []string{"version", "commit", "gobgp", "go"}},
	{metricReady, "Whether a check of readiness is passed.", []string{"check"}},
	{metricNotices, "Things that a person should look at; see manxctl status.", nil},
})

// Describe implements prometheus.Collector.
func (*overview) Describe(out chan<- *prometheus.Desc) { overviewMetrics.Describe(out) }

// Collect implements prometheus.Collector.
func (o *overview) Collect(out chan<- prometheus.Metric) {
	gauge, _ := overviewMetrics.send(out)
	v := o.server.config.Version
	gauge(metricBuildInfo, 1, v.Manx, v.Commit, v.GoBGP, v.Go)
	_, checks := o.server.Ready()
	for _, check := range checks {
		gauge(metricReady, number(check.OK), check.Name)
	}
	gauge(metricNotices, float64(len(o.server.Notices())))
}
