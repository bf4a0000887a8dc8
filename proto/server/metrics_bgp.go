package server

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/manxnet/manx/bgp"
	"github.com/manxnet/manx/bgp/bfd"
	"github.com/manxnet/manx/bgp/fib"
	"github.com/manxnet/manx/bgp/speaker"
)

const (
	metricSessions          = "manx_bgp_sessions"
	metricFlaps             = "manx_bgp_flaps_total"
	metricGracefulRestarts  = "manx_bgp_graceful_restarts_total"
	metricPrefixes          = "manx_bgp_prefixes"
	metricRejected          = "manx_bgp_rejected_routes"
	metricOriginated        = "manx_bgp_originated_prefixes"
	metricSessionUp         = "manx_bgp_session_up"
	metricSessionState      = "manx_bgp_session_state"
	metricSessionUptime     = "manx_bgp_session_established_seconds"
	metricSessionFlaps      = "manx_bgp_session_flaps_total"
	metricSessionRestarts   = "manx_bgp_session_graceful_restarts_total"
	metricSessionPrefixes   = "manx_bgp_session_prefixes"
	metricStrangers         = "manx_bgp_strangers_total"
	metricSessionLimit      = "manx_bgp_session_prefix_limit"
	metricSessionUpdates    = "manx_bgp_session_updates_total"
	metricSessionBFDUp      = "manx_bgp_session_bfd_up"
	metricSessionBFDDowns   = "manx_bgp_session_bfd_downs_total"
	metricSessionBFDDrops   = "manx_bgp_session_bfd_dropped_packets_total"
	metricSessionFailedTime = "manx_bgp_session_last_error_timestamp_seconds"
)

var perSession = []string{"peer", "type"}

var bgpMetrics = describe([]description{
	{metricSessions, "BGP sessions by type and state of RFC 4271.", []string{"type", "state"}},
	{metricFlaps, "How often BGP sessions were established and lost, by type.", []string{"type"}},
	{metricGracefulRestarts, "How often BGP sessions were lost while the peer's routes were kept, by type.",
		[]string{"type"}},
	{metricPrefixes, "Prefixes received and accepted from BGP peers, by type.", []string{"type", "direction"}},
	{metricRejected, "Routes that BGP peers announce and that are not used, by class of reason.", []string{"reason"}},
	{metricOriginated, "Prefixes that this node originates.", nil},
	{metricStrangers, "Connections to the BGP port of hosts without a session, which were refused.", nil},
	{metricSessionUp, "Whether a BGP session is established. Sessions of the mesh have no series of their own.",
		perSession},
	{metricSessionState, "State of a BGP session as bgpPeerState of RFC 4273: 1 Idle, 2 Connect, 3 Active, 4 " +
		"OpenSent, 5 OpenConfirm, 6 Established.", perSession},
	{metricSessionUptime, "How long a BGP session has been established; 0 if it is not.", perSession},
	{metricSessionFlaps, "How often a BGP session was established and lost.", perSession},
	{metricSessionRestarts, "How often a BGP session was lost while the peer's routes were kept.", perSession},
	{metricSessionPrefixes, "Prefixes received, accepted and, while counting them is cheap, advertised on a " +
		"BGP session.", append(perSession, "direction")},
	{metricSessionLimit, "Number of prefixes from the peer above which a BGP session is shut down, where a limit of " +
		"its own is set.", perSession},
	{metricSessionUpdates, "UPDATE messages of a BGP session.", append(perSession, "direction")},
	{metricSessionBFDUp, "Whether BFD finds the path of a BGP session good, where it is on.", perSession},
	{metricSessionBFDDowns, "How often BFD found the path of a BGP session broken, where it is on.", perSession},
	{metricSessionBFDDrops, "BFD packets in the name of a BGP peer that were dropped, where BFD is on.",
		append(perSession, "reason")},
	{metricSessionFailedTime, "When a BGP session last failed.", perSession},
})

// sessionSeries bounds how many sessions have series of their own. Those of the mesh have none: thousands of nodes
// would otherwise give every node thousands of series.
const sessionSeries = 256

// Describe implements prometheus.Collector.
func (*BGPView) Describe(out chan<- *prometheus.Desc) { bgpMetrics.Describe(out) }

