package bgp

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/manxnet/manx/datastore/model"
)

// annotationPrefix begins the names of annotations for settings that Calico's resources have no field for.
const annotationPrefix = "manx.io/"

// annotationMaxPrefixes of a BGPPeer limits how many prefixes each of its peers may announce; absent or 0: the daemon's
// --bgp-max-prefixes.
const annotationMaxPrefixes = annotationPrefix + "max-prefixes"

// annotationKinds lists all annotations that are known, with the kinds of objects that may have them.
func annotationKinds() map[string][]model.Kind {
	known := map[string][]model.Kind{
		annotationMaxPrefixes: {model.KindBGPPeer},
	}
	for _, name := range bfdAnnotations {
		known[name] = []model.Kind{model.KindBGPPeer, model.KindBGPConfiguration}
	}
	for _, name := range refuseAnnotations {
		known[name] = []model.Kind{model.KindBGPConfiguration}
	}
	return known
}

// noteUnknownAnnotations adds notices about annotations with our prefix that have no effect on an object of this kind,
// such as misspelled ones.
func (c *cluster) noteUnknownAnnotations(object string, kind model.Kind, annotations map[string]string) {
	known := annotationKinds()
	for name := range annotations {
		if !strings.HasPrefix(name, annotationPrefix) || slices.Contains(known[name], kind) {
			continue
		}
		var valid []string
		for _, other := range slices.Sorted(maps.Keys(known)) {
			if slices.Contains(known[other], kind) {
				valid = append(valid, other)
			}
		}
		text := "none"
		if len(valid) > 0 {
			text = strings.Join(valid, ", ")
		}
		c.note(object, fmt.Sprintf("annotation %s is ignored: it has no meaning on a %s (known there: %s)", name, kind,
			text))
	}
}

// numberAnnotation reads a number from 0 to limit; otherwise counts if it is absent or cannot be read.
func (c *cluster) numberAnnotation(
	object string, annotations map[string]string, name string, limit, otherwise uint32,
) uint32 {
	text, ok := annotations[name]
	if !ok {
		return otherwise
	}
	n, err := strconv.ParseUint(text, 10, 32)
	if err != nil || n > uint64(limit) {
		c.note(object, fmt.Sprintf("annotation %s = %q is ignored: want a number from 0 to %d", name, text, limit))
		return otherwise
	}
	return uint32(n)
}
