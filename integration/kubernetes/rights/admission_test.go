package rights_test

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"

	"github.com/manxnet/manx/integration/kubernetes/apiserver"
	"github.com/manxnet/manx/integration/kubernetes/twonodes"
)

const (
	merge     = "application/merge-patch+json"
	strategic = "application/strategic-merge-patch+json"
	asJSON    = "application/json"

	pods         = "/api/v1/namespaces/default/pods"
	nodes        = "/api/v1/nodes"
	calico       = "/apis/crd.projectcalico.org/v1/"
	tokenRequest = "/api/v1/namespaces/kube-system/serviceaccounts/manx-cni-plugin/token"
)

// edit is the verb of an attempt that reads an object as the administrator, merges body into it, and stores it.
const edit = "edit"

// attempt is a request with a token.
type attempt struct {
	what            string
	verb, path, typ string
	body            string
	says            string // part of the refusal; empty: the request is allowed
}

// do sends a request that changes nothing (dry run).
func do(ctx context.Context, t *testing.T, s *apiserver.Server, token string, a attempt) error {
	t.Helper()
	c := s.Config("")
	c.BearerToken = token
	c.GroupVersion = &schema.GroupVersion{Version: "v1"}
	c.NegotiatedSerializer = scheme.Codecs.WithoutConversion()
	client, err := rest.RESTClientFor(c)
	must(t, err)
	if a.verb == edit {
		var object, change map[string]any
		must(t, json.Unmarshal(s.Request(t, http.MethodGet, a.path, nil), &object))
		must(t, json.Unmarshal([]byte(a.body), &change))
		mergeInto(object, change)
		raw, err := json.Marshal(object)
		must(t, err)
		a.verb, a.typ, a.body = http.MethodPut, asJSON, string(raw)
	}
	r := client.Verb(a.verb).AbsPath(a.path).Param("dryRun", "All")
	if a.body != "" {
		r.Body([]byte(a.body)).SetHeader("Content-Type", a.typ)
	}
	return r.Do(ctx).Error()
}

// doRefused is do for a request that a policy is to refuse. The API server brings policies into force one by one, up to
// some seconds after their creation; until then the request is sent again.
func doRefused(ctx context.Context, t *testing.T, s *apiserver.Server, token string, a attempt) (err error) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); err == nil && time.Now().Before(end); {
		if err = do(ctx, t, s, token, a); err == nil {
			time.Sleep(100 * time.Millisecond)
		}
	}
	return err
}

// mergeInto applies a JSON merge patch (RFC 7386) to an object.
func mergeInto(object, change map[string]any) {
	for k, v := range change {
		inner, ok := v.(map[string]any)
		was, also := object[k].(map[string]any)
		switch {
		case ok && also:
			mergeInto(was, inner)
		case v == nil:
			delete(object, k)
		default:
			object[k] = v
		}
	}
}

// awaitPolicies waits until the API server applies the policies that were created: it reads them a moment later.
func awaitPolicies(t *testing.T, s *apiserver.Server) {
	t.Helper()
	without := s.AccountToken(t, namespace, "manx-node", "")
	for _, path := range []string{nodes + "/n1/status", tokenRequest} {
		a := attempt{verb: http.MethodPatch, path: path, typ: merge, body: `{"metadata":{"annotations":{}}}`}
		if path == tokenRequest {
			a.verb, a.typ, a.body = http.MethodPost, asJSON, token(600, "")
		}
		until(t, "the admission policies", func() error {
			if err := do(t.Context(), t, s, without, a); err == nil || !strings.Contains(err.Error(), "names no node") {
				return fmt.Errorf("a token without a node at %s: %w", path, err)
			}
			return nil
		})
	}
}

// token is a request for a token that ends after some seconds, bound to a Node unless node is empty.
func token(seconds int, node string) string {
	bound := ""
	if node != "" {
		bound = fmt.Sprintf(`,"boundObjectRef":{"kind":"Node","apiVersion":"v1","name":%q}`, node)
	}
	return fmt.Sprintf(`{"apiVersion":"authentication.k8s.io/v1","kind":"TokenRequest",
		"spec":{"expirationSeconds":%d%s}}`, seconds, bound)
}

