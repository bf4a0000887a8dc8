package install

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"github.com/manxnet/manx/datastore/safefile"
)

// DefaultTemplate returns the default network configuration, with Calico's tokens. Kubernetes policy applies if there
// is a Kubernetes API.
func DefaultTemplate(kubernetes bool) string {
	pods := ""
	if kubernetes {
		pods = `,
      "policy": {"type": "k8s"},
      "kubernetes": {"kubeconfig": "__KUBECONFIG_FILEPATH__"}`
	}
	return `{
  "name": "k8s-pod-network",
  "cniVersion": "1.0.0",
  "plugins": [
    {
      "type": "calico",
      "log_level": "__LOG_LEVEL__",
      "log_file_path": "__LOG_FILE_PATH__",
      "datastore_type": "__DATASTORE_TYPE__",
      "etcd_endpoints": "__ETCD_ENDPOINTS__",
      "etcd_key_file": "__ETCD_KEY_FILE__",
      "etcd_cert_file": "__ETCD_CERT_FILE__",
      "etcd_ca_cert_file": "__ETCD_CA_CERT_FILE__",
      "calico_api_group": "__CALICO_API_GROUP__",
      "nodename": "__KUBERNETES_NODE_NAME__",
      "mtu": __CNI_MTU__,
      "ipam": {"type": "calico-ipam"}` + pods + `
    },
    {"type": "portmap", "snat": true, "capabilities": {"portMappings": true}}
  ]
}
`
}

// Conflist fills in a template: the value of NAME replaces a token __NAME__. The result must be a network configuration
// list in JSON.
func Conflist(template string, values map[string]string) ([]byte, error) {
	var pairs []string
	for name, value := range values {
		text, err := json.Marshal(value) // a value is part of a string, or a number
		if err != nil {
			return nil, err
		}
		pairs = append(pairs, "__"+name+"__", string(text[1:len(text)-1]))
	}
	content := strings.NewReplacer(pairs...).Replace(template)
	var list struct {
		Name    string           `json:"name"`
		Plugins []map[string]any `json:"plugins"`
	}
	if err := json.Unmarshal([]byte(content), &list); err != nil {
		return nil, fmt.Errorf("the network configuration is no JSON once its tokens are filled in: %w", err)
	}
	if list.Name == "" || len(list.Plugins) == 0 {
		return nil, errors.New("the network configuration has no name or no plugins")
	}
	if !strings.HasSuffix(content, "\n") {
		content += "\n"
	}
	return []byte(content), nil
}

// requireKey is the key of a network configuration that makes an ADD wait for policy.
const requireKey = "require_policy_table"

// pluginTypes are the names of the network plugin.
var pluginTypes = []string{"calico", "manx", "manx-cni"}

// RequirePolicy returns a network configuration list with the setting that no container starts before policy is
// programmed, for each plugin of Manx that does not set it itself.
func RequirePolicy(conflist []byte) ([]byte, error) {
	d := json.NewDecoder(bytes.NewReader(conflist))
	d.UseNumber()
	var list map[string]any
	if err := d.Decode(&list); err != nil {
		return nil, err
	}
	plugins, _ := list["plugins"].([]any)
	for _, p := range plugins {
		plugin, ok := p.(map[string]any)
		if !ok || !slices.Contains(pluginTypes, fmt.Sprint(plugin["type"])) {
			continue
		}
		if _, set := plugin[requireKey]; !set {
			plugin[requireKey] = true
		}
	}
	text, err := json.MarshalIndent(list, "", "  ")
	return append(text, '\n'), err
}

const (
	// longestFile bounds the size of a configuration that is read, in bytes.
	longestFile = 1 << 20
	// beforeSuffix is the suffix of a replaced conflist: runtimes do not read it.
	beforeSuffix = ".before-manx"
	// recordName is the file that records the installed conflist.
	recordName = "manx-cni.installed"
)

// record describes the written conflist.
type record struct {
	Conflist string `json:"conflist"` // its name
	// SHA256 are the sums of the last written conflist, and of its predecessor: a process that died in between has left
	// either.
	SHA256 []string `json:"sha256"`
}

// Folder is a folder of network configurations. Dir is its path for this process.
type Folder struct{ Dir string }

func (f Folder) path(name string) string { return filepath.Join(f.Dir, name) }

// writeConflist writes the conflist, as the last of all files. A foreign one of the same name is kept beside it, and
// Remove restores it.
func (f Folder) writeConflist(name string, content []byte) error {
	have, err := safefile.Read(f.path(name), longestFile)
	sums := []string{sum(content)}
	switch {
	case err == nil && string(have) != string(content) && !f.ours(name, have):
		if err := safefile.Replace(f.path(name+beforeSuffix), have, 0o600); err != nil {
			return fmt.Errorf("keep the network configuration that was there: %w", err)
		}
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return err
	case err == nil && string(have) == string(content) && f.ours(name, have):
		return nil
	case err == nil && f.ours(name, have):
		sums = append(sums, sum(have))
	}
	// The record comes first: our conflist is then recognized as ours, whenever the process dies.
	text, err := json.Marshal(record{Conflist: name, SHA256: sums})
	if err == nil {
		err = safefile.Replace(f.path(recordName), append(text, '\n'), 0o600)
	}
	if err == nil {
		err = safefile.Replace(f.path(name), content, 0o600)
	}
	if err != nil {
		return fmt.Errorf("network configuration: %w", err)
	}
	return nil
}

// ours reports whether a conflist is the recorded one.
func (f Folder) ours(name string, content []byte) bool {
	r, err := f.record()
	return err == nil && r.Conflist == name && slices.Contains(r.SHA256, sum(content))
}

func (f Folder) record() (r record, err error) {
	text, err := safefile.Read(f.path(recordName), longestFile)
	if err == nil {
		err = json.Unmarshal(text, &r)
	}
	return r, err
}

func sum(content []byte) string {
	s := sha256.Sum256(content)
	return hex.EncodeToString(s[:])
}

// present reports whether the conflist exists, ours or not.
func (f Folder) present(name string) bool {
	_, err := safefile.Read(f.path(name), longestFile)
	return err == nil
}

// Remove removes the conflist, and the kubeconfig and the certificates beside it, and restores the conflist from
// before. A conflist that was changed by others since stays, with its files; then removed is false.
func (f Folder) Remove() (removed bool, err error) {
	r, err := f.record()
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("%s: %w", f.path(recordName), err)
	}
	have, err := safefile.Read(f.path(r.Conflist), longestFile)
	switch {
	case err == nil && !f.ours(r.Conflist, have):
		return false, errors.Join(remove(f.path(recordName)), remove(f.path(r.Conflist+beforeSuffix)))
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return false, err
	}
	before, err := safefile.Read(f.path(r.Conflist+beforeSuffix), longestFile)
	switch {
	case err == nil:
		err = safefile.Replace(f.path(r.Conflist), before, 0o600)
	case errors.Is(err, fs.ErrNotExist):
		err = remove(f.path(r.Conflist))
	}
	if err != nil {
		return false, err
	}
	restored := before != nil
	files := []string{r.Conflist + beforeSuffix, recordName}
	if !restored { // else they may be those of the restored one
		files = append(files, KubeconfigName, filepath.Join(TLSFolder, "etcd-ca"),
			filepath.Join(TLSFolder, "etcd-cert"),
			filepath.Join(TLSFolder, "etcd-key"))
	}
	var problems []error
	for _, name := range files {
		problems = append(problems, remove(f.path(name)))
	}
	safefile.RemoveDir(f.path(TLSFolder))
	return true, errors.Join(problems...)
}
