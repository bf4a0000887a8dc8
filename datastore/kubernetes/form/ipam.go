package form

import (
	"crypto/sha256"
	"crypto/sha3"
	"encoding/base32"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/manxnet/manx/datastore/model"
)

// Labels of every BlockAffinity, for lists by owner.
const (
	labelHostname     = "projectcalico.org/hostname-hash"
	labelAffinityType = "projectcalico.org/affinity-type"
	labelIPVersion    = "projectcalico.org/ip-version"
)

// UnlabelledAffinities selects the BlockAffinities of old releases, which wrote no labels. Lists by AffinitySelector do
// not find them: at its start their owner updates each once, which adds the labels.
const UnlabelledAffinities = "!" + labelAffinityType

// AffinitySelector returns the label selector for the labelled BlockAffinities of an owner in the form of Store.List:
// "host/node-1" or "virtual/load-balancer".
func AffinitySelector(owner string) string {
	typ, host, _ := strings.Cut(owner, "/")
	return labels.SelectorFromSet(labels.Set{labelAffinityType: typ, labelHostname: hostnameHash(host)}).String()
}

// TwoSteps reports whether Calico's programs delete objects of a kind in two steps: an update marks the object, which
// fails after a concurrent change, and only then it is deleted.
func TwoSteps(k model.Kind) bool {
	return k == model.KindIPAMBlock || k == model.KindBlockAffinity || k == model.KindIPAMHandle
}

// Deleted reports whether an object has the mark of a deletion: it counts as deleted, and its reader completes the
// deletion.
func Deleted(o *model.Object) bool {
	m := mark(o)
	return m != nil && *m
}

// Mark returns a copy of o with the mark. It is o itself for kinds without a mark, and for an object that could not be
// decoded.
func Mark(o *model.Object) *model.Object {
	if mark(o) == nil {
		return o
	}
	c := o.Clone()
	*mark(c) = true
	return c
}

// mark returns the field of the mark, nil if there is none.
func mark(o *model.Object) *bool {
	switch v := o.Value.(type) {
	case *model.Block:
		return &v.Deleted
	case *model.BlockAffinity:
		return &v.Deleted
	case *model.Handle:
		return &v.Deleted
	}
	return nil
}

// hostnameHash returns a host's name as a label value, which is limited in length.
func hostnameHash(host string) string {
	sum := sha3.Sum256([]byte(host))
	return base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(sum[:])
}

// blockName returns a CIDR as the name of a resource.
func blockName(cidr netip.Prefix) string {
	return strings.NewReplacer(".", "-", ":", "-", "/", "-").Replace(cidr.Masked().String())
}

// longestName is the longest name of a custom resource (RFC 1123, as limited by Kubernetes).
const longestName = 253

// affinityName shortens the owner's name in a name that is too long, and adds a hash to make it unique.
func affinityName(a model.Affinity) string {
	const digits = 11
	cidr := blockName(a.CIDR)
	if name := a.Host + "-" + cidr; len(name) < longestName {
		return name
	}
	sum := sha256.Sum256([]byte(a.Host + "+" + cidr))
	host := a.Host[:min(len(a.Host), longestName-1-len(cidr)-len("--")-digits)]
	return host + "-" + cidr + "-" + hex.EncodeToString(sum[:])[:digits]
}

// decodeIPAM parses a custom resource of an IPAM kind; its spec has the content of etcd's key and value.
func decodeIPAM(g Group, k model.Kind, spec json.RawMessage, own metadata, revision int64) *model.Object {
	fail := func(err error) *model.Object {
		key := model.Key{Kind: k, Name: own.Name}
		return &model.Object{Key: key, Revision: revision, Err: fmt.Errorf("%s: %w", key, err)}
	}
	var doc members
	if err := json.Unmarshal(spec, &doc); err != nil || doc == nil {
		return fail(model.FieldError{Field: "spec", Value: shortened(string(spec)), Rule: "must be an object"})
	}
	key, err := takeKey(g, k, own.Name, doc)
	if err != nil {
		return fail(err)
	}
	for _, r := range renamed[k] {
		doc.rename(r.custom, r.etcd)
	}
	if err := doc.hide(hiddenIPAM(g, key, own)); err != nil {
		return fail(err)
	}
	return decodeDocument(key, doc, revision, nil)
}

// encodeIPAM returns metadata and content of the custom resource for the document that etcd would have under key.
func encodeIPAM(g Group, key model.Key, name string, doc members, hidden *metadata) (metadata, members) {
	if hidden == nil {
		hidden = new(metadata)
	}
	own := metadata{
		Name: name, Labels: union(hidden.Labels, ownerLabels(key)),
		OwnerReferences: hidden.OwnerReferences, Finalizers: hidden.Finalizers,
	}
	own.Annotations = hidden.Annotations
	if g == V1 {
		own.Annotations = union(map[string]string{annotationFolded: foldedIPAM(key)}, hidden.Annotations)
	}
	for _, r := range renamed[key.Kind] {
		doc.rename(r.etcd, r.custom)
	}
	putKey(g, key, doc)
	return own, members{"spec": doc.text()}
}

// renamed are the fields with another name in etcd.
var renamed = map[model.Kind][]struct{ custom, etcd string }{
	model.KindIPAMBlock:  {{"affinityClaimTime", "affinity_claim_time"}},
	model.KindIPAMConfig: {{"strictAffinity", "strict_affinity"}, {"autoAllocateBlocks", "auto_allocate_blocks"}},
}