// block is the JSON of a block with one address, assigned to a pod of a node; owner may be empty.
func block(cidr, owner, node, more string) string {
	name := strings.NewReplacer(".", "-", "/", "-").Replace(cidr)
	return fmt.Sprintf(`{"apiVersion":"crd.projectcalico.org/v1","kind":"IPAMBlock","metadata":{"name":%q},
		"spec":{"cidr":%q,"affinity":%q,"allocations":[0,null,null,null],"unallocated":[1,2,3],
		"attributes":[{"handle_id":"h","secondary":{"node":%q}}]%s}}`, name, cidr, owner, node, more)
}

// affinity is the JSON of an affinity.
func affinity(node, cidr, more string) string {
	return fmt.Sprintf(`{"apiVersion":"crd.projectcalico.org/v1","kind":"BlockAffinity","metadata":{"name":"%s-%s"},
		"spec":{"node":%q,"cidr":%q,"type":"host","state":"confirmed"%s}}`, node,
		strings.NewReplacer(".", "-", "/", "-").Replace(cidr), node, cidr, more)
}

// owned gives an object an owner that does not exist: the garbage collector deletes the object.
const owned = `{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"Node","name":"gone","uid":"x"}]}}`

// The attempts of whoever has the token of n1's manxd. Without the policies the roles allow all of them.
var ofAnotherNode = []attempt{
	{"another node's pod", http.MethodPatch, pods + "/db/status", merge,
		`{"metadata":{"annotations":{"cni.projectcalico.org/podIPs":"10.0.0.9/32"}}}`, "pod default/db is not on that node"},
	{"a pod's label", http.MethodPatch, pods + "/web/status", merge, `{"metadata":{"labels":{"app":"frontend"}}}`,
		"only its annotations"},
	{"a pod's finalizer", http.MethodPatch, pods + "/web/status", merge, `{"metadata":{"finalizers":["a.b/c"]}}`,
		"only its annotations"},
	{"a pod's address", http.MethodPatch, pods + "/web/status", merge,
		`{"status":{"podIP":"10.9.9.9","podIPs":[{"ip":"10.9.9.9"}]}}`, "only its annotations"},
	{"another annotation of a pod", http.MethodPatch, pods + "/web/status", merge,
		`{"metadata":{"annotations":{"k8s.v1.cni.cncf.io/network-status":"[]"}}}`, "only the annotations podIP"},
	{"an annotation of a pod removed", http.MethodPatch, pods + "/web/status", merge,
		`{"metadata":{"annotations":{"note":null}}}`, "only the annotations podIP"},
	{"another Node's annotation", http.MethodPatch, nodes + "/n2/status", merge,
		`{"metadata":{"annotations":{"projectcalico.org/IPv4Address":"10.0.0.1/24"}}}`, "changes no other Node: n2"},
	{"a Node's label", http.MethodPatch, nodes + "/n1/status", merge,
		`{"metadata":{"labels":{"node-role.kubernetes.io/control-plane":""}}}`, "only its annotations"},
	{"a Node's address", http.MethodPatch, nodes + "/n1/status", strategic,
		`{"status":{"addresses":[{"type":"InternalIP","address":"10.9.9.9"}]}}`, "only the condition"},
	{"a Node's capacity", http.MethodPatch, nodes + "/n1/status", merge, `{"status":{"capacity":{"cpu":"99"}}}`,
		"only the condition"},
	{"another condition of a Node", http.MethodPatch, nodes + "/n1/status", strategic,
		`{"status":{"conditions":[{"type":"Ready","status":"False"}]}}`, "only the condition"},
	{"all conditions of a Node", http.MethodPatch, nodes + "/n1/status", merge, `{"status":{"conditions":[]}}`,
		"only the condition"},
	{"another annotation of a Node", http.MethodPatch, nodes + "/n1/status", merge,
		`{"metadata":{"annotations":{"node.alpha.kubernetes.io/ttl":"0"}}}`, "only annotations of projectcalico.org"},
	{"a ten-year token", http.MethodPost, tokenRequest, asJSON, token(10*365*86400, "n1"), "14400 at most"},
	{"a token without a node", http.MethodPost, tokenRequest, asJSON, token(3600, ""), "must be Node n1"},
	{"a token of another node", http.MethodPost, tokenRequest, asJSON, token(3600, "n2"), "must be Node n1"},
	{"an affinity for another node", http.MethodPost, calico + "blockaffinities", asJSON,
		affinity("n2", "10.0.9.0/30", ""), "is of host:n2"},
	{"another node's affinity given up", edit, calico + "blockaffinities/n2-10-0-2-0-30", merge,
		`{"spec":{"state":"pendingDeletion"}}`, "is of host:n2"},
	{"another node's affinity deleted", http.MethodDelete, calico + "blockaffinities/n2-10-0-2-0-30", "", "",
		"is of host:n2"},
	{"another node's affinity taken", edit, calico + "blockaffinities/n2-10-0-2-0-30", merge,
		`{"spec":{"node":"n1"}}`, "is of host:n1 and host:n2"},
	{"the CIDR of an affinity", edit, calico + "blockaffinities/n1-10-0-1-0-30", merge,
		`{"spec":{"cidr":"10.0.2.0/30"}}`, "the CIDR stays"},
	{"the affinity of a load balancer", http.MethodPost, calico + "blockaffinities", asJSON,
		strings.Replace(affinity("n1", "10.0.9.0/30", ""), `"host"`, `"virtual"`, 1), "is of virtual:n1"},
	{"a block for another node", http.MethodPost, calico + "ipamblocks", asJSON,
		block("10.0.9.0/30", "host:n2", "n1", ""), "is of host:n2"},
	{"a block for nobody", http.MethodPost, calico + "ipamblocks", asJSON, block("10.0.9.0/30", "", "n1", ""),
		"is of "},
	{"another node's block taken", edit, calico + "ipamblocks/10-0-2-0-30", merge,
		`{"spec":{"affinity":"host:n1"}}`, "is of host:n1 and host:n2"},
	{"another node's block without its owner", edit, calico + "ipamblocks/10-0-2-0-30", merge,
		`{"spec":{"affinity":null}}`, "and host:n2"},
	{"another node's block marked deleted", edit, calico + "ipamblocks/10-0-2-0-30", merge,
		`{"spec":{"deleted":true}}`, "is of host:n2"},
	{"another node's block deleted", http.MethodDelete, calico + "ipamblocks/10-0-2-0-30", "", "", "is of host:n2"},
	{"a block of nobody with another node's pod", edit, calico + "ipamblocks/10-0-3-0-30", merge,
		`{"spec":{"deleted":true}}`, "10-0-3-0-30 is of  and "},
	{"another node's status", edit, calico + "caliconodestatuses/of-n2", merge, `{"status":{"agent":{}}}`,
		"is not about node n1"},
	{"the question of a status", edit, calico + "caliconodestatuses/of-n1", merge,
		`{"spec":{"updatePeriodSeconds":3600}}`, "or its spec changes"},
	{"floating addresses", edit, calico + "felixconfigurations/default", merge, `{"spec":{"floatingIPs":"Enabled"}}`,
		"no other values to floatingIPs"},
	{"no setting of Felix", edit, calico + "felixconfigurations/default", merge, `{"spec":{"logSeverityScreen":null}}`,
		"removes nothing"},
	{"a FelixConfiguration of a node", http.MethodPost, calico + "felixconfigurations", asJSON,
		`{"apiVersion":"crd.projectcalico.org/v1","kind":"FelixConfiguration","metadata":{"name":"node.n2"},
		"spec":{"defaultEndpointToHostAction":"Accept"}}`, "no felixconfigurations of the name node.n2"},
	{"a setting of Felix", edit, calico + "felixconfigurations/default", merge,
		`{"spec":{"defaultEndpointToHostAction":"Accept"}}`,
		"no other values to defaultEndpointToHostAction"},
	{"an end of the datastore", edit, calico + "clusterinformations/default", merge,
		`{"spec":{"datastoreReady":false}}`, "no other values to datastoreReady"},
	{"an owner of another node's block", edit, calico + "ipamblocks/10-0-2-0-30", merge, owned,
		"ownerReferences and finalizers stay"},
	{"an owner of another node's affinity", edit, calico + "blockaffinities/n2-10-0-2-0-30", merge, owned,
		"ownerReferences and finalizers stay"},
	{"an owner of its own affinity", edit, calico + "blockaffinities/n1-10-0-1-0-30", merge, owned,
		"ownerReferences and finalizers stay"},
	{"an owner of Felix' settings", edit, calico + "felixconfigurations/default", merge, owned,
		"ownerReferences and finalizers stay"},
	{"a finalizer of the cluster's", edit, calico + "clusterinformations/default", merge,
		`{"metadata":{"finalizers":["a.b/c"]}}`, "ownerReferences and finalizers stay"},
	{"an owner of a status", edit, calico + "caliconodestatuses/of-n1", merge, owned,
		"ownerReferences and finalizers stay"},
	{"the labels of its Node", http.MethodPatch, nodes + "/n1/status", merge,
		`{"metadata":{"annotations":{"projectcalico.org/labels":"{\"reflector\":\"true\"}"}}}`, "except labels"},
	{"a pool of another family", http.MethodPost, calico + "ippools", asJSON,
		`{"apiVersion":"crd.projectcalico.org/v1","kind":"IPPool","metadata":{"name":"default-ipv6-ippool"},
		"spec":{"cidr":"10.0.5.0/24"}}`, "the family of pool default-ipv6-ippool"},
	{"a pool of another name", http.MethodPost, calico + "ippools", asJSON,
		`{"apiVersion":"crd.projectcalico.org/v1","kind":"IPPool","metadata":{"name":"evil"},
		"spec":{"cidr":"0.0.0.0/1"}}`, "no ippools of the name evil"},
}

