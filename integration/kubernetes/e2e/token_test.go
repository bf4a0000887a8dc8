package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/manxnet/manx/integration/kubernetes/apiserver"
)

const pluginAccounts = "/api/v1/namespaces/kube-system/serviceaccounts"

// TestPluginToken: manxd writes the kubeconfig that the CNI plugin uses without manxd, and replaces its token in time,
// in one step. A token that the API refuses is replaced, too. Nothing is written while the API is away.
func TestPluginToken(t *testing.T) {
	w := newWorld(t)
	account := map[string]any{"kind": "ServiceAccount", "apiVersion": "v1",
		"metadata": map[string]any{"name": "manx-cni-plugin"}}
	w.server.Request(t, http.MethodPost, pluginAccounts, account)
	dir := filepath.Join(w.n1.Dir, "net.d")
	must(t, os.Mkdir(dir, 0o755))
	must(t, w.n1.StartManxd(append(w.arguments(0), "--cni-conf-dir="+dir, "--cni-token-refresh-interval=2s")...))
	k := &kubeconfigOf{world: w, path: filepath.Join(dir, "calico-kubeconfig")}
	watching, stop := context.WithCancel(t.Context())
	defer stop()
	torn := make(chan error, 1)

	first := k.next(t, "")
	go k.watch(watching, torn)
	if st, err := os.Stat(k.path); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("the kubeconfig has mode %v, %v, want 0600", st.Mode(), err)
	}
	second := k.next(t, first)
	for _, token := range []string{first, second} { // a plugin that has read the old one goes on with it
		must(t, k.accepted(t, token))
	}
	t.Run("no API for a while", func(t *testing.T) {
		w.lines[0].Cut()
		time.Sleep(10 * time.Second) // several times the interval
		have, err := k.token()
		must(t, err)
		must(t, k.accepted(t, have)) // by another line
		w.lines[0].Mend()
		must(t, k.accepted(t, k.next(t, have)))
	})
	t.Run("a token that is revoked", func(t *testing.T) {
		old, err := k.token()
		must(t, err)
		w.server.Request(t, http.MethodDelete, pluginAccounts+"/manx-cni-plugin", nil)
		until(t, "the end of the old token", func() error {
			if k.accepted(t, old) == nil {
				return errors.New("it is accepted")
			}
			return nil
		})
		awaitStatus(t, w.n1, "no token for the CNI plugin")
		w.server.Request(t, http.MethodPost, pluginAccounts, account)
		until(t, "a token of the new account", func() error {
			token, err := k.token()
			if err == nil {
				err = k.accepted(t, token)
			}
			return err
		})
	})
	stop()
	must(t, <-torn)
}

// kubeconfigOf is the plugin's on a node.
type kubeconfigOf struct {
	world *world
	path  string
}

// token reads the file as the plugin does.
func (k *kubeconfigOf) token() (string, error) {
	text, err := os.ReadFile(k.path)
	if err != nil {
		return "", err
	}
	config, err := clientcmd.RESTConfigFromKubeConfig(text)
	if err != nil {
		return "", fmt.Errorf("%w: %q", err, text)
	}
	if config.BearerToken == "" || config.Host == "" || len(config.CAData) == 0 {
		return "", fmt.Errorf("not whole: %q", text)
	}
	return config.BearerToken, nil
}

// watch reads the file all the time; an incomplete file is an error.
func (k *kubeconfigOf) watch(ctx context.Context, result chan<- error) {
	for ctx.Err() == nil {
		if _, err := k.token(); err != nil {
			result <- err
			return
		}
		time.Sleep(time.Millisecond)
	}
	result <- nil
}

// next waits for another token than the old one.
func (k *kubeconfigOf) next(t *testing.T, old string) (token string) {
	t.Helper()
	until(t, "a new token", func() (err error) {
		if token, err = k.token(); err == nil && token == old {
			err = errors.New("it is the old one")
		}
		return err
	})
	return token
}

// accepted returns nil if the API accepts a token for the plugin's account, and allows it to read the plugin's objects.
func (k *kubeconfigOf) accepted(t *testing.T, token string) error {
	t.Helper()
	config := rest.CopyConfig(k.world.server.Config(apiserver.Admin))
	config.BearerToken = token
	client, err := rest.HTTPClientFor(config)
	must(t, err)
	review := `{"kind":"SelfSubjectReview","apiVersion":"authentication.k8s.io/v1"}`
	response, err := client.Post(config.Host+"/apis/authentication.k8s.io/v1/selfsubjectreviews", "application/json",
		strings.NewReader(review))
	if err != nil {
		return err
	}
	defer response.Body.Close()
	var who struct {
		Message string
		Status  struct{ UserInfo struct{ Username string } }
	}
	if err := json.NewDecoder(response.Body).Decode(&who); err != nil {
		return err
	}
	if name := who.Status.UserInfo.Username; name != "system:serviceaccount:kube-system:manx-cni-plugin" {
		return fmt.Errorf("the API takes the token for that of %q: %s %s", name, response.Status, who.Message)
	}
	info, err := client.Get(config.Host + "/apis/crd.projectcalico.org/v1/clusterinformations/default")
	if err != nil {
		return err
	}
	defer info.Body.Close()
	if info.StatusCode != http.StatusOK {
		return errors.New("the plugin may not read ClusterInformation: " + info.Status)
	}
	return nil
}