// Collect implements prometheus.Collector.
func (v *BGPView) Collect(out chan<- prometheus.Metric) {
	bgp := v.now().Speaker
	if bgp == nil {
		return
	}
	gauge, counter := bgpMetrics.send(out)
	sessions := bgp.Sessions()
	collectTypes(sessions, gauge)
	for typ, n := range bgp.Totals() {
		counter(metricFlaps, float64(n.Flaps), string(typ))
		counter(metricGracefulRestarts, float64(n.Restarts), string(typ))
	}
	classes := map[fib.RejectClass]int{}
	for _, class := range fib.RejectClasses() {
		classes[class] = 0
	}
	for _, r := range bgp.Rejected() {
		classes[r.Class]++
	}
	for class, n := range classes {
		gauge(metricRejected, float64(n), string(class))
	}
	filtered := uint64(0)
	for _, s := range sessions {
		filtered += s.Counters.Received - min(s.Counters.Accepted, s.Counters.Received)
	}
	gauge(metricRejected, float64(filtered), "import_filter")
	gauge(metricOriginated, float64(len(v.desired().Originated)))
	counter(metricStrangers, float64(bgp.Strangers()))
	collectSessions(sessions, gauge, counter)
}

// collectSessions gives series of their own to sessions that are not of the mesh.
func collectSessions(sessions []speaker.SessionStatus, gauge, counter metricFunc) {
	series := 0
	for _, s := range sessions {
		if s.Session.Type != bgp.SessionMesh && series < sessionSeries {
			series++
			collectSession(s, gauge, counter)
		}
	}
}

// collectTypes sums up by type, for the mesh as well.
func collectTypes(sessions []speaker.SessionStatus, gauge metricFunc) {
	type group struct {
		typ  bgp.SessionType
		word string // state or direction
	}
	states, prefixes := map[group]int{}, map[group]uint64{}
	for _, s := range sessions {
		t := s.Session.Type
		states[group{t, s.State}]++
		prefixes[group{t, "received"}] += s.Counters.Received
		prefixes[group{t, "accepted"}] += s.Counters.Accepted
	}
	for g, n := range states {
		gauge(metricSessions, float64(n), string(g.typ), g.word)
	}
	for g, n := range prefixes {
		gauge(metricPrefixes, float64(n), string(g.typ), g.word)
	}
}

// peerState numbers the states as bgpPeerState of RFC 4273 does.
var peerState = map[string]float64{"Idle": 1, "Connect": 2, "Active": 3, "OpenSent": 4, "OpenConfirm": 5,
	"Established": 6}

func collectSession(s speaker.SessionStatus, gauge, counter metricFunc) {
	peer, typ, n := s.Session.Address.String(), string(s.Session.Type), s.Counters
	gauge(metricSessionUp, number(s.Phase == speaker.PhaseEstablished), peer, typ)
	gauge(metricSessionState, peerState[s.State], peer, typ)
	gauge(metricSessionUptime, s.Uptime.Seconds(), peer, typ)
	counter(metricSessionFlaps, float64(s.Flaps), peer, typ)
	counter(metricSessionRestarts, float64(s.Restarts), peer, typ)
	gauge(metricSessionPrefixes, float64(n.Received), peer, typ, "received")
	gauge(metricSessionPrefixes, float64(n.Accepted), peer, typ, "accepted")
	if !n.AdvertisedAt.IsZero() && n.At.Sub(n.AdvertisedAt) <= advertisedAge {
		gauge(metricSessionPrefixes, float64(n.Advertised), peer, typ, "advertised")
	}
	if s.Session.MaxPrefixes != 0 {
		gauge(metricSessionLimit, float64(s.Session.MaxPrefixes), peer, typ)
	}
	counter(metricSessionUpdates, float64(n.UpdatesIn), peer, typ, "in")
	counter(metricSessionUpdates, float64(n.UpdatesOut), peer, typ, "out")
	if s.BFD != nil {
		gauge(metricSessionBFDUp, number(s.BFD.State == bfd.Up), peer, typ)
		counter(metricSessionBFDDowns, float64(s.BFD.Downs), peer, typ)
		collectBFDDrops(s.BFD.Drops, counter, peer, typ)
	}
	if !s.LastErrorAt.IsZero() {
		gauge(metricSessionFailedTime, float64(s.LastErrorAt.Unix()), peer, typ)
	}
}

func collectBFDDrops(d bfd.Drops, counter metricFunc, peer, typ string) {
	for reason, n := range map[string]uint64{"ttl": d.TTL, "source_port": d.Port, "malformed": d.Malformed,
		"discriminator": d.Discriminator, "rate": d.Rate, "unconfirmed_end": d.Unconfirmed} {
		counter(metricSessionBFDDrops, float64(n), peer, typ, reason)
	}
}