// What the roles refuse already: these rights belong to the controllers.
var ofControllers = []attempt{
	{"a policy", http.MethodDelete, calico + "globalnetworkpolicies/default.deny", "", "", "cannot delete"},
	{"the address of a Service", edit, "/api/v1/namespaces/default/services/s/status", merge,
		`{"status":{"loadBalancer":{"ingress":[{"ip":"8.8.8.8"}]}}}`, "cannot update"},
	{"a HostEndpoint", http.MethodPost, calico + "hostendpoints", asJSON, `{"apiVersion":"crd.projectcalico.org/v1",
		"kind":"HostEndpoint","metadata":{"name":"open"},"spec":{"node":"n2"}}`, "cannot create"},
	{"the Lease of the controllers", http.MethodPost, "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases",
		asJSON,
		`{"apiVersion":"coordination.k8s.io/v1","kind":"Lease","metadata":{"name":"manx-controllers"}}`, "cannot create"},
	{"a token of the controllers", http.MethodPost,
		strings.Replace(tokenRequest, "manx-cni-plugin", "manx-controllers", 1), asJSON, token(600, "n1"),
		"cannot create"},
	{"another token of its own", http.MethodPost, strings.Replace(tokenRequest, "manx-cni-plugin", "manx-node", 1),
		asJSON, token(600, "n2"), "cannot create"},
}

