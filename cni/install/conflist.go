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

// Families are the IP families in which pods get an address.
type Families struct{ V4, V6 bool }

// ipam returns what differs from the IPAM plugin's default, IPv4 alone.
func (f Families) ipam() (text string) {
	if !f.V4 {
		text += `, "assign_ipv4": "false"`
	}
	if f.V6 {
		text += `, "assign_ipv6": "true"`
	}
	return text
}

// DefaultTemplate returns the default network configuration, with Calico's tokens. Kubernetes policy applies if there
// is a Kubernetes API.
func DefaultTemplate(kubernetes bool, families Families) string {
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
      "ipam": {"type": "calico-ipam"` + families.ipam() + `}` + pods + `
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

// RequirePolicy returns a network configuration list with the setting whether a container starts only once policy is
// programmed, for each plugin of Manx that does not set it itself. The setting also tells Manx's list from Calico's.
func RequirePolicy(conflist []byte, require bool) ([]byte, error) {
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
			plugin[requireKey] = require
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
	// Own is the conflist as the template makes it, without the plugins of other programs. Older versions wrote none.
	Own json.RawMessage `json:"own,omitempty"`
}

// Folder is a folder of network configurations. Dir is its path for this process.
type Folder struct{ Dir string }

func (f Folder) path(name string) string { return filepath.Join(f.Dir, name) }

// attempts bounds how often a conflist is merged anew because another program has changed it meanwhile.
const attempts = 20

// writeConflist writes the conflist, as the last of all files. Plugins that other programs have chained in the conflist
// of that name stay, as they are and in their order; without it, those of the conflist oldName. A conflist from before
// Manx is kept beside it, once, and Remove restores it. written is false if the conflist was there already.
func (f Folder) writeConflist(name, oldName string, content []byte) (written bool, others []string, err error) {
	for range attempts {
		written, others, err = f.mergeConflist(name, oldName, content)
		if !errors.Is(err, safefile.ErrChanged) {
			break
		}
	}
	if err != nil {
		return false, nil, fmt.Errorf("network configuration: %w", err)
	}
	return written, others, nil
}

func (f Folder) mergeConflist(name, oldName string, content []byte) (written bool, others []string, err error) {
	wanted, err := parseList(content)
	if err != nil {
		return false, nil, err
	}
	have, current, err := f.conflist(name)
	if err != nil {
		return false, nil, err
	}
	r, base := f.recorded(name, wanted)
	from, text := current, content
	if current == nil && oldName != "" && oldName != name {
		if _, from, err = f.conflist(oldName); err != nil {
			return false, nil, err
		}
	}
	if from != nil {
		own := from.own(base, r.Conflist == "")
		merged := from.with(wanted, base, own)
		others = from.chosen(own, false).kinds()
		if current != nil && merged.equal(current) {
			text = have
		} else if text, err = merged.marshal(); err != nil {
			return false, nil, err
		}
	}
	sums := []string{sum(text)}
	switch ours := current != nil && r.made(have, current); {
	case ours && !bytes.Equal(text, have):
		sums = append(sums, sum(have))
	case current != nil && !ours:
		if err := f.keepBefore(name, have); err != nil {
			return false, nil, err
		}
	}
	// The record comes first: our conflist is then recognized as ours, whenever the process dies.
	if err := f.writeRecord(record{Conflist: name, SHA256: sums, Own: content}); err != nil {
		return false, nil, err
	}
	if have != nil && bytes.Equal(text, have) {
		return false, others, nil
	}
	return true, others, safefile.ReplaceIf(f.path(name), have, text, 0o600)
}

// conflist reads a conflist, nil if there is none.
func (f Folder) conflist(name string) ([]byte, *list, error) {
	text, err := safefile.Read(f.path(name), longestFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, err
	}
	l, err := parseList(text)
	if err != nil {
		return nil, nil, fmt.Errorf("%s is no network configuration, and stays: %w; correct it, or remove it",
			f.path(name), err)
	}
	return text, l, nil
}

// keepBefore keeps the configuration from before Manx. The kept one stays, unless an older version of Manx has put a
// list of its own in its place.
func (f Folder) keepBefore(name string, have []byte) error {
	if _, _, err := f.before(name); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := safefile.Replace(f.path(name+beforeSuffix), have, 0o600); err != nil {
		return fmt.Errorf("keep the network configuration that was there: %w", err)
	}
	return nil
}

// before returns the kept configuration from before Manx, with a nil list if it is none. The error wraps
// fs.ErrNotExist if there is none, or one of Manx.
func (f Folder) before(name string) ([]byte, *list, error) {
	text, err := safefile.Read(f.path(name+beforeSuffix), longestFile)
	if err != nil {
		return nil, nil, err
	}
	l, err := parseList(text)
	if err != nil {
		return text, nil, nil
	}
	if slices.ContainsFunc(l.plugins, plugged.manx) {
		return nil, nil, fmt.Errorf("%s is Manx's: %w", f.path(name+beforeSuffix), fs.ErrNotExist)
	}
	return text, l, nil
}

// made reports whether Manx wrote a conflist, whatever other programs have chained in it since.
func (r record) made(text []byte, l *list) bool {
	return slices.Contains(r.SHA256, sum(text)) || slices.ContainsFunc(l.plugins, plugged.manx)
}

// recorded returns the record of a conflist, and its own part; without one, an empty record and the given list.
func (f Folder) recorded(name string, otherwise *list) (r record, own *list) {
	r, err := f.record()
	if err != nil || r.Conflist != name {
		return record{}, otherwise
	}
	if own, err = parseList(r.Own); err != nil {
		return r, otherwise
	}
	return r, own
}

func (f Folder) record() (r record, err error) {
	text, err := safefile.Read(f.path(recordName), longestFile)
	if err == nil {
		err = json.Unmarshal(text, &r)
	}
	return r, err
}

func (f Folder) writeRecord(r record) error {
	text, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return safefile.Replace(f.path(recordName), append(text, '\n'), 0o600)
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
// before, with the plugins that other programs have in the conflist now. A conflist that is not Manx's any more stays,
// with its files. It returns sentences about what it did, none if there was nothing of Manx.
func (f Folder) Remove() (did []string, err error) {
	r, err := f.record()
	if errors.Is(err, fs.ErrNotExist) {
		return nil, remove(f.path(leftName))
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", f.path(recordName), err)
	}
	var restored, stays bool
	for range attempts {
		if did, restored, stays, err = f.removeConflist(r.Conflist); !errors.Is(err, safefile.ErrChanged) {
			break
		}
	}
	if err != nil {
		return nil, err
	}
	files := []string{r.Conflist + beforeSuffix, recordName, leftName}
	if !restored && !stays { // else they may be those of the other network
		files = append(files, KubeconfigName, filepath.Join(TLSFolder, "etcd-ca"),
			filepath.Join(TLSFolder, "etcd-cert"),
			filepath.Join(TLSFolder, "etcd-key"))
	}
	var problems []error
	for _, name := range files {
		problems = append(problems, remove(f.path(name)))
	}
	safefile.RemoveDir(f.path(TLSFolder))
	return did, errors.Join(problems...)
}

func (f Folder) removeConflist(name string) (did []string, restored, stays bool, err error) {
	path := f.path(name)
	have, current, err := f.conflist(name)
	if err != nil {
		return nil, false, false, err
	}
	usual, err := parseList([]byte(strings.ReplaceAll(DefaultTemplate(true, Families{V4: true}), "__CNI_MTU__", "0")))
	if err != nil {
		return nil, false, false, err
	}
	r, base := f.recorded(name, usual)
	if current != nil && !r.made(have, current) {
		return []string{path + " is not Manx's any more and stays"}, false, true, nil
	}
	text, before, err := f.before(name)
	none := errors.Is(err, fs.ErrNotExist)
	if err != nil && !none {
		return nil, false, false, err
	}
	var others []string
	if current != nil {
		own := current.own(base, false)
		others = current.chosen(own, false).kinds()
		if before != nil {
			back := before.chosen(before.own(base, true), true)
			if merged := current.with(back, base, own); !merged.equal(before) {
				if text, err = merged.marshal(); err != nil {
					return nil, false, false, err
				}
			}
		}
	}
	with := ""
	if len(others) > 0 {
		with = ", with the plugins of other programs: " + strings.Join(others, ", ")
	}
	if !none {
		err = safefile.ReplaceIf(path, have, text, 0o600)
		return []string{"restored the network configuration " + path + with}, true, false, err
	}
	return []string{"removed the network configuration " + path + with}, false, false, remove(path)
}
