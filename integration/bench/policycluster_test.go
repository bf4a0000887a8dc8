package bench

import (
	"encoding/json"
	"fmt"
	"iter"
	"net/netip"

	"github.com/manxnet/manx/dataplane/policy"
	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/codec"
	"github.com/manxnet/manx/datastore/model"
)

// cluster is a large cluster, generated on demand: pods of Deployments in namespaces, and typical policies of users.
// Its objects are decoded from their stored form.
type cluster struct{ policies, remotes int }

const (
	benchNode       = "node-0"
	benchNodes      = 1000
	benchNamespaces = 500
	benchLocals     = 100
	benchGlobals    = 10
)

// lists generates all objects by kind; each call generates new ones.
func (c cluster) lists() map[model.Kind][]iter.Seq[*model.Object] {
	return map[model.Kind][]iter.Seq[*model.Object]{
		model.KindNode:    {count(benchNodes, c.node)},
		model.KindProfile: {count(benchNamespaces, c.namespace), count(benchNamespaces, c.account)},
		model.KindWorkloadEndpoint: {
			count(c.remotes+benchLocals, func(i int) *model.Object { return c.pod(i, "v1") })},
		model.KindTier:                {count(1, c.tier)},
		model.KindGlobalNetworkPolicy: {count(benchGlobals, func(i int) *model.Object { return c.global(i, 8080) })},
		model.KindNetworkPolicy: {
			count(c.policies-benchGlobals, func(i int) *model.Object { return c.policy(i, 8080) })},
	}
}

// all visits every object.
func (c cluster) all(yield func(*model.Object) bool) {
	for _, kind := range policy.Kinds {
		for o := range c.All(kind) {
			if !yield(o) {
				return
			}
		}
	}
}

func count(n int, f func(int) *model.Object) iter.Seq[*model.Object] {
	return func(yield func(*model.Object) bool) {
		for i := range n {
			if !yield(f(i)) {
				return
			}
		}
	}
}

// Get and All make a cluster a reader that stores nothing.
func (c cluster) Get(model.Key) *model.Object { return nil }

func (c cluster) All(kind model.Kind) iter.Seq[*model.Object] {
	return func(yield func(*model.Object) bool) {
		for _, list := range c.lists()[kind] {
			for o := range list {
				if !yield(o) {
					return
				}
			}
		}
	}
}

// stored decodes the value stored under a key.
func stored(k model.Key, labels map[string]string, format string, values ...any) *model.Object {
	text, _ := json.Marshal(labels)
	raw := fmt.Appendf(nil,
		`{"apiVersion":"projectcalico.org/v3","kind":%q,"metadata":{"name":%q,"namespace":%q,"labels":%s,`+
			`"uid":"5a1f0a44-6a43-4e7c-9c5a-2f8f5f0c6a11","creationTimestamp":"2026-11-01T00:00:00Z"},"spec":`, k.Kind,
		k.Name, k.Namespace, text)
	raw = append(fmt.Appendf(raw, format, values...), '}')
	o := codec.Decode(k, raw, 1)
	if o.Err != nil {
		panic(o.Err)
	}
	return o
}

func (cluster) node(i int) *model.Object {
	name := fmt.Sprint("node-", i)
	return stored(model.ResourceKey(model.KindNode, name), nil, `{"bgp":{"ipv4Address":"172.16.%d.%d/16"}}`, i/250,
		1+i%250)
}

func ns(i int) string { return fmt.Sprint("ns-", i%benchNamespaces) }

func (cluster) namespace(i int) *model.Object {
	return stored(model.ResourceKey(model.KindProfile, "kns."+ns(i)), nil,
		`{"ingress":[{"action":"Allow"}],"egress":[{"action":"Allow"}],"labelsToApply":{"pcns.projectcalico.org/name":%q,"pcns.team":"team-%d"}}`, ns(i), i%20)
}

func (cluster) account(i int) *model.Object {
	return stored(model.ResourceKey(model.KindProfile, "ksa."+ns(i)+".default"), nil,
		`{"labelsToApply":{"pcsa.projectcalico.org/name":"default"}}`)
}

// pod i is on another node below remotes, and on this node above; a version is a label.
func (c cluster) pod(i int, version string) *model.Object {
	if i >= c.remotes {
		return podOn(benchNode, i, version)
	}
	return podOn(fmt.Sprint("node-", 1+i%(benchNodes-1)), i, version)
}