// What manxd and the plugin of n1 do.
var ofOwnNode = []attempt{
	{what: "the addresses of a pod", verb: http.MethodPatch, path: pods + "/web/status", typ: merge,
		body: `{"metadata":{"annotations":{"cni.projectcalico.org/podIP":"10.0.1.1/32",
			"cni.projectcalico.org/podIPs":"10.0.1.1/32","cni.projectcalico.org/containerID":"c"}}}`},
	{what: "the Node", verb: http.MethodPatch, path: nodes + "/n1/status", typ: merge,
		body: `{"metadata":{"annotations":{"projectcalico.org/IPv4Address":"10.0.0.1/24"}}}`},
	{what: "its condition", verb: http.MethodPatch, path: nodes + "/n1/status", typ: strategic,
		body: `{"status":{"conditions":[{"type":"NetworkUnavailable","status":"False","reason":"CalicoIsUp"}]}}`},
	{what: "a token", verb: http.MethodPost, path: tokenRequest, typ: asJSON, body: token(4*3600, "n1")},
	{what: "a block", verb: http.MethodPost, path: calico + "ipamblocks", typ: asJSON,
		body: block("10.0.9.0/30", "host:n1", "n1", "")},
	{what: "an affinity", verb: http.MethodPost, path: calico + "blockaffinities", typ: asJSON,
		body: affinity("n1", "10.0.9.0/30", "")},
	{what: "an affinity of an old release", verb: http.MethodPost, path: calico + "blockaffinities", typ: asJSON,
		body: strings.Replace(affinity("n1", "10.0.9.0/30", ""), `"type":"host",`, "", 1)},
	{what: "an affinity given up", verb: edit, path: calico + "blockaffinities/n1-10-0-1-0-30", typ: merge,
		body: `{"spec":{"state":"pendingDeletion"}}`},
	{what: "an affinity deleted", verb: http.MethodDelete, path: calico + "blockaffinities/n1-10-0-1-0-30"},
	{what: "a block without its owner", verb: edit, path: calico + "ipamblocks/10-0-1-0-30", typ: merge,
		body: `{"spec":{"affinity":""}}`},
	{what: "a block deleted", verb: http.MethodDelete, path: calico + "ipamblocks/10-0-1-0-30"},
	{what: "a borrowed address", verb: edit, path: calico + "ipamblocks/10-0-2-0-30", typ: merge,
		body: `{"spec":{"allocations":[0,1,null,null],"unallocated":[2,3],"attributes":[
			{"handle_id":"h","secondary":{"node":"n2"}},{"handle_id":"i","secondary":{"node":"n1"}}]}}`},
	{what: "a block of nobody with its own last pod", verb: edit, path: calico + "ipamblocks/10-0-4-0-30", typ: merge,
		body: `{"spec":{"deleted":true}}`},
	{what: "a deletion that another writer has begun", verb: http.MethodDelete,
		path: calico + "ipamblocks/10-0-5-0-30"},
	{what: "the same of an affinity", verb: http.MethodDelete, path: calico + "blockaffinities/n2-10-0-5-0-30"},
	{what: "its status", verb: edit, path: calico + "caliconodestatuses/of-n1", typ: merge, body: `{"status":{"agent":{}}}`},
	{what: "a default of Felix", verb: edit, path: calico + "felixconfigurations/default", typ: merge,
		body: `{"spec":{"reportingInterval":"0s"}}`},
	{what: "the type of the cluster", verb: edit, path: calico + "clusterinformations/default", typ: merge,
		body: `{"spec":{"clusterType":"k8s,bgp,kdd"}}`},
	{what: "a pool", verb: http.MethodPost, path: calico + "ippools", typ: asJSON,
		body: `{"apiVersion":"crd.projectcalico.org/v1","kind":"IPPool","metadata":{"name":"default-ipv4-ippool"},
			"spec":{"cidr":"10.0.0.0/16"}}`},
}