// takeKey returns the key of the custom resource with that name, and leaves in spec the content of etcd's value.
func takeKey(g Group, k model.Kind, name string, spec members) (model.Key, error) {
	var s struct{ CIDR, Node, Type, HandleID string }
	for field, to := range map[string]*string{"cidr": &s.CIDR, "node": &s.Node, "type": &s.Type,
		"handleID": &s.HandleID} {
		if text, ok := spec[field]; ok && json.Unmarshal(text, to) != nil {
			wrong := model.FieldError{Field: "spec." + field, Value: shortened(string(text)), Rule: "must be a text"}
			return model.Key{}, wrong
		}
	}
	key := model.Key{Kind: k, Name: name}
	switch k {
	case model.KindIPAMBlock, model.KindBlockAffinity:
		cidr, err := netip.ParsePrefix(s.CIDR)
		if err != nil {
			return key, model.FieldError{Field: "spec.cidr", Value: shortened(s.CIDR), Rule: "must be a CIDR"}
		}
		if k == model.KindIPAMBlock {
			key = model.BlockKey(cidr)
			delete(spec, "strictAffinity") // has no effect, but is required
			break
		}
		if s.Type == "" {
			s.Type = string(model.AffinityHost)
		}
		key = model.AffinityKey(model.Affinity{Type: model.AffinityType(s.Type), Host: s.Node, CIDR: cidr})
		spec.remove("cidr", "node", "type")
		if err := unquote(g, spec); err != nil {
			return key, err
		}
	case model.KindIPAMHandle:
		if s.HandleID != "" {
			key.Name = s.HandleID
		}
		spec.remove("handleID")
	}
	if want, err := Name(key); err != nil || want != name {
		rule := fmt.Sprintf("must be %q, as spec calls for", want)
		return key, model.FieldError{Field: "metadata.name", Value: name, Rule: rule}
	}
	return key, nil
}

// putKey adds the content of the key, and the required fields of the custom resource, to the content of etcd's value.
func putKey(g Group, key model.Key, spec members) {
	switch key.Kind {
	case model.KindIPAMBlock:
		for _, list := range []string{"allocations", "unallocated", "attributes"} {
			spec.orEmpty(list, "[]")
		}
		spec.orEmpty("sequenceNumberForAllocation", "{}")
		spec.orEmpty("affinity", "")
		spec["strictAffinity"] = json.RawMessage("false")
	case model.KindBlockAffinity:
		a, _ := key.Affinity() // Name has seen to that
		spec["cidr"] = quoted(a.CIDR.Masked().String())
		spec["node"], spec["type"] = quoted(a.Host), quoted(string(a.Type))
		spec.orEmpty("deleted", "false")
		if g == V1 {
			spec["deleted"] = quoted(string(spec["deleted"]))
		}
	case model.KindIPAMHandle:
		spec["handleID"] = quoted(key.Name)
		spec.orEmpty("block", "{}")
	case model.KindIPAMConfig:
		spec.orEmpty("strictAffinity", "false")
		spec.orEmpty("autoAllocateBlocks", "false")
	}
}

// unquote converts the text that marks deleted affinities in group V1 to a boolean.
func unquote(g Group, spec members) error {
	stored, ok := spec["deleted"]
	if g != V1 || !ok {
		return nil
	}
	var text string
	err := json.Unmarshal(stored, &text)
	deleted := false
	if err == nil && text != "" {
		deleted, err = strconv.ParseBool(text)
	}
	if err != nil {
		return model.FieldError{Field: "spec.deleted", Value: shortened(string(stored)),
			Rule: `must be "true" or "false"`}
	}
	spec["deleted"] = json.RawMessage(strconv.FormatBool(deleted))
	return nil
}

// ownerLabels returns the labels of the custom resource of an affinity; other kinds have none.
func ownerLabels(key model.Key) map[string]string {
	a, ok := key.Affinity()
	if !ok {
		return nil
	}
	version := "6"
	if a.CIDR.Addr().Is4() {
		version = "4"
	}
	return map[string]string{labelHostname: hostnameHash(a.Host), labelAffinityType: string(a.Type),
		labelIPVersion: version}
}

// foldedIPAM returns the folded metadata in group V1 of an object without metadata.
func foldedIPAM(key model.Key) string {
	text, _ := json.Marshal(metadata{Labels: ownerLabels(key)}) // texts can always be encoded
	return string(text)
}

// hiddenIPAM returns the metadata of a custom resource of an IPAM kind that does not follow from the object.
func hiddenIPAM(g Group, key model.Key, own metadata) *metadata {
	hidden := &metadata{
		OwnerReferences: own.OwnerReferences, Finalizers: own.Finalizers, Labels: own.Labels,
		Annotations: own.Annotations,
	}
	for name := range ownerLabels(key) {
		hidden.Labels = without(hidden.Labels, name)
	}
	if g == V1 && own.Annotations[annotationFolded] == foldedIPAM(key) {
		hidden.Annotations = without(hidden.Annotations, annotationFolded)
	}
	return hidden
}

func (m members) rename(from, to string) {
	if v, ok := m[from]; ok {
		m[to] = v
		delete(m, from)
	}
}

func (m members) remove(names ...string) {
	for _, n := range names {
		delete(m, n)
	}
}

// orEmpty sets a member that is missing or null to value, or removes it if value is empty.
func (m members) orEmpty(name, value string) {
	if v, ok := m[name]; ok && string(v) != "null" {
		return
	}
	if value == "" {
		delete(m, name)
		return
	}
	m[name] = json.RawMessage(value)
}
