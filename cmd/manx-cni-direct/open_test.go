package main

import (
	"errors"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	"go.uber.org/zap"

	"github.com/manxnet/manx/cni"
	"github.com/manxnet/manx/datastore/kubernetes/form"
	"github.com/manxnet/manx/integration/kubernetes/apiserver"
)

// TestTokenHasEnded: a plugin whose token has ended while manxd was away says so, with the file and the remedy, and
// asks the runtime to try again.
func TestTokenHasEnded(t *testing.T) {
	t.Parallel()
	s := apiserver.Start(t)
	kubeconfig := s.KubeconfigWith(t, s.URL, "a.token.that-has-ended")
	for _, group := range []string{"", string(form.V1)} {
		c := &cni.Config{DatastoreType: "kubernetes", CalicoAPIGroup: group}
		c.Kubernetes.Kubeconfig = kubeconfig
		_, _, err := openDatastore(t.Context(), c, func(string) string { return "" }, zap.NewNop())
		var answer *types.Error
		if !errors.As(err, &answer) || answer.Code != types.ErrTryAgainLater ||
			!strings.Contains(answer.Details, kubeconfig) || !strings.Contains(answer.Details, "start manxd") {
			t.Errorf("group %q: %v, want the remedy", group, err)
		}
	}
}