// guarded is an API server with the chart's roles, two nodes, a pod on each, and blocks. The policies of the chart are
// not in force.
func guarded(t *testing.T) (s *apiserver.Server, policies [][]byte) {
	s = apiserver.Start(t, "--authorization-mode=Node")
	s.InstallCRDs(t, "crd.projectcalico.org/v1", "blockaffinities", "ipamblocks", "caliconodestatuses",
		"felixconfigurations", "clusterinformations", "ippools", "globalnetworkpolicies", "hostendpoints")
	documents, _ := installation{}.objects(t) // of both groups, since Helm does not know the cluster
	for _, d := range documents {
		if strings.HasPrefix(twonodes.Kind(t, d), "ValidatingAdmissionPolicy") {
			policies = append(policies, d)
			continue
		}
		twonodes.Create(t, s, d)
	}
	for node, pod := range map[string]string{"n1": "web", "n2": "db"} {
		twonodes.Create(t, s, fmt.Appendf(nil, `{"apiVersion":"v1","kind":"Node","metadata":{"name":%q}}`, node))
		s.Request(t, http.MethodPatch, nodes+"/"+node+"/status", []byte(`{"status":{"capacity":{"cpu":"2"},
			"addresses":[{"type":"InternalIP","address":"10.0.0.1"}],
			"conditions":[{"type":"Ready","status":"True"},{"type":"DiskPressure","status":"False"}]}}`))
		twonodes.Create(t, s, fmt.Appendf(nil, `{"apiVersion":"v1","kind":"Pod","metadata":{"name":%q,"namespace":"default",
			"annotations":{"note":"a"},"labels":{"app":"web"}},"spec":{"nodeName":%q,
			"containers":[{"name":"c","image":"i"}]}}`, pod, node))
	}
	create := func(plural string, bodies ...string) {
		for _, b := range bodies {
			s.Request(t, http.MethodPost, calico+plural, []byte(b))
		}
	}
	create("blockaffinities", affinity("n1", "10.0.1.0/30", ""), affinity("n2", "10.0.2.0/30", ""),
		affinity("n2", "10.0.5.0/30", `,"deleted":"true"`))
	create("ipamblocks", block("10.0.1.0/30", "host:n1", "n1", ""), block("10.0.2.0/30", "host:n2", "n2", ""),
		block("10.0.3.0/30", "", "n2", ""), block("10.0.4.0/30", "", "n1", ""),
		block("10.0.5.0/30", "host:n2", "n2", `,"deleted":true`))
	twonodes.Create(t, s, []byte(`{"apiVersion":"v1","kind":"Service","metadata":{"name":"s","namespace":"default"},
		"spec":{"type":"LoadBalancer","ports":[{"port":80}]}}`))
	for kind, objects := range map[string][]string{
		"CalicoNodeStatus":    {`of-n1 {"node":"n1","updatePeriodSeconds":10}`, `of-n2 {"node":"n2"}`},
		"FelixConfiguration":  {`default {"logSeverityScreen":"Info"}`},
		"GlobalNetworkPolicy": {`default.deny {"types":["Ingress"]}`},
		"ClusterInformation":  {`default {"datastoreReady":true,"clusterType":"k8s,bgp"}`},
	} {
		for _, o := range objects {
			name, spec, _ := strings.Cut(o, " ")
			plural := map[string]string{"CalicoNodeStatus": "caliconodestatuses",
				"GlobalNetworkPolicy": "globalnetworkpolicies"}[kind]
			create(cmp.Or(plural, strings.ToLower(kind)+"s"), fmt.Sprintf(
				`{"apiVersion":"crd.projectcalico.org/v1","kind":%q,"metadata":{"name":%q},"spec":%s}`, kind, name, spec))
		}
	}
	return s, policies
}

