package datastore

import (
	"fmt"
	"strings"
	"testing"

	"github.com/manxnet/manx/datastore/codec"
	"github.com/manxnet/manx/datastore/model"
)

// policyEvent returns the update of a policy that is stored under name, and whose name is annotated if that is not
// empty.
func policyEvent(name, annotated string, revision int64) Event {
	key := model.Key{Kind: model.KindNetworkPolicy, Namespace: "ns", Name: name}
	raw := `{"metadata":{},"spec":{}}`
	if annotated != "" {
		raw = fmt.Sprintf(`{"metadata":{"annotations":{"projectcalico.org/metadata":"{\"name\":\"%s\"}"}},"spec":{}}`,
			annotated)
	}
	return Event{Type: EventUpdate, Key: key, Object: codec.Decode(key, []byte(raw), revision), Revision: revision}
}

func removePolicy(name string, revision int64) Event {
	return Event{Type: EventDelete, Key: model.Key{Kind: model.KindNetworkPolicy, Namespace: "ns", Name: name},
		Revision: revision}
}

// policies lists the policies that readers see, and those in quarantine: "web=3 | default.web=2".
func policies(s *Snapshot) string {
	var used, not []string
	for o := range s.All(model.KindNetworkPolicy) {
		used = append(used, fmt.Sprintf("%s=%d", o.Key.Name, o.Revision))
	}
	for q := range s.Quarantined() {
		not = append(not, fmt.Sprintf("%s=%d", q.Object.Key.Name, q.Object.Revision))
	}
	return strings.Join(used, " ") + " | " + strings.Join(not, " ")
}

func TestOfAPolicyUnderBothSpellingsTodaysCounts(t *testing.T) {
	invalidWeb := policyEvent("web", "", 12)
	invalidWeb.Object.Err = fmt.Errorf("broken")
	for _, c := range []struct {
		rule   string
		before []Event // of the first full read
		then   []Event
		want   string
	}{
		{"the old one alone is used", []Event{policyEvent("default.web", "", 2)}, nil, "default.web=2 | "},
		{"old before new", []Event{policyEvent("default.web", "", 2), policyEvent("web", "web", 3)}, nil,
			"web=3 | default.web=2"},
		{"new before old", []Event{policyEvent("web", "web", 2), policyEvent("default.web", "", 3)}, nil,
			"web=2 | default.web=3"},
		{"a migrator makes the new one and deletes the old", []Event{policyEvent("default.web", "", 2)},
			[]Event{policyEvent("web", "web", 11), removePolicy("default.web", 12)}, "web=11 | "},
		{"the new one goes again", []Event{policyEvent("default.web", "", 2), policyEvent("web", "web", 3)},
			[]Event{removePolicy("web", 11)}, "default.web=2 | "},
		{"the old one changes meanwhile", []Event{policyEvent("default.web", "", 2), policyEvent("web", "web", 3)},
			[]Event{policyEvent("default.web", "", 11), removePolicy("web", 12)}, "default.web=11 | "},
		{"the new one becomes invalid: its last valid version counts",
			[]Event{policyEvent("default.web", "", 2), policyEvent("web", "web", 3)},
			[]Event{invalidWeb}, "web=3 | default.web=2 web=12"},
		{"a new one that was never valid does not count", []Event{policyEvent("default.web", "", 2)},
			[]Event{invalidWeb}, "default.web=2 | web=12"},
		{"a policy whose name only looks old", []Event{policyEvent("default.web", "default.web", 2),
			policyEvent("web", "web", 3)}, nil, "default.web=2 web=3 | "},
		{"a full read finds both again", []Event{policyEvent("default.web", "", 2), policyEvent("web", "web", 3)},
			[]Event{lostEvent("x"), policyEvent("default.web", "", 2), policyEvent("web", "web", 3), inSync(20)},
			"web=3 | default.web=2"},
		{"a full read finds only the old one", []Event{policyEvent("default.web", "", 2), policyEvent("web", "web", 3)},
			[]Event{lostEvent("x"), policyEvent("default.web", "", 2), removePolicy("web", 20), inSync(20)},
			"default.web=2 | "},
	} {
		t.Run(c.rule, func(t *testing.T) {
			tables := synced(c.before...)
			since := tables.Snapshot()
			for _, e := range c.then {
				tables.Apply(e)
			}
			s := tables.Snapshot()
			if got := policies(s); got != c.want {
				t.Errorf("%q, want %q", got, c.want)
			}
			// A follower of the changes has in the end the state of a reader.
			seen := map[model.Key]*model.Object{}
			for o := range since.All(model.KindNetworkPolicy) {
				seen[o.Key] = o
			}
			for change := range s.Changes(since) {
				seen[change.Key] = change.New
				if change.New == nil {
					delete(seen, change.Key)
				}
			}
			for o := range s.All(model.KindNetworkPolicy) {
				if seen[o.Key] != o {
					t.Errorf("the changes do not lead to %s", o.Key)
				}
				delete(seen, o.Key)
			}
			if len(seen) > 0 {
				t.Errorf("the changes leave %v", seen)
			}
			for q := range s.Quarantined() {
				if strings.HasPrefix(q.Object.Key.Name, "default.") &&
					!strings.Contains(q.Object.Err.Error(), "old spelling") {
					t.Errorf("the reason is %v", q.Object.Err)
				}
			}
		})
	}
}
