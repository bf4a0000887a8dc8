package server

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/model"
	manxv1 "github.com/manxnet/manx/proto/manx/v1"
)

// DatastoreView shows how this node stands to the datastore.
type DatastoreView struct{ shown[DatastoreSource] }

// DatastoreSource is the source of a DatastoreView.
type DatastoreSource struct {
	Type    string          // "etcdv3" or "embedded"
	Waiting string          // why there are no Tables yet; may be empty
	Tables  Datastore       // nil: not connected yet
	Store   datastore.Store // keeps requests about this node; nil: not connected yet
	// SourceOf names for a person from where a kind is read; nil: it is not known.
	SourceOf func(model.Kind) string
	// Last returns the state of an earlier run that BGP and routes follow, nil for none; nil: never any.
	Last func() *LastState
}

// LastState is the state of the datastore that an earlier run of the daemon has read.
type LastState struct {
	Valid    time.Time // when it was known to be valid, within ten minutes
	Revision int64     // of the datastore; 0 if kinds have separate clocks
	File     string
	Objects  map[model.Kind]int // their number, for each kind that the file has
	Since    time.Time          // BGP and routes follow it
}

// last returns the state of an earlier run that BGP and routes follow, nil for none.
func (s DatastoreSource) last() *LastState {
	if s.Last == nil {
		return nil
	}
	return s.Last()
}

// Datastore has the calls of *datastore.Tables that the view uses.
type Datastore interface {
	Status() datastore.Status
	Kinds() []datastore.KindStatus
	Snapshot() *datastore.Snapshot
	Reread(context.Context, datastore.Store) (datastore.Reread, error)
}

// snapshot is the newest one, nil if the datastore is not connected yet.
func (v *DatastoreView) snapshot() *datastore.Snapshot {
	tables := v.now().Tables
	if tables == nil {
		return nil
	}
	return tables.Snapshot()
}

// beingRead is the reason of objects that the datastore has not delivered yet, without a fault.
const beingRead = "being read for the first time"

// Ready reports whether the datastore is known as it is.
func (v *DatastoreView) Ready() Check {
	c := v.connection()
	if last := v.now().last(); last != nil && !c.OK {
		c.Reason = fmt.Sprintf("BGP and routes follow the state of %s, %v old; %s",
			last.Valid.Local().Format(time.DateTime), time.Since(last.Valid).Round(time.Second), c.Reason)
	}
	return c
}

func (v *DatastoreView) connection() Check {
	now, c := v.now(), Check{Name: checkDatastore}
	if now.Tables == nil {
		c.Reason = cmp.Or(now.Waiting, "not connected yet: manxd is starting")
		return c
	}
	st := now.Tables.Status()
	switch {
	case st.InSync:
		c.OK, c.Reason = true, "in sync"
		if st.Revision != 0 { // kinds with clocks of their own have none together
			c.Reason = fmt.Sprintf("in sync at revision %d", st.Revision)
		}
	case st.LastError != nil && !st.Complete:
		c.Reason = fmt.Sprintf("cannot be read%s: %v", onlyOf(st.Lost), st.LastError)
	case st.LastError != nil && len(st.Lost) > 0:
		c.Reason = fmt.Sprintf("the last state is kept of %s: %v", kinds(st.Lost), st.LastError)
	case st.LastError != nil:
		c.Reason = fmt.Sprintf("connection lost, the last state is kept: %v", st.LastError)
	default:
		c.Reason = beingRead
	}
	return c
}

// Notices reports a datastore that does not answer. While the connection stands the node counts as ready: it forwards
// packets, and a change of the cluster may be all that it misses.
func (v *DatastoreView) Notices() []Notice {
	now := v.now()
	if now.Tables == nil {
		return nil
	}
	st := now.Tables.Status()
	if !st.Silent {
		return nil
	}
	return []Notice{{Topic: "datastore", Subject: now.Type, Since: st.Answered, Text: fmt.Sprintf(
		"no answer from the datastore for %v; the last state is kept", time.Since(st.Answered).Round(time.Second))}}
}

// kinds names some.
func kinds(list []model.Kind) string {
	const most = 5
	var names []string
	for _, k := range list {
		names = append(names, string(k))
	}
	if len(names) > most {
		return fmt.Sprintf("%s and %d other kinds", strings.Join(names[:most], ", "), len(names)-most)
	}
	return strings.Join(names, ", ")
}

// onlyOf names kinds where these are not all.
func onlyOf(lost []model.Kind) string {
	if len(lost) == 0 {
		return ""
	}
	return ": " + kinds(lost)
}

// Checks implements Checker.
func (v *DatastoreView) Checks() []Check { return []Check{v.Ready()} }

