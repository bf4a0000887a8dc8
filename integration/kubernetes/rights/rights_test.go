package rights

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"
)

const log = `
{"verb":"watch","requestURI":"/api/v1/pods?watch=true","user":{"username":"system:serviceaccount:kube-system:a"},
 "objectRef":{"resource":"pods","apiVersion":"v1"},"annotations":{"authorization.k8s.io/decision":"allow"}}
{"verb":"watch","requestURI":"/api/v1/pods?watch=true&resourceVersion=7",
 "user":{"username":"system:serviceaccount:kube-system:a"},
 "objectRef":{"resource":"pods","apiVersion":"v1"},"annotations":{"authorization.k8s.io/decision":"allow"}}
{"verb":"create","requestURI":"/x","user":{"username":"system:serviceaccount:kube-system:a"},
 "objectRef":{"resource":"serviceaccounts","subresource":"token","namespace":"kube-system","name":"plugin"},
 "annotations":{"authorization.k8s.io/decision":"allow"}}
{"verb":"get","requestURI":"/x","user":{"username":"system:serviceaccount:kube-system:a"},
 "objectRef":{"resource":"deployments","apiGroup":"apps","namespace":"other","name":"d"},
 "annotations":{"authorization.k8s.io/decision":"forbid"}}
{"verb":"get","requestURI":"/apis?timeout=1s","user":{"username":"system:serviceaccount:kube-system:a"},
 "annotations":{"authorization.k8s.io/decision":"allow"}}
{"verb":"list","requestURI":"/x","user":{"username":"system:admin"},"objectRef":{"resource":"nodes"}}
`

const objects = `{"items":[
{"kind":"ClusterRole","metadata":{"name":"r"},"rules":[
  {"apiGroups":[""],"resources":["pods","nodes"],"verbs":["watch"]},
  {"apiGroups":["apps"],"resources":["deployments"],"verbs":["get"]}]},
{"kind":"ClusterRole","metadata":{"name":"again"},"rules":[
  {"apiGroups":[""],"resources":["pods"],"verbs":["watch"]},
  {"nonResourceURLs":["/apis"],"verbs":["get"]}]},
{"kind":"Role","metadata":{"name":"r","namespace":"kube-system"},"rules":[
  {"apiGroups":[""],"resources":["serviceaccounts/token"],"resourceNames":["plugin","third"],"verbs":["create"]}]},
{"kind":"ClusterRoleBinding","metadata":{"name":"r"},"roleRef":{"kind":"ClusterRole","name":"r"},
  "subjects":[{"kind":"ServiceAccount","namespace":"kube-system","name":"a"}]},
{"kind":"ClusterRoleBinding","metadata":{"name":"again"},"roleRef":{"kind":"ClusterRole","name":"again"},
  "subjects":[{"kind":"ServiceAccount","namespace":"kube-system","name":"a"},{"kind":"Group","name":"g"}]},
{"kind":"RoleBinding","metadata":{"name":"r","namespace":"kube-system"},"roleRef":{"kind":"Role","name":"r"},
  "subjects":[{"kind":"ServiceAccount","namespace":"kube-system","name":"a"}]},
{"kind":"RoleBinding","metadata":{"name":"elsewhere","namespace":"other"},"roleRef":{"kind":"ClusterRole","name":"r"},
  "subjects":[{"kind":"ServiceAccount","namespace":"kube-system","name":"b"}]}
]}`

func read(t *testing.T) ([]Call, []Grant) {
	t.Helper()
	lines := strings.ReplaceAll(strings.ReplaceAll(log, ",\n ", ","), "\n\n", "\n")[1:]
	calls, err := Calls(strings.NewReader(lines), nil)
	if err != nil {
		t.Fatal(err)
	}
	var o Objects
	if err := json.Unmarshal([]byte(objects), &o); err != nil {
		t.Fatal(err)
	}
	return calls, Grants(o)
}

func lines[T interface{ String() string }](all []T) (text []string) {
	for _, x := range all {
		text = append(text, x.String())
	}
	return text
}

func checkSame(t *testing.T, what string, have []string, want ...string) {
	t.Helper()
	if !slices.Equal(have, want) {
		t.Errorf("%s: have\n%s\nwant\n%s", what, strings.Join(have, "\n"), strings.Join(want, "\n"))
	}
}

