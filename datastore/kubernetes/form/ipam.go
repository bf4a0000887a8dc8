package form

import (
	"crypto/sha256"
	"crypto/sha3"
	"encoding/base32"
	"encoding/hex"
	"net/netip"
	"strings"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/manxnet/manx/datastore/model"
)

// Labels of every BlockAffinity, by which those of one owner are listed.
const (
	labelHostname     = "projectcalico.org/hostname-hash"
	labelAffinityType = "projectcalico.org/affinity-type"
	labelIPVersion    = "projectcalico.org/ip-version"
)

// UnlabelledAffinities selects the BlockAffinities of old releases, which wrote no labels. Lists by AffinitySelector do
// not find them: their owner updates each of its own once when it starts, which adds the labels.
const UnlabelledAffinities = "!" + labelAffinityType

// AffinitySelector is the label selector that finds the labelled BlockAffinities of an owner as Store.List has it:
// "host/node-1" or "virtual/load-balancer".
func AffinitySelector(owner string) string {
	typ, host, _ := strings.Cut(owner, "/")
	return labels.SelectorFromSet(labels.Set{labelAffinityType: typ, labelHostname: hostnameHash(host)}).String()
}

// Deleted tells whether an object of an IPAM kind bears the mark of a deletion that has begun: it counts as gone, and
// whoever sees it completes the deletion.
func Deleted(o *model.Object) bool {
	switch v := o.Value.(type) {
	case *model.Block:
		return v.Deleted
	case *model.BlockAffinity:
		return v.Deleted
	case *model.Handle:
		return v.Deleted
	}
	return false
}

// hostnameHash is a host's name as the value of a label, which could not hold a long one.
func hostnameHash(host string) string {
	sum := sha3.Sum256([]byte(host))
	return base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(sum[:])
}

// blockName is a CIDR as the name of a resource.
func blockName(cidr netip.Prefix) string {
	return strings.NewReplacer(".", "-", ":", "-", "/", "-").Replace(cidr.Masked().String())
}

// longestName is how long the name of a custom resource may be (RFC 1123, as Kubernetes limits it).
const longestName = 253

// affinityName shortens the owner's name where the whole would be too long, and tells such names apart by a hash.
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