func (v *DatastoreView) status(r *manxv1.GetStatusResponse) {
	now := v.now()
	r.Datastore = &manxv1.DatastoreStatus{Type: now.Type, Reason: v.Ready().Reason, Kinds: v.kinds()}
	if last := now.last(); last != nil {
		r.Datastore.LastStateUnixMs = unixMs(last.Valid)
	}
	if now.Tables == nil {
		return
	}
	d, st := r.Datastore, now.Tables.Status()
	d.InSync, d.Revision, d.SinceUnixMs = st.InSync, st.Revision, unixMs(st.Since)
	d.Connected = st.InSync || st.LastError == nil || len(st.Lost) > 0
	d.Objects, d.Quarantined = uint32(st.Objects), uint32(st.Quarantined)
	d.AnsweredUnixMs = unixMs(st.Answered)
	if st.InSync {
		d.Reason = ""
	}
}

// ListQuarantined implements manxv1.ManxServer.
func (v *DatastoreView) ListQuarantined(
	context.Context, *manxv1.ListQuarantinedRequest,
) (*manxv1.ListQuarantinedResponse, error) {
	r := &manxv1.ListQuarantinedResponse{}
	snapshot := v.snapshot()
	if snapshot == nil {
		return r, nil
	}
	for q := range snapshot.Quarantined() {
		k := q.Object.Key
		reason := q.Object.Err.Error()
		if q.InUse != 0 {
			reason += fmt.Sprintf("; the last valid version, of revision %d, stays in use", q.InUse)
		}
		r.Objects = append(r.Objects, &manxv1.QuarantinedObject{
			Kind: string(k.Kind), Namespace: printable(k.Namespace), Name: printable(k.Name),
			Revision: q.Object.Revision, Reason: printable(reason), SinceUnixMs: unixMs(q.Since),
		})
	}
	return r, nil
}

// printable replaces bytes that are not UTF-8, as in a key that another program wrote: protobuf fails the whole answer
// for one such text.
func printable(text string) string { return strings.ToValidUTF8(text, "\uFFFD") }

const (
	metricInSync      = "manx_datastore_in_sync"
	metricRevision    = "manx_datastore_revision"
	metricObjects     = "manx_datastore_objects"
	metricQuarantined = "manx_datastore_quarantined"
	metricRestarts    = "manx_datastore_full_reads_total"
	metricRollbacks   = "manx_datastore_rollbacks_total"
	metricAnswered    = "manx_datastore_answered_timestamp_seconds"
	metricKindInSync  = "manx_datastore_kind_in_sync"
	metricKindAnswer  = "manx_datastore_kind_answered_timestamp_seconds"
	metricLastState   = "manx_datastore_last_state_in_use"
	metricLastValid   = "manx_datastore_last_state_timestamp_seconds"
)

var datastoreMetrics = describe([]description{
	{metricInSync, "Whether the state of the datastore is complete and up to date.", nil},
	{metricRevision, "Revision of the datastore up to which its state is known.", nil},
	{metricObjects, "Objects of the datastore in use.", nil},
	{metricQuarantined, "Objects of the datastore that cannot be used.", nil},
	{metricRestarts, "Full reads of the datastore after the first.", nil},
	{metricRollbacks, "Full reads of the datastore that found an earlier state than before.", nil},
	{metricAnswered, "Time of the last answer of the datastore: a change, or that there is none.", nil},
	{metricKindInSync, "Whether the state of a kind is complete and up to date.", []string{"kind"}},
	{metricKindAnswer, "Time of the last answer of the datastore about a kind: a change, or that there is none.",
		[]string{"kind"}},
	{metricLastState, "Whether BGP and routes follow the state that an earlier run of manxd has read, because the " +
		"datastore has not answered since the start.", nil},
	{metricLastValid, "Time at which that state was known to be valid, while it is in use.", nil},
})

// Describe implements prometheus.Collector.
func (*DatastoreView) Describe(out chan<- *prometheus.Desc) { datastoreMetrics.Describe(out) }

// Collect implements prometheus.Collector.
func (v *DatastoreView) Collect(out chan<- prometheus.Metric) {
	now := v.now()
	gauge, counter := datastoreMetrics.send(out)
	last := now.last()
	gauge(metricLastState, number(last != nil))
	if last != nil {
		gauge(metricLastValid, float64(last.Valid.Unix()))
	}
	if now.Tables == nil {
		return
	}
	st := now.Tables.Status()
	gauge(metricInSync, number(st.InSync))
	gauge(metricRevision, float64(st.Revision))
	gauge(metricObjects, float64(st.Objects))
	gauge(metricQuarantined, float64(st.Quarantined))
	if !st.Answered.IsZero() {
		gauge(metricAnswered, float64(st.Answered.UnixMilli())/1000)
	}
	for _, k := range now.Tables.Kinds() {
		gauge(metricKindInSync, number(k.InSync), string(k.Kind))
		if !k.Answered.IsZero() {
			gauge(metricKindAnswer, float64(k.Answered.UnixMilli())/1000, string(k.Kind))
		}
	}
	counter(metricRestarts, float64(st.Restarts))
	counter(metricRollbacks, float64(st.Rollbacks))
}