func TestCallsAndGrants(t *testing.T) {
	calls, grants := read(t)
	checkSame(t, "calls", lines(calls), "kube-system:a: watch pods",
		"kube-system:a: create serviceaccounts/token, name plugin, in kube-system",
		"kube-system:a: get deployments of apps, name d, in other", "kube-system:a: get /apis")
	checkSame(t, "grants", lines(grants), "kube-system:a: create serviceaccounts/token, name plugin, in kube-system",
		"kube-system:a: create serviceaccounts/token, name third, in kube-system",
		"kube-system:a: get deployments of apps", "kube-system:a: watch nodes", "kube-system:a: watch pods",
		"kube-system:b: get deployments of apps, in other", "kube-system:b: watch nodes, in other",
		"kube-system:b: watch pods, in other")
	checkSame(t, "denied", lines(Denied(calls)), "kube-system:a: get deployments of apps, name d, in other")
}

// A kube-apiserver that has just started denies every call for a moment.
func TestCallsWhileStarting(t *testing.T) {
	from := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	denied := func(verb string, at time.Time) string {
		return `{"verb":"` + verb +
			`","user":{"username":"system:serviceaccount:n:a"},"objectRef":{"resource":"pods"},` +
			`"requestReceivedTimestamp":"` + at.Format(time.RFC3339Nano) + `",` +
			`"annotations":{"authorization.k8s.io/decision":"forbid"}}` + "\n"
	}
	calls, err := Calls(strings.NewReader(denied("watch", from)+denied("list", from.Add(time.Second))),
		func(at time.Time) bool { return at.Equal(from) })
	if err != nil {
		t.Fatal(err)
	}
	checkSame(t, "denied", lines(Denied(calls)), "n:a: list pods")
}

// A denied call uses no right: the role got it later.
func TestUnused(t *testing.T) {
	calls, grants := read(t)
	unused := Unused(grants, calls)
	checkSame(t, "unused", lines(unused), "kube-system:a: create serviceaccounts/token, name third, in kube-system",
		"kube-system:a: get deployments of apps", "kube-system:a: watch nodes",
		"kube-system:b: get deployments of apps, in other", "kube-system:b: watch nodes, in other",
		"kube-system:b: watch pods, in other")
}

// The grants that match a call by RBAC's rules, and others that do not.
func TestAllows(t *testing.T) {
	call := Call{Account: "a", Verb: "get", Resource: "pods", Namespace: "n", Name: "x"}
	for _, c := range []struct {
		grant Grant
		want  bool
	}{
		{Grant{"a", "get", "", "pods", "", ""}, true},
		{Grant{"a", "*", "*", "*", "", ""}, true},
		{Grant{"a", "get", "", "pods", "x", "n"}, true},
		{Grant{"b", "get", "", "pods", "", ""}, false},
		{Grant{"a", "list", "", "pods", "", ""}, false},
		{Grant{"a", "get", "apps", "pods", "", ""}, false},
		{Grant{"a", "get", "", "pods/status", "", ""}, false},
		{Grant{"a", "get", "", "pods", "y", ""}, false},
		{Grant{"a", "get", "", "pods", "", "m"}, false},
	} {
		if have := c.grant.Allows(call); have != c.want {
			t.Errorf("%v allows %v: %t, want %t", c.grant, call, have, c.want)
		}
	}
}

func TestDamagedLog(t *testing.T) {
	if _, err := Calls(strings.NewReader(`{"verb":"get"`+"\n"), nil); err == nil {
		t.Error("half a line is no event, and was read")
	}
}

func TestTable(t *testing.T) {
	_, grants := read(t)
	rows := []Row{
		{By: "x", Account: "kube-system:a", Verbs: "get watch", Resources: "pods deployments.apps=d@n " +
			"ipamconfigs.calico"},
		{Reason: "seldom", Account: "kube-system:a", Verbs: "create",
			Resources: "serviceaccounts/token=plugin@kube-system"}}
	table, err := NewTable(rows, "projectcalico.org")
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range []Grant{{"kube-system:a", "watch", "apps", "deployments", "d", "n"},
		{"kube-system:a", "get", "projectcalico.org", "ipamconfigurations", "", ""}} {
		if table[g].By != "x" {
			t.Errorf("%v is not in the table: %v", g, table)
		}
	}
	checkSame(t, "of x", lines(table.Of("x", grants)), "kube-system:a: watch pods")
	checkSame(t, "without a row", lines(table.Unknown(grants))[:2],
		"kube-system:a: create serviceaccounts/token, name third, in kube-system",
		"kube-system:a: get deployments of apps")
	if _, err := NewTable(append(rows, rows[0]), ""); err == nil {
		t.Error("a right may have two rows")
	}
	if _, err := NewTable([]Row{{Account: "a", Verbs: "get", Resources: "pods"}}, ""); err == nil {
		t.Error("a row may have neither a step nor a reason")
	}
}
