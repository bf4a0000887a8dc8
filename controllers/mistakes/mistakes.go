// Package mistakes finds objects that can be used although they break a rule for writers: the API server cannot judge
// every rule, and does not know the relations between objects.
package mistakes

import (
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"

	"github.com/manxnet/manx/controllers/deletions"
	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/datastore/validation"
)

// Kinds are the kinds whose objects people write: shared are those that the controllers read, too. The other kinds are
// those of programs: blocks, endpoints, nodes.
func Kinds() (shared, further []model.Kind) {
	return append(model.PolicyKinds(), model.KindClusterInformation, model.KindHostEndpoint, model.KindIPPool,
			model.KindIPReservation, model.KindKubeControllers, model.KindTier),
		[]model.Kind{model.KindBGPConfiguration, model.KindBGPFilter, model.KindBGPPeer, model.KindCalicoNodeStatus,
			model.KindFelixConfiguration, model.KindGlobalNetworkSet, model.KindNetworkSet,
			model.KindStagedKubernetesNetworkPolicy}
}

func judged(kind model.Kind) bool {
	shared, further := Kinds()
	return slices.Contains(shared, kind) || slices.Contains(further, kind)
}

// dependents are the kinds with rules about objects of a kind.
func dependents(kind model.Kind) []model.Kind {
	switch kind {
	case model.KindBGPFilter:
		return []model.Kind{model.KindBGPPeer}
	case model.KindIPPool:
		return []model.Kind{model.KindIPPool}
	case model.KindTier:
		return model.PolicyKinds()
	}
	return nil
}

// Finder follows the objects of one datastore.Tables. The zero Finder has seen none.
type Finder struct {
	seen  *datastore.Snapshot
	texts map[model.Key]string
}

// Update judges the objects that have changed, and those with rules about them.
func (f *Finder) Update(now *datastore.Snapshot) {
	if f.texts == nil {
		f.texts = map[model.Key]string{}
	}
	again := map[model.Kind]bool{}
	for ch := range now.Changes(f.seen) {
		if !judged(ch.Key.Kind) {
			continue
		}
		f.judge(now, ch.Key)
		for _, kind := range dependents(ch.Key.Kind) {
			again[kind] = true
		}
	}
	for kind := range again {
		for o := range now.All(kind) {
			f.judge(now, o.Key)
		}
	}
	f.seen = now
}

// Ready reports whether there was an update.
func (f *Finder) Ready() bool { return f.seen != nil }

// All visits the objects that break a rule, and a text about the rules. It leaves out those whose newest version cannot
// be used at all: another Event tells of them.
func (f *Finder) All() iter.Seq2[*model.Object, string] {
	return func(yield func(*model.Object, string) bool) {
		if !f.Ready() {
			return
		}
		unusable := map[model.Key]bool{}
		for q := range f.seen.Quarantined() {
			unusable[q.Object.Key] = true
		}
		for key, text := range f.texts {
			if o := f.seen.Get(key); o != nil && !unusable[key] && !yield(o, text) {
				return
			}
		}
	}
}

func (f *Finder) judge(r model.Reader, key model.Key) {
	delete(f.texts, key)
	if o := r.Get(key); o != nil {
		if errs := Broken(r, o); len(errs) > 0 {
			f.texts[key] = text(errs)
		}
	}
}

// Broken lists the rules that an object breaks, alone and with others.
func Broken(r model.Reader, o *model.Object) []model.FieldError {
	errs := validation.Validate(o.Key, o.Value)
	switch v := o.Value.(type) {
	case *model.BGPPeer:
		return append(errs, validation.CheckPeerFilters(v, r)...)
	case *model.IPPool:
		// Of two pools the older one is right.
		if other := deletions.Overlapped(r, v); other != "" && v.DeletionTimestamp == nil {
			errs = append(errs, model.FieldError{Field: "spec.cidr", Value: v.Spec.CIDR,
				Rule: "overlaps the older pool " + other})
		}
		return errs
	}
	if model.PolicyTier(o.Value) != "" {
		errs = append(errs, validation.CheckPolicyTier(o.Value, r)...)
	}
	return errs
}

// A text has at most so many broken rules, and so many bytes of each value.
const (
	mostRules = 5
	mostBytes = 100
)

// text is the same for the same rules.
func text(errs []model.FieldError) string {
	lines := map[string]bool{}
	for _, e := range errs {
		if value := fmt.Sprint(e.Value); len(value) > mostBytes {
			e.Value = strings.ToValidUTF8(value[:mostBytes], "") + "..." // the cut may be inside of a character
		}
		lines[e.Error()] = true
	}
	all := slices.Sorted(maps.Keys(lines))
	shown := "it is used, although it breaks a rule: " + strings.Join(all[:min(len(all), mostRules)], "; ")
	if more := len(all) - mostRules; more > 0 {
		shown += fmt.Sprintf("; and %d more", more)
	}
	return shown
}
