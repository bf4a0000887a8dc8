package validation_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/manxnet/manx/datastore/codec"
	"github.com/manxnet/manx/datastore/document"
	"github.com/manxnet/manx/datastore/model"
)

const web = `apiVersion: v1
kind: Service
metadata:
  name: web
  namespace: shop
  uid: 2fb74e0c-260c-42ac-a8be-d4cd7681999c
  resourceVersion: "4711"
spec:
  type: LoadBalancer
  clusterIP: 10.96.0.17
  clusterIPs: [10.96.0.17, "fd00:96::17"]
  ipFamilies: [IPv4, IPv6]
  externalTrafficPolicy: Local
  ports: [{name: http, port: 80, targetPort: 8080, nodePort: 30080}]
  selector: {app: web}
status:
  loadBalancer:
    ingress: [{ip: 80.15.0.9, ipMode: VIP}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata:
  name: web-x7
  namespace: shop
  labels: {kubernetes.io/service-name: web}
addressType: IPv4
endpoints:
- addresses: [10.244.1.7]
  conditions: {ready: true, serving: true, terminating: false}
  nodeName: node-1
  targetRef: {kind: Pod, name: web-1}
ports: [{name: http, port: 8080, protocol: TCP}]
`

func TestKubernetesDocumentsAreReadForWhatManxNeeds(t *testing.T) {
	objects, err := document.Parse([]byte(web))
	if err != nil {
		t.Fatal(err)
	}
	r := model.NewSet(objects...)
	s := model.Get[model.Service](r, model.Key{Kind: model.KindService, Namespace: "shop", Name: "web"})
	if s == nil || s.Spec.ClusterIPs[1] != "fd00:96::17" || s.Spec.ExternalTrafficPolicy != model.TrafficPolicyLocal ||
		s.Status.LoadBalancer.Ingress[0].IP != "80.15.0.9" {
		t.Fatalf("%+v", s)
	}
	e := model.Get[model.EndpointSlice](r, model.Key{Kind: model.KindEndpointSlice, Namespace: "shop", Name: "web-x7"})
	if e == nil || e.Labels[model.LabelServiceName] != "web" || *e.Endpoints[0].NodeName != "node-1" ||
		!*e.Endpoints[0].Conditions.Ready {
		t.Fatalf("%+v", e)
	}
	if p := s.Spec.Ports[0]; p != (model.ServicePort{Name: "http", Port: 80}) {
		t.Errorf("the service offers %+v", p)
	}
	if p := e.Ports[0]; *p.Name != "http" || *p.Protocol != "TCP" || *p.Port != 8080 {
		t.Errorf("the endpoints serve %+v", p)
	}
	for _, o := range objects {
		if err := codec.PrepareUpdate(o); err != nil {
			t.Error(err)
		}
		info, _ := model.Lookup(o.Key.Kind)
		text, err := codec.Encode(o)
		if err != nil || !strings.Contains(string(text), info.APIVersion) ||
			!strings.Contains(string(text), `"ports"`) {
			t.Errorf("%s lost something: %s, %v", o.Key, text, err)
		}
	}
}

func TestKubernetesRules(t *testing.T) {
	for _, c := range []struct{ rule, in, want string }{
		{"API version", strings.Replace(web, "apiVersion: v1", "apiVersion: projectcalico.org/v3", 1),
			`apiVersion = "projectcalico.org/v3": must be v1`},
		{"wrong type", strings.Replace(web, "externalTrafficPolicy: Local", "externalIPs: 1", 1), "spec.externalIPs"},
		{"address", strings.Replace(web, "clusterIP: 10.96.0.17", "clusterIP: web", 1),
			`spec.clusterIP = "web": must be an IP address`},
		{"traffic policy", strings.Replace(web, "Policy: Local", "Policy: Near", 1),
			`spec.externalTrafficPolicy = "Near": must be one of Cluster, Local`},
		{"family", strings.Replace(web, "[IPv4, IPv6]", "[IPv5]", 1), `spec.ipFamilies[0] = "IPv5"`},
		{"address type", strings.Replace(web, "addressType: IPv4", "addressType: v4", 1), `addressType = "v4"`},
		{"namespace", strings.Replace(web, "  namespace: shop\n", "", 1), `metadata.namespace`},
	} {
		t.Run(c.rule, func(t *testing.T) {
			objects, err := document.Parse([]byte(c.in))
			for _, o := range objects {
				err = errors.Join(err, codec.PrepareCreate(o, created))
			}
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v lacks %q", err, c.want)
			}
		})
	}
}
