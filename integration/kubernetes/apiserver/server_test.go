package apiserver_test

import (
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/manxnet/manx/integration/kubernetes/apiserver"
)

func TestServer(t *testing.T) {
	s := apiserver.Start(t)
	list := func(url, user string) error {
		client, err := kubernetes.NewForConfig(s.ConfigAt(url, user))
		if err != nil {
			t.Fatal(err)
		}
		_, err = client.CoreV1().Namespaces().List(t.Context(), metav1.ListOptions{})
		return err
	}
	if err := list(s.URL, apiserver.Admin); err != nil {
		t.Error(err)
	}
	if err := list(s.URL, "nobody"); !apierrors.IsUnauthorized(err) {
		t.Errorf("who is not known: %v", err)
	}
	s.AddUsers(t, "nobody")
	if err := list(s.URL, "nobody"); !apierrors.IsForbidden(err) {
		t.Errorf("who may do nothing: %v", err)
	}
	line := apiserver.NewLine(t, s.URL)
	if err := list(line.URL, apiserver.Admin); err != nil || line.Received() == 0 {
		t.Errorf("over the line: %v, %d bytes", err, line.Received())
	}
	line.Cut()
	if err := list(line.URL, apiserver.Admin); err == nil {
		t.Error("a line that is cut lets requests through")
	}
	line.Mend()
	if err := list(line.URL, apiserver.Admin); err != nil {
		t.Errorf("when the line is back: %v", err)
	}
	s.Stop()
	if err := list(s.URL, apiserver.Admin); err == nil {
		t.Error("a server that was stopped answers")
	}
	s.Restart(t)
	if err := list(s.URL, apiserver.Admin); err != nil {
		t.Error(err)
	}
}