// TestTheTokenOfANode: with the token of one node's manxd or plugin, the objects of other nodes and all that is not the
// network's stays as it is; what the roles allow is more. What manxd does is allowed.
func TestTheTokenOfANode(t *testing.T) {
	t.Parallel()
	s, policies := guarded(t)
	own := s.AccountToken(t, namespace, "manx-node", "n1")
	for _, a := range append(slices.Clone(ofAnotherNode), ofOwnNode...) {
		if err := do(t.Context(), t, s, own, a); err != nil {
			t.Errorf("without the policies, %s: %v", a.what, err)
		}
	}
	for _, p := range policies {
		twonodes.Create(t, s, p)
	}
	awaitPolicies(t, s)
	check := func(token, what string, a attempt) {
		t.Helper()
		if a.says == "" {
			if err := do(t.Context(), t, s, token, a); err != nil {
				t.Errorf("%s, %s: %v", what, a.what, err)
			}
			return
		}
		err := doRefused(t.Context(), t, s, token, a)
		if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), a.says) {
			t.Errorf("%s, %s: have %v, want refusal %q", what, a.what, err, a.says)
		}
	}
	for _, a := range append(slices.Clone(ofAnotherNode), ofControllers...) {
		check(own, "manx-node", a)
	}
	nowhere := s.AccountToken(t, namespace, "manx-node", "")
	for _, a := range ofOwnNode {
		check(own, "manx-node", a)
		a.says = "create token manx-node --bound-object-kind Node --bound-object-name NODE"
		check(nowhere, "without a node", a)
	}
	// A second pool of a family changes the way to addresses of the first one.
	pool := ofOwnNode[len(ofOwnNode)-1]
	first := func(name string, second attempt) {
		s.Request(t, http.MethodPost, calico+"ippools", fmt.Appendf(nil, `{"apiVersion":"crd.projectcalico.org/v1",
			"kind":"IPPool","metadata":{"name":%q},"spec":{"cidr":"10.0.0.0/16"}}`, name))
		until(t, "no second pool", func() error {
			err := do(t.Context(), t, s, own, second)
			if err == nil || !strings.Contains(err.Error(), name+" is a pool of its family") {
				return fmt.Errorf("%s: %v", second.what, err)
			}
			return nil
		})
	}
	other := pool
	other.body = strings.Replace(pool.body, "default-ipv4-ippool", "default-ipv6-ippool", 1)
	first("default-ipv4-ippool", other)
	// All nodes of a fresh cluster make its default pool at once: it exists, and nothing is forbidden.
	if err := do(t.Context(), t, s, own, pool); !apierrors.IsAlreadyExists(err) {
		t.Errorf("the pool that another node has just made: %v", err)
	}
	s.Request(t, http.MethodDelete, calico+"ippools/default-ipv4-ippool", nil)
	first("pods", pool)
	// The plugin's rights are fewer.
	plugins := s.AccountToken(t, namespace, "manx-cni-plugin", "n1")
	of := func(list []attempt) (some []attempt) {
		for _, a := range list {
			if strings.HasPrefix(a.path, pods) || strings.Contains(a.path, "block") {
				some = append(some, a)
			}
		}
		return some
	}
	for _, a := range append(of(ofAnotherNode), of(ofOwnNode)...) {
		check(plugins, "the plugin", a)
	}
}

