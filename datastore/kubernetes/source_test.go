package kubernetes

import (
	"testing"

	"github.com/manxnet/manx/datastore/kubernetes/form"
	"github.com/manxnet/manx/datastore/model"
)

// The source of a kind is its resource, with the group in use, and the server.
func TestSource(t *testing.T) {
	s := &Store{api: form.V3, host: "https://10.0.0.1:6443"}
	for kind, want := range map[model.Kind]string{
		model.KindWorkloadEndpoint: "pods at https://10.0.0.1:6443",
		model.KindIPPool:           "ippools.projectcalico.org at https://10.0.0.1:6443",
		model.KindProfile:          "", // it is made of others
	} {
		if got := s.Source(kind); got != want {
			t.Errorf("%s: %q, want %q", kind, got, want)
		}
	}
}
