package plan

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/manxnet/manx/datastore/codec"
	"github.com/manxnet/manx/datastore/kubernetes/form"
	"github.com/manxnet/manx/datastore/model"
)

// customResource is the apiVersion of Calico's objects in Kubernetes' stored form.
const customResource = "crd.projectcalico.org/v1"

// forms are the readers of documents in another than the datastore's form, by apiVersion and kind.
var forms = map[string]func(*reader, found){
	"v1/Node":                           (*reader).takeKubernetesNode,
	"v1/Secret":                         (*reader).takeSecret,
	"/Secret":                           (*reader).takeSecret,
	"/BlockAffinity":                    (*reader).takeAffinity,
	customResource + "/BlockAffinity":   (*reader).takeAffinity,
	model.APIVersion + "/BlockAffinity": (*reader).takeAffinity,
}

// passwords are the Secrets of the files.
type passwords map[string]map[string]string

// Password implements bgp.PasswordSource.
func (p passwords) Password(secret, key string) (string, error) {
	switch value, ok := p[secret][key]; {
	case !ok:
		return "", errors.New("it is not in the files")
	case strings.TrimSpace(value) == "":
		return "", errors.New("it is empty")
	default:
		return value, nil
	}
}

// Place implements bgp.PasswordSource.
func (p passwords) Place(secret, key string) string {
	return fmt.Sprintf("a Secret %s with the key %s in the files", secret, key)
}

// takeSecret reads a Secret. No remark contains one of its values.
func (r *reader) takeSecret(f found) {
	var doc struct {
		Data       map[string][]byte `json:"data"`
		StringData map[string]string `json:"stringData"`
	}
	switch err := json.Unmarshal(f.JSON, &doc); {
	case f.meta.Name == "":
		r.remark(f.place, "metadata", "Secret is skipped: metadata.name is missing")
		return
	case err != nil:
		r.remark(f.place, "data", "Secret %s is skipped: want base64 in data and text in stringData", f.meta.Name)
		return
	case f.meta.Namespace != "" && f.meta.Namespace != r.namespace:
		r.remark(f.place, "metadata.namespace", "Secret %s/%s is skipped: passwords are read in namespace %s",
			f.meta.Namespace, f.meta.Name, r.namespace)
		return
	}
	f.secret = map[string]string{}
	for k, v := range doc.Data {
		f.secret[k] = string(v)
	}
	maps.Copy(f.secret, doc.StringData)
	for k, v := range f.secret {
		f.secret[k] = strings.TrimRight(v, "\r\n")
	}
	key := model.Key{Kind: "Secret", Namespace: r.namespace, Name: f.meta.Name}
	r.found[key] = append(r.found[key], f)
}

// takeAffinity reads the affinity of a node to a block: in Kubernetes' stored form, or in manxctl's output, with the
// owner and block in the name.
func (r *reader) takeAffinity(f found) {
	raw, err := withRevision(f.JSON)
	if err != nil {
		r.remark(f.place, "spec", "BlockAffinity %s is skipped: %v", f.meta.Name, err)
		return
	}
	if key := (model.Key{Kind: model.KindBlockAffinity, Name: f.meta.Name}); isAffinity(key) {
		var doc struct {
			Spec json.RawMessage `json:"spec"`
		}
		err := json.Unmarshal(f.JSON, &doc)
		r.enter(f, key, doc.Spec, err)
		return
	}
	group := form.V1
	if f.APIVersion == string(form.V3) {
		group = form.V3
	}
	o, err := form.Decode(group, model.KindBlockAffinity, raw)
	switch {
	case err != nil:
		r.remark(f.place, "spec", "BlockAffinity %s is skipped: %v", f.meta.Name, err)
		return
	case o.Err != nil || !isAffinity(o.Key):
		r.remark(f.place, "spec", "BlockAffinity %s is skipped: want spec.node and spec.cidr, or the name "+
			"host/NODE/CIDR: %v",
			f.meta.Name, o.Err)
		return
	}
	kept, err := codec.Encode(o)
	r.enter(f, o.Key, kept, err)
}

func isAffinity(k model.Key) bool {
	_, ok := k.Affinity()
	return ok
}

// withRevision sets a revision in a document of a file, as in a document of the API.
func withRevision(document []byte) ([]byte, error) {
	var o map[string]json.RawMessage
	if err := json.Unmarshal(document, &o); err != nil {
		return nil, err
	}
	var meta map[string]any
	if err := json.Unmarshal(o["metadata"], &meta); err != nil {
		return nil, err
	}
	if text, _ := meta["resourceVersion"].(string); text == "" {
		meta["resourceVersion"] = "1"
	}
	var err error
	if o["metadata"], err = json.Marshal(meta); err != nil {
		return nil, err
	}
	return json.Marshal(o)
}

// takeKubernetesNode reads a Node of Kubernetes as the Calico node of its annotations.
func (r *reader) takeKubernetesNode(f found) {
	raw, err := withRevision(f.JSON)
	var n corev1.Node
	if err == nil {
		err = json.Unmarshal(raw, &n)
	}
	switch {
	case f.meta.Name == "":
		r.remark(f.place, "metadata", "Node is skipped: metadata.name is missing")
		return
	case err != nil:
		r.remark(f.place, "metadata", "Node %s is skipped: %v", f.meta.Name, err)
		return
	}
	o, notices := form.Node(&n, form.Config{})
	for _, notice := range notices {
		r.remark(f.place, "metadata.annotations", "%s", notice)
	}
	kept, err := codec.Encode(o)
	r.enter(f, o.Key, kept, err)
}