// podOn returns pod i on a node. Each namespace has ten Deployments.
func podOn(node string, i int, version string) *model.Object {
	app, role := i/benchNamespaces%10, "plain"
	if i%100 == 7 {
		role = "monitoring"
	}
	pod := fmt.Sprintf("app-%d-7d9f8b6c5d-%06x", app, i)
	name, err := model.WorkloadEndpointName(model.WorkloadEndpointIDs{Node: node, Orchestrator: "k8s", Pod: pod,
		Endpoint: "eth0"})
	if err != nil {
		panic(err)
	}
	labels := map[string]string{
		model.LabelNamespace: ns(i), model.LabelOrchestrator: "k8s", model.LabelServiceAccount: "default",
		"app": fmt.Sprint("app-", app), "env": []string{"prod", "test"}[i/benchNamespaces%2], "role": role,
		"version":           version,
		"pod-template-hash": "7d9f8b6c5d",
	}
	return stored(model.Key{Kind: model.KindWorkloadEndpoint, Namespace: ns(i), Name: name}, labels,
		`{"orchestrator":"k8s","node":%q,"pod":%q,"endpoint":"eth0","containerID":"f6d0c5dd3a0f4b0a8e1c29d34f7f3f7b6a8f16f1c1c5b1ce9d0ba4e7a5%06x",`+
			`"serviceAccountName":"default","ipNetworks":["%s/32"],"profiles":["kns.%s","ksa.%[5]s.default"],"interfaceName":"cali%011[3]x",`+
			`"ports":[{"name":"metrics","protocol":"TCP","port":9090}]}`,
		node, pod, i, podAddress(i), ns(i))
}

func podAddress(i int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, 64 + byte(i>>16), byte(i >> 8), byte(i)})
}

func (cluster) tier(int) *model.Object {
	return stored(model.ResourceKey(model.KindTier, "platform"), nil, `{"order":100}`)
}

// policy i is one of its namespace's, as Kubernetes' NetworkPolicies are converted: half of them are about all pods of
// the namespace, the others about one Deployment.
func (cluster) policy(i, port int) *model.Object {
	nth := i / benchNamespaces
	subject, app := "projectcalico.org/orchestrator == 'k8s'", fmt.Sprintf("app == 'app-%d'", nth/2%10)
	if nth%2 == 0 {
		subject += " && " + app
	}
	spec := fmt.Sprintf(`{"tier":"default","order":1000,"selector":%q,"types":["Ingress"],"ingress":[`+
		`{"action":"Allow","protocol":"TCP","source":{"selector":"projectcalico.org/orchestrator == 'k8s' && app == 'app-%d'"},"destination":{"ports":[%d]}},`+
		`{"action":"Allow","source":{"selector":"projectcalico.org/orchestrator == 'k8s' && app == 'app-%d'","namespaceSelector":"projectcalico.org/name == '%s'"}}]}`,
		subject, (nth+1)%10, port, (nth+3)%10, ns(i+7+nth))
	if nth%4 == 3 {
		spec = fmt.Sprintf(`{"tier":"default","order":1000,"selector":%q,"types":["Egress"],"egress":[`+
			`{"action":"Allow","protocol":"UDP","destination":{"selector":"role == 'monitoring'","namespaceSelector":"all()","ports":[53]}},`+
			`{"action":"Allow","destination":{"nets":["192.168.%d.0/24"],"notNets":["192.168.%[2]d.128/25"]}},`+
			`{"action":"Allow","protocol":"TCP","destination":{"selector":"projectcalico.org/orchestrator == 'k8s' && app in { 'app-1', 'app-%[3]d' }","ports":[%[4]d]}}]}`,
			subject, i%250, 2+nth%8, port)
	}
	return stored(model.Key{Kind: model.KindNetworkPolicy, Namespace: ns(i), Name: fmt.Sprintf("default.policy-%d", i)},
		nil, "%s", spec)
}

// global policies are the platform's: the first in a tier of their own, which leaves the rest to the namespaces.
func (cluster) global(i, port int) *model.Object {
	name, spec := fmt.Sprint("default.global-", i), ""
	switch i {
	case 0:
		name, spec = "platform.metadata",
			`{"tier":"platform","order":1,"selector":"all()","types":["Ingress","Egress"],`+
				`"egress":[{"action":"Deny","destination":{"nets":["169.254.169.254/32"]}},{"action":"Pass"}],"ingress":[{"action":"Pass"}]}`
	case 1:
		spec = `{"tier":"default","order":10,"selector":"has(app)","types":["Ingress"],` +
			`"ingress":[{"action":"Allow","protocol":"TCP","source":{"selector":"role == 'monitoring'"},"destination":{"ports":[9090]}}]}`
	case 2:
		spec = `{"tier":"default","order":20,"selector":"env == 'prod'","types":["Ingress"],"ingress":[{"action":"Deny","source":{"selector":"env == 'test'"}}]}`
	case 3:
		spec = `{"tier":"default","order":30,"selector":"env == 'prod'","types":["Ingress"],"ingress":[` +
			`{"action":"Allow","protocol":"TCP","source":{"selector":"has(app)"},"destination":{"ports":[443]}}]}`
	default:
		spec = fmt.Sprintf(
			`{"tier":"default","order":40,"namespaceSelector":"team == 'team-%d'","types":["Ingress"],"ingress":[`+
				`{"action":"Allow","protocol":"TCP","source":{"namespaceSelector":"team == 'team-%d'"},"destination":{"ports":["metrics",%d]}}]}`, i, i+1, port)
	}
	return stored(model.ResourceKey(model.KindGlobalNetworkPolicy, name), nil, "%s", spec)
}

// event is a watch event of an object; nil: a deletion.
func event(k model.Key, o *model.Object, revision int64) datastore.Event {
	if o == nil {
		return datastore.Event{Type: datastore.EventDelete, Key: k, Revision: revision}
	}
	o.Revision = revision
	return datastore.Event{Type: datastore.EventUpdate, Key: k, Object: o, Revision: revision}
}
