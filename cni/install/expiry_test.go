package install_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/zap"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/manxnet/manx/cni/install"
	"github.com/manxnet/manx/cni/kubeapi"
	"github.com/manxnet/manx/integration/kubernetes/apiserver"
)

const pluginAccount = "/api/v1/namespaces/kube-system/serviceaccounts/manx-cni-plugin"

// signer signs tokens of the plugin's account with the API server's key, since the server itself issues none for less
// than ten minutes.
type signer struct {
	key *ecdsa.PrivateKey
	uid string
}

func newSigner(t *testing.T, s *apiserver.Server) signer {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(s.Dir, "sa.key"))
	must(t, err)
	block, _ := pem.Decode(raw)
	key, err := x509.ParseECPrivateKey(block.Bytes)
	must(t, err)
	var account struct{ Metadata struct{ UID string } }
	must(t, json.Unmarshal(s.Request(t, http.MethodGet, pluginAccount, nil), &account))
	return signer{key, account.Metadata.UID}
}

// token returns a JSON Web Token (RFC 7519, ES256) as the server makes it.
func (s signer) token(t *testing.T, lifetime time.Duration) string {
	t.Helper()
	const issuer = "https://kubernetes.default.svc"
	now := time.Now()
	part := func(v any) string {
		text, err := json.Marshal(v)
		must(t, err)
		return base64.RawURLEncoding.EncodeToString(text)
	}
	signed := part(map[string]string{"alg": "ES256"}) + "." + part(map[string]any{"iss": issuer,
		"aud": []string{issuer},
		"sub": "system:serviceaccount:kube-system:manx-cni-plugin", "iat": now.Unix(), "nbf": now.Unix(),
		"exp": now.Add(lifetime).Unix(), "kubernetes.io": map[string]any{"namespace": "kube-system",
			"serviceaccount": map[string]string{"name": "manx-cni-plugin", "uid": s.uid}}})
	sum := sha256.Sum256([]byte(signed))
	a, b, err := ecdsa.Sign(rand.Reader, s.key, sum[:])
	must(t, err)
	signature := make([]byte, 64)
	a.FillBytes(signature[:32])
	b.FillBytes(signature[32:])
	return signed + "." + base64.RawURLEncoding.EncodeToString(signature)
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// A token that has expired or was revoked, so that a real API server refuses it, is replaced long before its refresh is
// due. The file stays without an API, and as long as the token is accepted.
func TestRefusedTokenIsReplaced(t *testing.T) {
	server := apiserver.Start(t)
	account := map[string]any{"kind": "ServiceAccount", "apiVersion": "v1",
		"metadata": map[string]any{"name": "manx-cni-plugin"}}
	server.Request(t, http.MethodPost, filepath.Dir(pluginAccount), account)
	sign := newSigner(t, server)
	config := server.Config(apiserver.Admin)
	api, err := kubeapi.New(config)
	must(t, err)

	// The server accepts a token for a minute after its expiry.
	expiring := sign.token(t, 10*time.Second-time.Minute)
	if kubeapi.Refused(t.Context(), config, expiring) {
		t.Fatal("the server refuses a token that has not expired")
	}
	lives := 0
	folder := install.Folder{Dir: t.TempDir()}
	k := &install.Keeper{Folder: folder, Name: "10-calico.conflist",
		Conflist: []byte(`{"name": "net", "plugins": [{"type": "calico"}]}`),
		Refresh:  time.Hour, Check: time.Second, Ready: func() bool { return true }, Log: zap.NewNop(),
		Token: func(ctx context.Context) (install.Credential, error) {
			token := expiring
			if lives++; lives > 1 {
				given, err := api.RequestToken(ctx, "kube-system", "manx-cni-plugin", "", time.Hour)
				if err != nil {
					return install.Credential{}, err
				}
				token = given.Token
			}
			text, err := install.Kubeconfig(server.URL, server.CA(), false, token)
			return install.Credential{Kubeconfig: text, Expires: time.Now().Add(time.Hour),
				Refused: func(ctx context.Context) bool { return kubeapi.Refused(ctx, config, token) }}, err
		}}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- k.Run(ctx) }()
	next := func(old string) string {
		t.Helper()
		var token string
		var err error
		for end := time.Now().Add(2 * time.Minute); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
			token, err = tokenIn(folder)
			if err == nil && token != old && !kubeapi.Refused(t.Context(), config, token) {
				return token
			}
		}
		t.Fatalf("the file has no new token that is accepted: %v", err)
		return ""
	}
	second := next(expiring)
	time.Sleep(5 * time.Second) // several checks
	if token, err := tokenIn(folder); err != nil || token != second {
		t.Errorf("a token that is accepted was replaced (%v)", err)
	}
	server.Request(t, http.MethodDelete, pluginAccount, nil)
	server.Request(t, http.MethodPost, filepath.Dir(pluginAccount), account)
	third := next(second)
	server.Stop()
	if kubeapi.Refused(t.Context(), config, third) {
		t.Error("without an API a token counts as refused")
	}
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// tokenIn reads the kubeconfig as the plugin does.
func tokenIn(f install.Folder) (string, error) {
	text, err := os.ReadFile(filepath.Join(f.Dir, install.KubeconfigName))
	if err != nil {
		return "", err
	}
	var c *rest.Config
	if c, err = clientcmd.RESTConfigFromKubeConfig(text); err != nil {
		return "", fmt.Errorf("%w: %q", err, text)
	}
	return c.BearerToken, nil
}
