// Package twonodes sets up tests of manxd on a real Kubernetes API server: two nodes in network namespaces, each with
// its own proxy to the server.
package twonodes

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/manxnet/manx/integration/kubernetes/apiserver"
	"github.com/manxnet/manx/integration/lab"
)

// Patience bounds waits; no test asserts a duration.
const Patience = 2 * time.Minute

// Must ends the test after an error.
func Must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Until waits until ok returns no error.
func Until(t *testing.T, what string, ok func() error) {
	t.Helper()
	if err := lab.Eventually(Patience, ok); err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

// Require skips the test where one of these programs is missing, and returns the folder of Manx's own.
func Require(t *testing.T, programs ...string) (bin string) {
	t.Helper()
	bin, missing := lab.Require(programs...)
	if missing != nil {
		t.Skip(missing)
	}
	return bin
}

// New makes nodes n1 and n2, without programs yet. prefix distinguishes the labs of test packages. After a failure the
// ends of the daemons' logs are in that of the test.
func New(t *testing.T, prefix, bin string) *lab.Lab {
	t.Helper()
	l, err := lab.New(lab.Spec{Name: fmt.Sprintf("%s%d", prefix, os.Getpid()%1e6), Bin: bin, PlainRouters: true,
		Nodes: []lab.NodeSpec{{Name: "n1"}, {Name: "n2"}}})
	Must(t, err)
	t.Cleanup(func() {
		for _, n := range l.Nodes {
			if t.Failed() {
				t.Logf("end of the log of %s:\n%s", n.Name, Tail(n.Log(), 60))
			}
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	return l
}

// Tail is the end of a text.
func Tail(text string, lines int) string {
	all := strings.Split(strings.TrimSpace(text), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

// Line is a node's proxy to a server, which can be cut.
func Line(t *testing.T, n *lab.Node, url string) *apiserver.Line {
	t.Helper()
	listener, err := n.Listen("tcp", "127.0.0.1:0")
	Must(t, err)
	return apiserver.NewLineFrom(t, listener, url)
}

// Documents returns the objects of a YAML text, as JSON.
func Documents(t *testing.T, text string) (documents [][]byte) {
	t.Helper()
	for doc := range strings.SplitSeq(text, "\n---\n") {
		raw, err := yaml.YAMLToJSON([]byte(doc))
		Must(t, err)
		if string(raw) != "null" {
			documents = append(documents, raw)
		}
	}
	return documents
}

// plurals of the kinds that Create supports.
var plurals = map[string]string{"ClusterRole": "clusterroles", "ClusterRoleBinding": "clusterrolebindings",
	"Role": "roles", "RoleBinding": "rolebindings", "ServiceAccount": "serviceaccounts", "Node": "nodes",
	"Namespace": "namespaces", "Pod": "pods", "Service": "services", "ConfigMap": "configmaps", "Secret": "secrets",
	"NetworkPolicy": "networkpolicies", "EndpointSlice": "endpointslices",
	"ValidatingAdmissionPolicy":        "validatingadmissionpolicies",
	"ValidatingAdmissionPolicyBinding": "validatingadmissionpolicybindings"}

// Kind returns the kind of an object in JSON.
func Kind(t *testing.T, raw []byte) string {
	t.Helper()
	var o struct{ Kind string }
	Must(t, json.Unmarshal(raw, &o))
	return o.Kind
}

// Create stores an object of Kubernetes, in JSON, as the administrator.
func Create(t *testing.T, s *apiserver.Server, raw []byte) {
	t.Helper()
	var o struct {
		APIVersion, Kind string
		Metadata         struct{ Namespace string }
	}
	Must(t, json.Unmarshal(raw, &o))
	root := "/apis/" + o.APIVersion
	if !strings.Contains(o.APIVersion, "/") {
		root = "/api/" + o.APIVersion
	}
	if o.Metadata.Namespace != "" {
		root += "/namespaces/" + o.Metadata.Namespace
	}
	plural := plurals[o.Kind]
	if plural == "" {
		t.Fatalf("it is not known where objects of kind %s are", o.Kind)
	}
	s.Request(t, http.MethodPost, root+"/"+plural, raw)
}
