package server

import (
	"strings"
	"testing"
	"time"

	"github.com/manxnet/manx/datastore"
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
