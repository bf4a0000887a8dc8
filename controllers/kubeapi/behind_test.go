package kubeapi

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/manxnet/manx/integration/kubernetes/apiserver"
)

// The nodes of Manx report their group in an annotation, and calico-node and Typha have it in their environment.
func TestBehind(t *testing.T) {
	t.Parallel()
	s := apiserver.Start(t)
	api, err := New(s.Config(apiserver.Admin))
	if err != nil {
		t.Fatal(err)
	}
	want := func(text string) {
		t.Helper()
		if got, err := api.Behind(t.Context()); err != nil || got != text {
			t.Errorf("behind are %q, %v; want %q", got, err, text)
		}
	}
	const nodes, apps = "/api/v1/nodes", "/apis/apps/v1/namespaces/kube-system/"
	for name, annotations := range map[string]string{
		"bare": `{}`, "host": `{"projectcalico.org/IPv6Address":"fd00::1/64"}`, "pods": `{}`, "calico": `
		{"projectcalico.org/IPv4Address":"10.0.0.3/24"}`} {
		s.Request(t, http.MethodPost, nodes, fmt.Appendf(nil, `{"metadata":{"name":%q,"annotations":%s}}`, name, annotations))
	}
	pod := func(namespace, name, app, node string, network bool) {
		path := "/api/v1/namespaces/" + namespace + "/pods"
		s.Request(t, http.MethodPost, path, fmt.Appendf(nil, `{"metadata":{"name":%q,"labels":{"k8s-app":%q},
			"ownerReferences":[{"apiVersion":"apps/v1","kind":"DaemonSet","name":"d","uid":"1","controller":true}]},
			"spec":{"nodeName":%q,"hostNetwork":%v,"automountServiceAccountToken":false,
			"containers":[{"name":"c","image":"i"}]}}`, name, app, node, network))
		s.Request(t, http.MethodPatch, path+"/"+name+"/status", []byte(`{"status":{"phase":"Running"}}`))
	}
	pod("kube-system", "a", "manx-node", "pods", true)
	pod("kube-system", "b", "calico-node", "calico", true)
	pod("default", "c", "calico-node", "host", true) // a tenant cannot make the migration skip a node
	pod("default", "d", "manx-node", "bare", false)  // or wait for one
	want("2 of 2 nodes to report it: host, pods")
	report := func(node, group string) {
		s.Request(t, http.MethodPatch, nodes+"/"+node, fmt.Appendf(nil,
			`{"metadata":{"annotations":{"projectcalico.org/manx-api-group":%q}}}`, group))
	}
	report("host", "projectcalico.org/v3")
	report("pods", "crd.projectcalico.org/v1")
	want("1 of 2 nodes to report it: pods")
	report("pods", "projectcalico.org/v3")
	want("")

	workload := func(kind, name, env string) string {
		return fmt.Sprintf(`{"apiVersion":"apps/v1","kind":%q,"metadata":{"name":%q},"spec":{"selector":{"matchLabels":
			{"a":"b"}},"template":{"metadata":{"labels":{"a":"b"}},"spec":{"containers":[{"name":"c","image":"i",
			"env":[%s]}]}}}}`, kind, name, env)
	}
	const set = `{"name":"CALICO_API_GROUP","value":"projectcalico.org/v3"}`
	s.Request(t, http.MethodPost, apps+"daemonsets", []byte(workload("DaemonSet", "calico-node", "")))
	const unset = "CALICO_API_GROUP=projectcalico.org/v3 in the environment of "
	want(unset + "daemonset kube-system/calico-node")
	s.Request(t, http.MethodPatch, apps+"daemonsets/calico-node", []byte(`{"spec":{"template":{"spec":{"containers":[
		{"name":"c","image":"i","env":[`+set+`]}]}}}}`))
	want("the pods of daemonset kube-system/calico-node to be updated and available")
	status := func(text string) {
		s.Request(t, http.MethodPatch, apps+"daemonsets/calico-node/status", []byte(`{"status":`+text+`}`))
	}
	status(`{"observedGeneration":2,"desiredNumberScheduled":1,"currentNumberScheduled":1,"numberMisscheduled":0,
		"numberReady":0,"updatedNumberScheduled":1,"numberUnavailable":1}`)
	want("the pods of daemonset kube-system/calico-node to be updated and available")
	status(`{"numberReady":1,"numberUnavailable":0,"numberAvailable":1}`)
	want("")
	s.Request(t, http.MethodPost, apps+"deployments", []byte(strings.Replace(workload("Deployment", "calico-typha", ""),
		`"spec":{`, `"spec":{"replicas":1,`, 1)))
	want(unset + "deployment kube-system/calico-typha")
	s.Request(t, http.MethodPatch, apps+"deployments/calico-typha", []byte(`{"spec":{"replicas":0}}`))
	want("")
}
