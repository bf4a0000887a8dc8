package server

import (
	"context"
	"fmt"

	"github.com/manxnet/manx/datastore/model"
	manxv1 "github.com/manxnet/manx/proto/manx/v1"
)

// GetStatus implements manxv1.ManxServer.
func (s *Server) GetStatus(context.Context, *manxv1.GetStatusRequest) (*manxv1.GetStatusResponse, error) {
	return s.status(), nil
}

func (s *Server) status() *manxv1.GetStatusResponse {
	now, v := s.now(), s.config.Version
	ready, checks := s.Ready()
	r := &manxv1.GetStatusResponse{
		Node:          s.config.Node,
		Version:       &manxv1.Version{Manx: v.Manx, Commit: v.Commit, Gobgp: v.GoBGP, Go: v.Go},
		StartedUnixMs: unixMs(s.started),
		Datastore:     now.datastoreStatus(),
		Ready:         ready,
		Peers:         map[string]uint32{},
		Routes:        map[string]uint32{},
		Endpoints:     map[string]uint32{},
		Notices:       uint32(len(now.notices())),
	}
	r.Policy = now.policyStatus()
	for _, c := range checks {
		r.Checks = append(r.Checks, &manxv1.Check{Name: c.Name, Ok: c.OK, Reason: c.Reason})
	}
	now.identity(s.config.Node, r)
	for _, p := range now.peers() {
		r.Peers[p.GetState()]++
	}
	for phase, n := range now.routeCounts() {
		r.Routes[string(phase)] = uint32(n)
	}
	for _, e := range now.endpoints(s.config.Node) {
		r.Endpoints[e.GetPhase()]++
	}
	return r
}

// identity fills in who this node is in the cluster.
func (s *Source) identity(node string, r *manxv1.GetStatusResponse) {
	if s.Desired != nil {
		g := s.Desired().Global
		r.AsNumber, r.RouterId = g.LocalAS, text(g.RouterID)
		r.Drain = string(s.Desired().Drain)
	}
	if s.Datastore == nil {
		return
	}
	if n := model.Get[model.Node](s.Datastore.Snapshot(), model.ResourceKey(model.KindNode, node)); n != nil && n.Spec.BGP != nil {
		r.Ipv4, r.Ipv6 = n.Spec.BGP.IPv4Address, n.Spec.BGP.IPv6Address
	}
}

func (s *Source) datastoreStatus() *manxv1.DatastoreStatus {
	d := &manxv1.DatastoreStatus{Type: s.DatastoreType, Reason: s.datastoreCheck().Reason}
	if s.Datastore == nil {
		return d
	}
	st := s.Datastore.Status()
	d.InSync, d.Revision, d.SinceUnixMs = st.InSync, st.Revision, unixMs(st.Since)
	d.Connected = st.InSync || st.LastError == nil
	d.Objects, d.Quarantined = uint32(st.Objects), uint32(st.Quarantined)
	if st.InSync {
		d.Reason = ""
	}
	return d
}

// ListQuarantined implements manxv1.ManxServer.
func (s *Server) ListQuarantined(context.Context, *manxv1.ListQuarantinedRequest) (*manxv1.ListQuarantinedResponse, error) {
	r := &manxv1.ListQuarantinedResponse{}
	d := s.now().Datastore
	if d == nil {
		return r, nil
	}
	for q := range d.Snapshot().Quarantined() {
		k := q.Object.Key
		reason := q.Object.Err.Error()
		if q.InUse != 0 {
			reason += fmt.Sprintf("; the last valid version, of revision %d, stays in use", q.InUse)
		}
		r.Objects = append(r.Objects, &manxv1.QuarantinedObject{
			Kind: string(k.Kind), Namespace: k.Namespace, Name: k.Name,
			Revision: q.Object.Revision, Reason: reason, SinceUnixMs: unixMs(q.Since),
		})
	}
	return r, nil
}

// ListAddresses implements manxv1.ManxServer.
func (s *Server) ListAddresses(context.Context, *manxv1.ListAddressesRequest) (*manxv1.ListAddressesResponse, error) {
	r := &manxv1.ListAddressesResponse{}
	if s.now().Addresses == nil {
		return r, nil
	}
	for _, a := range s.now().Addresses() {
		r.Addresses = append(r.Addresses, &manxv1.AddressCandidate{
			Family: family(a.Address.Addr()), Address: text(a.Address), Interface: a.Interface,
			Chosen: a.Chosen, Reason: a.Reason, Method: a.Method,
		})
	}
	return r, nil
}

// ListNotices implements manxv1.ManxServer.
func (s *Server) ListNotices(context.Context, *manxv1.ListNoticesRequest) (*manxv1.ListNoticesResponse, error) {
	r := &manxv1.ListNoticesResponse{}
	for _, n := range s.now().notices() {
		r.Notices = append(r.Notices, &manxv1.Notice{Topic: n.Topic, Subject: n.Subject, Text: n.Text, SinceUnixMs: unixMs(n.Since)})
	}
	return r, nil
}
