package datastore_test

import (
	"net/http"
	"reflect"
	"strings"
	"testing"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	"go.uber.org/zap"

	"github.com/manxnet/manx/datastore/conversion"
	"github.com/manxnet/manx/datastore/document"
	"github.com/manxnet/manx/datastore/kubernetes"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/integration/kubernetes/apiserver"
)

// documents of objects, each with the path where the API has it.
var documents = []struct{ path, text string }{
	{"/api/v1/namespaces", `{"kind":"Namespace","apiVersion":"v1","metadata":{"name":"shop","labels":{"team":"a"}}}`},
	{"/api/v1/namespaces/shop/serviceaccounts",
		`{"kind":"ServiceAccount","apiVersion":"v1","metadata":{"name":"cashier","namespace":"shop","labels":{"role":"till"}}}`},
	{"/api/v1/namespaces/shop/pods",
		`{"kind":"Pod","apiVersion":"v1","metadata":{"name":"till-1","namespace":"shop","labels":{"app":"till"}},
	  "spec":{"nodeName":"n1","serviceAccountName":"cashier","containers":[{"name":"c","image":"i","ports":[{"name":"http","containerPort":8080}]}]},
	  "status":{"phase":"Running","podIP":"10.0.0.1","podIPs":[{"ip":"10.0.0.1"}]}}`},
}

// The same objects, given as documents and put into the Kubernetes API, are the same endpoints and profiles.
func TestDocumentsAndStoreAgree(t *testing.T) {
	server := apiserver.Start(t)
	var given []*model.Object
	for _, d := range documents {
		objects, err := document.Parse([]byte(d.text))
		if err != nil {
			t.Fatal(err)
		}
		given = append(given, objects...)
		server.Request(t, http.MethodPost, d.path, []byte(d.text))
		if strings.HasSuffix(d.path, "/pods") {
			server.Request(t, http.MethodPatch, d.path+"/till-1/status", []byte(d.text))
		}
	}
	want, _ := conversion.FromDocuments(given)
	s, err := kubernetes.OpenREST(t.Context(), kubernetes.Config{}, server.Config(apiserver.Admin), zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	compared := 0
	for _, w := range want {
		got, err := s.Get(t.Context(), w.Key)
		if err != nil {
			t.Error(err)
			continue
		}
		compared++
		switch v := w.Value.(type) {
		case *v3.Profile:
			if g := got.Value.(*v3.Profile); !reflect.DeepEqual(g.Spec, v.Spec) {
				t.Errorf("%s is %+v, and %+v as a document", w.Key, g.Spec, v.Spec)
			}
		case *model.WorkloadEndpoint:
			if g := got.Value.(*model.WorkloadEndpoint); !reflect.DeepEqual(g.Spec, v.Spec) ||
				!reflect.DeepEqual(g.Labels, v.Labels) {
				t.Errorf("%s is %+v %v, and %+v %v as a document", w.Key, g.Spec, g.Labels, v.Spec, v.Labels)
			}
		}
	}
	if compared != len(documents) {
		t.Errorf("%d objects were compared", compared)
	}
}
