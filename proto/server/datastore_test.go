package server

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/model"
	manxv1 "github.com/manxnet/manx/proto/manx/v1"
)

// silentDatastore is in sync as far as it knows, and hears nothing.
type silentDatastore struct {
	*datastore.Tables
	status datastore.Status
}

func (s silentDatastore) Status() datastore.Status { return s.status }

// A datastore that does not answer has a notice with the time. The node stays ready.
func TestNoticeOfASilentDatastore(t *testing.T) {
	r := newRig(t)
	r.start()
	last := time.Now().Add(-95 * time.Second)
	st := datastore.Status{InSync: true, Complete: true, Answered: last}
	show := func() {
		r.server.Datastore.Show(DatastoreSource{Type: "kubernetes", Tables: silentDatastore{r.tables, st}})
	}
	show()
	about := func() (list []string) {
		answer, err := r.client.ListNotices(t.Context(), &manxv1.ListNoticesRequest{})
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range answer.GetNotices() {
			if n.GetTopic() == "datastore" {
				list = append(list, n.GetText())
			}
		}
		return list
	}
	if list := about(); len(list) > 0 {
		t.Errorf("%q, want no notice", list)
	}
	st.Silent = true
	show()
	list := about()
	if len(list) != 1 || !strings.HasPrefix(list[0], "no answer from the datastore for 1m35s") {
		t.Errorf("%q, want one notice", list)
	}
	if c := r.server.Datastore.Ready(); !c.OK {
		t.Errorf("not ready: %s", c.Reason)
	}
	status, err := r.client.GetStatus(t.Context(), &manxv1.GetStatusRequest{})
	if err != nil || status.GetDatastore().GetAnsweredUnixMs() != last.UnixMilli() {
		t.Errorf("%v, %v, want %d", status.GetDatastore(), err, last.UnixMilli())
	}
}

// Status and metrics show how each kind stands to its source: the datastore, or the file of the last state in its
// place. Watch leaves that out.
func TestKindsOfTheDatastore(t *testing.T) {
	r := newRig(t)
	r.start()
	r.tables.Apply(
		datastore.Event{Type: datastore.EventInSync, Revision: 7, Kinds: []model.Kind{model.KindNode}},
		datastore.Event{Type: datastore.EventInSync, Revision: 8, Kinds: []model.Kind{model.KindIPPool}},
		datastore.Event{Type: datastore.EventLost, Err: errors.New("no right to list"),
			Kinds: []model.Kind{model.KindIPPool}})
	var last *LastState
	r.server.Datastore.Show(DatastoreSource{Type: "kubernetes", Tables: r.tables,
		Last:     func() *LastState { return last },
		SourceOf: func(k model.Kind) string { return string(k) + "s at https://joe:secret@10.0.0.1" }})
	kinds := func() string {
		t.Helper()
		answer, err := r.client.GetStatus(t.Context(), &manxv1.GetStatusRequest{})
		if err != nil {
			t.Fatal(err)
		}
		var lines []string
		for _, k := range answer.GetDatastore().GetKinds() {
			if k.GetAnsweredUnixMs() == 0 || k.GetSinceUnixMs() == 0 {
				t.Errorf("%v, want times", k)
			}
			lines = append(lines, fmt.Sprintf("%s %v %d %d %s: %s", k.GetKind(), k.GetInSync(), k.GetObjects(),
				k.GetRevision(), k.GetSource(), k.GetReason()))
		}
		return strings.Join(lines, "\n")
	}
	const lost = "IPPool false 0 8 IPPools at https://(hidden)@10.0.0.1: no right to list\n"
	if got, want := kinds(), lost+"Node true 0 7 Nodes at https://(hidden)@10.0.0.1: "; got != want {
		t.Errorf("have\n%s\nwant\n%s", got, want)
	}
	_, text := r.web()("/metrics")
	for _, line := range []string{`manx_datastore_kind_in_sync{kind="IPPool"} 0`,
		`manx_datastore_kind_in_sync{kind="Node"} 1`, `manx_datastore_kind_answered_timestamp_seconds{kind="Node"} `} {
		if !strings.Contains(text, line) {
			t.Errorf("no metric %s in\n%s", line, text)
		}
	}
	last = &LastState{Valid: time.Now().Add(-time.Hour), Since: time.Now(), File: "/last-state.json", Revision: 5,
		Objects: map[model.Kind]int{model.KindNode: 3, model.KindBGPPeer: 0}}
	why := r.server.Datastore.connection().Reason
	if got, want := kinds(), "BGPPeer false 0 5 /last-state.json: "+why+"\n"+lost+
		"Node false 3 5 /last-state.json: "+why; got != want {
		t.Errorf("have\n%s\nwant\n%s", got, want)
	}
	watch, err := r.client.Watch(t.Context(), &manxv1.WatchRequest{Status: true})
	if err != nil {
		t.Fatal(err)
	}
	first, err := watch.Recv()
	if s := first.GetStatus().GetDatastore(); err != nil || s == nil || len(s.GetKinds()) > 0 {
		t.Errorf("%v, %v, want a status without kinds", first, err)
	}
}
