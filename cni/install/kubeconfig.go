package install

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"

	"github.com/manxnet/manx/datastore/safefile"
)

const (
	// KubeconfigName is the name of the file with the token. It is Calico's, so that a node can be switched between the
	// two.
	KubeconfigName = "calico-kubeconfig"
	// TLSFolder holds copies of the certificates for etcd.
	TLSFolder = "calico-tls"
)

// Kubeconfig returns a kubeconfig with a token, in JSON, which is valid YAML. Without a CA the server's certificate is
// verified with the host's CAs; with insecure it is not verified.
func Kubeconfig(server string, ca []byte, insecure bool, token string) ([]byte, error) {
	cluster := map[string]any{"server": server}
	switch {
	case insecure:
		cluster["insecure-skip-tls-verify"] = true
	case len(ca) > 0:
		cluster["certificate-authority-data"] = base64.StdEncoding.EncodeToString(ca)
	}
	text, err := json.MarshalIndent(map[string]any{
		"apiVersion": "v1", "kind": "Config", "current-context": "calico-context",
		"clusters": []any{map[string]any{"name": "local", "cluster": cluster}},
		"users":    []any{map[string]any{"name": "calico", "user": map[string]any{"token": token}}},
		"contexts": []any{map[string]any{"name": "calico-context", "context": map[string]any{
			"cluster": "local", "user": "calico"}}},
	}, "", "  ")
	return append(text, '\n'), err
}

// writeKubeconfig writes the kubeconfig, readable by root only.
func (f Folder) writeKubeconfig(content []byte) error {
	if err := safefile.Replace(f.path(KubeconfigName), content, 0o600); err != nil {
		return fmt.Errorf("kubeconfig of the CNI plugin: %w", err)
	}
	return nil
}

// copyTLS copies the certificates for etcd, by name (etcd-ca, etcd-cert, etcd-key) and source. The copies are readable
// by root only.
func (f Folder) copyTLS(files map[string]string) error {
	for name, source := range files {
		content, err := os.ReadFile(source) // readable by this process; a mounted secret is a link
		if err == nil {
			err = safefile.Replace(f.path(TLSFolder+"/"+name), content, 0o600)
		}
		if err != nil {
			return fmt.Errorf("certificates of the CNI plugin: %w", err)
		}
	}
	return nil
}
