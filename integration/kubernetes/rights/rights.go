// Package rights compares the rights that RBAC gives to service accounts with the calls in an API server's audit log.
package rights

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	rbac "k8s.io/api/rbac/v1"
)

// Policy returns an audit policy that logs only the calls of these service accounts (NAMESPACE:NAME), each once, a
// watch at its start.
func Policy(accounts ...string) string {
	var users []string
	for _, a := range accounts {
		users = append(users, accountPrefix+a)
	}
	list, _ := json.Marshal(users)
	return "apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived]\nrules:\n- level: Metadata\n" +
		"  users: " + string(list) + "\n- level: None\n"
}

const accountPrefix = "system:serviceaccount:"

// Call is a request to the Kubernetes API. Requests with equal fields are one Call.
type Call struct {
	Account                          string // NAMESPACE:NAME of the service account
	Verb, Group, Resource, Namespace string // Resource has its subresource behind a slash
	Name                             string
	Path                             string // of a request for a path that is no resource; Resource is empty then
	Denied                           bool
}

// String is a line for people.
func (c Call) String() string {
	if c.Resource == "" {
		return fmt.Sprintf("%s: %s %s", c.Account, c.Verb, c.Path)
	}
	return Grant{c.Account, c.Verb, c.Group, c.Resource, c.Name, c.Namespace}.String()
}

// event has the used fields of an audit.k8s.io/v1 Event.
type event struct {
	Verb, RequestURI string
	User             struct{ Username string }
	ObjectRef        struct{ Resource, Subresource, Namespace, Name, APIGroup string }
	Annotations      map[string]string
	ResponseStatus   struct{ Code int }
	Received         time.Time `json:"requestReceivedTimestamp"`
}

// Calls reads the audit log of service accounts. Each call is returned once. A kube-apiserver that starts denies every
// call until it has read the roles. Calls leaves out a denied call at a time for which starting returns true; a nil
// starting leaves out none.
func Calls(log io.Reader, starting func(time.Time) bool) ([]Call, error) {
	seen := map[Call]bool{}
	var calls []Call
	lines := bufio.NewScanner(log)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var e event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			return nil, fmt.Errorf("audit log: %w: %s", err, lines.Text())
		}
		account, ok := strings.CutPrefix(e.User.Username, accountPrefix)
		if !ok {
			continue
		}
		o := e.ObjectRef
		c := Call{Account: account, Verb: e.Verb, Group: o.APIGroup, Resource: o.Resource, Namespace: o.Namespace,
			Name: o.Name, Denied: e.Annotations["authorization.k8s.io/decision"] == "forbid" ||
				e.ResponseStatus.Code == http.StatusForbidden} // by an admission policy
		if o.Subresource != "" {
			c.Resource += "/" + o.Subresource
		}
		if c.Resource == "" {
			c.Path, _, _ = strings.Cut(e.RequestURI, "?")
		}
		if !seen[c] && !(c.Denied && starting != nil && starting(e.Received)) {
			seen[c] = true
			calls = append(calls, c)
		}
	}
	return calls, lines.Err()
}

// Denied returns the calls that the API server refused because of a missing right or by an admission policy.
func Denied(calls []Call) []Call {
	return slices.DeleteFunc(slices.Clone(calls), func(c Call) bool { return !c.Denied })
}

// Grant is one verb on one resource that a service account has, in all namespaces or in one, for all names or for one.
type Grant struct{ Account, Verb, Group, Resource, Name, Namespace string }

// String is a line for people.
func (g Grant) String() string {
	s := g.Account + ": " + g.Verb + " " + g.Resource
	if g.Group != "" {
		s += " of " + g.Group
	}
	if g.Name != "" {
		s += ", name " + g.Name
	}
	if g.Namespace != "" {
		s += ", in " + g.Namespace
	}
	return s
}

// Objects is the output of `kubectl get clusterroles,clusterrolebindings,roles,rolebindings -A -o json`.
type Objects struct {
	Items []struct {
		Kind     string
		Metadata struct{ Name, Namespace string }
		Rules    []rbac.PolicyRule
		RoleRef  rbac.RoleRef
		Subjects []rbac.Subject
	}
}

// Grants returns the rights of the service accounts that the bindings name, without those of groups. A right that two
// roles give is one Grant. A binding of a role that is not among the objects gives none.
func Grants(objects Objects) []Grant {
	type roleKey struct{ kind, namespace, name string }
	rules := map[roleKey][]rbac.PolicyRule{}
	for _, o := range objects.Items {
		rules[roleKey{o.Kind, o.Metadata.Namespace, o.Metadata.Name}] = o.Rules
	}
	var grants []Grant
	for _, o := range objects.Items {
		key := roleKey{kind: o.RoleRef.Kind, name: o.RoleRef.Name}
		if key.kind == "Role" {
			key.namespace = o.Metadata.Namespace
		}
		for _, s := range o.Subjects {
			if s.Kind != rbac.ServiceAccountKind {
				continue
			}
			for _, r := range rules[key] {
				grants = append(grants, expand(s.Namespace+":"+s.Name, o.Metadata.Namespace, r)...)
			}
		}
	}
	slices.SortFunc(grants, func(a, b Grant) int { return cmp.Compare(a.String(), b.String()) })
	return slices.Compact(grants)
}

func expand(account, namespace string, r rbac.PolicyRule) (grants []Grant) {
	names := r.ResourceNames
	if len(names) == 0 {
		names = []string{""}
	}
	for _, group := range r.APIGroups {
		for _, resource := range r.Resources {
			for _, verb := range r.Verbs {
				for _, name := range names {
					grants = append(grants, Grant{account, verb, group, resource, name, namespace})
				}
			}
		}
	}
	return grants
}

// Allows reports whether the call was allowed, and this right suffices for it. Wildcards are compared as RBAC does.
func (g Grant) Allows(c Call) bool {
	is := func(granted, called string) bool { return granted == called || granted == "*" }
	return c.Resource != "" && !c.Denied && g.Account == c.Account && is(g.Verb, c.Verb) && is(g.Group, c.Group) &&
		is(g.Resource, c.Resource) && (g.Name == "" || g.Name == c.Name) &&
		(g.Namespace == "" || g.Namespace == c.Namespace)
}

// Unused returns the grants that no call needed.
func Unused(grants []Grant, calls []Call) []Grant {
	return slices.DeleteFunc(slices.Clone(grants), func(g Grant) bool { return slices.ContainsFunc(calls, g.Allows) })
}
