package livemigration

import (
	"encoding/json"
	"maps"
	"testing"
	"time"

	"github.com/manxnet/manx/datastore/model"
)

func key(name string) model.Key {
	return model.Key{Kind: model.KindWorkloadEndpoint, Namespace: "shop", Name: name}
}

// A pod has a role in a move of its namespace if it is the source's pod, or a pod of the machine with the UID of the
// move.
func TestRoles(t *testing.T) {
	move := func(namespace, uid, vmi, phase, source string) *model.Object {
		m := &model.VirtualMachineInstanceMigration{}
		raw, _ := json.Marshal(map[string]any{"metadata": map[string]any{"uid": uid, "namespace": namespace},
			"spec":   map[string]any{"vmiName": vmi},
			"status": map[string]any{"phase": phase, "migrationState": map[string]any{"sourcePod": source}}})
		if err := json.Unmarshal(raw, m); err != nil {
			t.Fatal(err)
		}
		return model.NewObject(model.Key{Kind: model.KindMigration, Namespace: namespace, Name: uid}, m)
	}
	r := model.NewSet(move("shop", "u1", "db", "Running", "db-old"), move("shop", "u2", "web", "Failed", "web-old"),
		move("shop", "u3", "done", "Succeeded", "done-old"), move("shop", "u4", "new", "Pending", "new-old"),
		move("other", "u5", "db", "Running", "db-old"))
	own := func(yield func(model.Key, *model.Workload) bool) {
		for _, pod := range []struct {
			name, job, label, vmi string
		}{
			{"db-old", "", "", ""}, {"db-new", "u1", labelInstance, "db"},
			{"db-older-kubevirt", "u1", labelMachineName, "db"},
			{"forged", "u1", labelInstance, "web"}, {"elsewhere", "u5", labelInstance, "db"},
			{"web-old", "", "", ""}, {"web-new", "u2", labelInstance, "web"},
			{"done-new", "u3", labelInstance, "done"}, {"new-new", "u4", labelInstance, "new"}, {"plain", "", "", ""},
		} {
			yield(key(pod.name), &model.Workload{Pod: pod.name, CommonEndpoint: &model.CommonEndpoint{Namespace: "shop",
				Labels: map[string]string{model.LabelMigrationJob: pod.job, pod.label: pod.vmi}}})
		}
	}
	want := map[model.Key]Role{key("db-old"): source, key("db-new"): destination, key("db-older-kubevirt"): destination,
		key("new-new"): destination, key("web-new"): failed, key("done-new"): succeeded}
	if got := Roles(r, own); !maps.Equal(got, want) {
		t.Errorf("got %v\nwant %v", got, want)
	}
	if got := Roles(model.NewSet(), own); len(got) != 0 {
		t.Errorf("without moves: %v", got)
	}
}

// Each line is one event, and the phase after it.
func TestTracker(t *testing.T) {
	const settle = 30 * time.Second
	type step struct {
		at      int    // seconds
		event   string // a role as the datastore has it now, "none", "heard", "time" or "gone"
		phase   Phase
		changed bool
		next    int // seconds of the next Expire; 0: none
	}
	for name, steps := range map[string][]step{
		"it arrives": {{0, "destination", Arriving, true, 0}, {1, "destination", Arriving, false, 0},
			{5, "heard", Arrived, true, 0}, {6, "heard", Arrived, false, 0}, {7, "destination", Arrived, false, 0},
			{10, "succeeded", Arrived, false, 40}, {11, "succeeded", Arrived, false, 40},
			{39, "time", Arrived, false, 40}, {40, "time", None, true, 0}, {41, "succeeded", None, false, 0}},
		"nothing is heard": {{0, "destination", Arriving, true, 0}, {10, "succeeded", Arrived, true, 40},
			{11, "none", Arrived, false, 40}, {40, "time", None, true, 0}},
		"its migration is deleted": {{0, "destination", Arriving, true, 0}, {10, "none", Arriving, false, 40},
			{11, "none", Arriving, false, 40}, {40, "time", None, true, 0}},
		"its migration is deleted when it runs here": {{0, "destination", Arriving, true, 0},
			{5, "heard", Arrived, true, 0}, {10, "none", Arrived, false, 40}, {40, "time", None, true, 0}},
		"it is cancelled": {{0, "destination", Arriving, true, 0}, {10, "none", Arriving, false, 40},
			{12, "gone", None, true, 0}},
		"it leaves": {{0, "source", Leaving, true, 0}, {1, "heard", Leaving, false, 0}, {5, "gone", None, true, 0}},
		"it stays":  {{0, "source", Leaving, true, 0}, {5, "none", None, true, 0}},
		"it moves on": {{0, "destination", Arriving, true, 0}, {5, "succeeded", Arrived, true, 35},
			{6, "source", Leaving, true, 0}},
		"the move fails": {{0, "destination", Arriving, true, 0}, {5, "failed", Arriving, false, 0},
			{6, "heard", Arriving, false, 0}, {7, "none", Arriving, false, 0}, {8, "gone", None, true, 0}},
		"the move fails after all": {{0, "destination", Arriving, true, 0}, {5, "heard", Arrived, true, 0},
			{6, "failed", Arriving, true, 0}},
		"its pod is lost": {{0, "destination", Arriving, true, 0}, {5, "gone", None, true, 0},
			{6, "heard", None, false, 0}},
		"it runs at the start of the process": {{0, "running", Arrived, true, 0}, {5, "none", Arrived, false, 35},
			{35, "time", None, true, 0}},
		"another move here before the first one has settled": {{0, "destination", Arriving, true, 0},
			{5, "succeeded", Arrived, true, 35}, {6, "destination", Arrived, false, 0},
			{50, "succeeded", Arrived, false, 80}},
	} {
		tracker, start, k := Tracker{Settle: settle}, time.Unix(1000, 0), key("db")
		for _, s := range steps {
			now, changed := start.Add(time.Duration(s.at)*time.Second), false
			set := func(runs bool, roles map[model.Key]Role) bool {
				return tracker.Set(now, roles, func(model.Key) bool { return runs })
			}
			switch s.event {
			case "destination":
				changed = set(false, map[model.Key]Role{k: destination})
			case "running":
				changed = set(true, map[model.Key]Role{k: destination})
			case "source":
				changed = set(false, map[model.Key]Role{k: source})
			case "succeeded":
				changed = set(false, map[model.Key]Role{k: succeeded})
			case "failed":
				changed = set(false, map[model.Key]Role{k: failed})
			case "none":
				changed = set(false, nil)
			case "heard":
				changed = tracker.Heard(k)
			case "time":
				changed = tracker.Expire(now)
			case "gone":
				changed = tracker.Remove(func(model.Key) bool { return false })
			}
			next := 0
			if at := tracker.Next(); !at.IsZero() {
				next = int(at.Sub(start) / time.Second)
			}
			if got := tracker.Phase(k); got != s.phase || changed != s.changed || next != s.next {
				t.Errorf("%s, second %d, %s: phase %s, changed %v, next %d; want %+v", name, s.at, s.event, got,
					changed, next, s)
			}
		}
	}
}
