package kubenode

import (
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/record"
)

// Many faulty objects do not flood the API: a call records a few Events, each fault has one, and a new one only when
// the API has nearly forgotten it.
func TestObjectsAreRecordedSlowly(t *testing.T) {
	const many = 12
	recorder := record.NewFakeRecorder(10 * many)
	o := NewObjects(&Events{recorder: recorder}, Quarantined)
	wrong := map[corev1.ObjectReference]string{}
	for i := range many {
		wrong[corev1.ObjectReference{Kind: "BGPPeer", Name: fmt.Sprint(i)}] = "it cannot be used"
	}
	now := time.Now()
	for call, want := range []int{mostObjects, mostObjects, many - 2*mostObjects, 0} {
		o.Record(now, wrong)
		if n := len(recorder.Events); n != want {
			t.Errorf("call %d recorded %d Events, want %d", call, n, want)
		}
		for len(recorder.Events) > 0 {
			<-recorder.Events
		}
	}
	one := corev1.ObjectReference{Kind: "BGPPeer", Name: "7"}
	wrong[one] = "another reason"
	if o.Record(now, wrong); len(recorder.Events) != 1 {
		t.Errorf("%d Events about a new reason", len(recorder.Events))
	}
	delete(wrong, one)
	o.Record(now, wrong)
	wrong[one] = "another reason"
	if o.Record(now, wrong); len(recorder.Events) != 2 {
		t.Errorf("%d Events with that of a fault that came back", len(recorder.Events))
	}
	if o.Record(now.Add(renewal), wrong); len(recorder.Events) != 2+mostObjects {
		t.Errorf("%d Events after the renewal", len(recorder.Events))
	}
}

// Objects whose fault changes all the time keep no other one waiting for its Event.
func TestChangingObjectsKeepNoOtherWaiting(t *testing.T) {
	recorder := record.NewFakeRecorder(100)
	o := NewObjects(&Events{recorder: recorder}, Quarantined)
	patient := corev1.ObjectReference{Kind: "BGPPeer", Name: "z"}
	now := time.Now()
	for call := range 3 {
		wrong := map[corev1.ObjectReference]string{patient: "it cannot be used"}
		for i := range mostObjects {
			wrong[corev1.ObjectReference{Kind: "BGPPeer", Name: fmt.Sprint("a", i)}] = fmt.Sprint("reason ", call)
		}
		o.Record(now.Add(time.Duration(call)*time.Second), wrong)
	}
	if o.recorded[patient].text == "" {
		t.Error("the last object by name has no Event")
	}
}

// The API refuses a text that is too long or is not UTF-8: a long one is cut between characters.
func TestLongTextsAreCutBetweenCharacters(t *testing.T) {
	recorder := record.NewFakeRecorder(1)
	(&Events{recorder: recorder}).Warn(Invalid, "x"+strings.Repeat("ä", maxText))
	text := <-recorder.Events
	if !utf8.ValidString(text) || len(text) > maxText+100 || !strings.HasSuffix(text, "ä...") {
		t.Errorf("%d bytes, valid: %t: %q", len(text), utf8.ValidString(text), text)
	}
}