// The annotations with addresses.
var addressAnnotations = []string{"cni.projectcalico.org/podIP", "cni.projectcalico.org/podIPs",
	"cni.projectcalico.org/containerID", "vpc.amazonaws.com/pod-ips"}

// TestAddressesInAnnotations: whoever may make pods gives them no address by an annotation, neither in a pod, its
// status or a binding, nor through the controller of a template, nor as a kubelet. The network does, and who restores a
// backup.
func TestAddressesInAnnotations(t *testing.T) {
	t.Parallel()
	s, policies := guarded(t)
	const (
		tenant     = "tenant"
		replicaSet = "system:serviceaccount:kube-system:replicaset-controller"
		calicoNode = "system:serviceaccount:calico-system:calico-node"
		kubelet    = "system:node:n1"
	)
	s.AddUsers(t, tenant, replicaSet, calicoNode, kubelet)
	twonodes.Create(t, s, []byte(`{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"ClusterRole",
		"metadata":{"name":"pods"},"rules":[{"apiGroups":[""],"resources":["pods","pods/status","pods/binding"],
		"verbs":["*"]}]}`))
	twonodes.Create(t, s, []byte(`{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"ClusterRoleBinding",
		"metadata":{"name":"pods"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"pods"},
		"subjects":[{"apiGroup":"rbac.authorization.k8s.io","kind":"User","name":"tenant"},
		{"kind":"ServiceAccount","name":"calico-node","namespace":"calico-system"}]}`))
	for _, pod := range []string{`"name":"waits"`, `"name":"has","annotations":{"cni.projectcalico.org/podIPs":"10.0.1.1/32"}`} {
		twonodes.Create(t, s, []byte(`{"apiVersion":"v1","kind":"Pod","metadata":{"namespace":"default",`+pod+`},
			"spec":{"containers":[{"name":"c","image":"i"}]}}`))
	}
	mirror := `"kubernetes.io/config.mirror":"x"`
	create := func(annotations string) attempt {
		node := ""
		if strings.Contains(annotations, "mirror") {
			node = `"nodeName":"n1",`
		}
		return attempt{verb: http.MethodPost, path: pods, typ: asJSON, body: `{"apiVersion":"v1","kind":"Pod",
			"metadata":{"name":"new","annotations":{` + annotations + `}},
			"spec":{` + node + `"containers":[{"name":"c","image":"i"}]}}`}
	}
	type writing struct {
		user, what string
		attempt
		allowed bool
	}
	var cases []writing
	add := func(user, what string, a attempt, allowed bool) {
		cases = append(cases, writing{user, what, a, allowed})
	}
	patch := func(path, annotations string) attempt {
		return attempt{verb: http.MethodPatch, path: path, typ: merge, body: `{"metadata":{"annotations":{` + annotations + `}}}`}
	}
	for _, name := range addressAnnotations {
		forged := fmt.Sprintf(`%q:"10.99.0.77/32"`, name)
		add(tenant, "a new pod with "+name, create(forged), false)
		add(tenant, "a pod with "+name, patch(pods+"/web", forged), false)
		add(tenant, "a pod's status with "+name, patch(pods+"/web/status", forged), false)
		add(tenant, "a binding with "+name, attempt{verb: http.MethodPost, path: pods + "/waits/binding", typ: asJSON,
			body: `{"apiVersion":"v1","kind":"Binding","metadata":{"name":"waits","annotations":{` + forged + `}},
			"target":{"kind":"Node","name":"n1"}}`}, false)
		add(replicaSet, "a template with "+name, create(forged), false)
		add(kubelet, "a mirror pod with "+name, create(forged+","+mirror), false)
		add(kubelet, "a status with "+name, patch(pods+"/web/status", forged), false)
		add(calicoNode, "another network's "+name, patch(pods+"/web/status", forged), true)
		add(apiserver.Admin, "a backup with "+name, create(forged), true)
	}
	add(tenant, "another address", patch(pods+"/has", `"cni.projectcalico.org/podIPs":"10.0.1.2/32"`), false)
	add(tenant, "another annotation", patch(pods+"/has", `"a":"b"`), true)
	add(tenant, "no annotation", patch(pods+"/has", `"cni.projectcalico.org/podIPs":null`), true)
	add(tenant, "a new pod", create(`"a":"b"`), true)
	add(kubelet, "a mirror pod", create(mirror), true)
	add(tenant, "a request for an address", create(`"cni.projectcalico.org/ipAddrs":"[\"10.0.1.7\"]"`), true)
	for _, c := range cases {
		if err := do(t.Context(), t, s, apiserver.Token(c.user), c.attempt); err != nil {
			t.Errorf("without the policies, %s of %s: %v", c.what, c.user, err)
		}
	}
	for _, p := range policies {
		twonodes.Create(t, s, p)
	}
	awaitPolicies(t, s)
	if err := doRefused(t.Context(), t, s, apiserver.Token(tenant), cases[0].attempt); err == nil {
		t.Fatal("the policy about annotations is not in force")
	}
	for _, c := range cases {
		err := do(t.Context(), t, s, apiserver.Token(c.user), c.attempt)
		switch {
		case c.allowed && err != nil:
			t.Errorf("%s of %s: %v", c.what, c.user, err)
		case !c.allowed && (!apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "only the network writes")):
			t.Errorf("%s of %s: have %v, want a refusal", c.what, c.user, err)
		}
	}
}
