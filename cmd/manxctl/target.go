package main

import (
	"cmp"
	"slices"
	"strings"

	"github.com/manxnet/manx/datastore/model"
)

// target is an operand of the command line: a kind, and names or none.
type target struct {
	kind      model.KindInfo
	names     []string
	namespace string // of a document; else that of the flags
}

// key returns the key of one of the names.
func (t target) key(n namespaces, name string) model.Key {
	k := model.Key{Kind: t.kind.Kind, Namespace: t.namespace, Name: name}
	if t.kind.Namespaced && k.Namespace == "" {
		k.Namespace = n.orDefault()
	}
	return k
}

// parseTargets parses "KIND", "KIND NAME..." or "KIND/NAME...".
func parseTargets(args []string) ([]target, error) {
	if len(args) == 0 {
		return nil, usagef("name a kind, for instance %q, or a file with -f", "bgppeers")
	}
	if !strings.Contains(args[0], "/") {
		kind, err := findKind(args[0])
		return []target{{kind: kind, names: args[1:]}}, err
	}
	var targets []target
	for _, a := range args {
		word, name, ok := strings.Cut(a, "/")
		if !ok || name == "" {
			return nil, usagef("%q: want KIND/NAME", a)
		}
		kind, err := findKind(word)
		if err != nil {
			return nil, err
		}
		targets = append(targets, target{kind: kind, names: []string{name}})
	}
	return targets, nil
}

// findKind returns the kind of a word: its plural, one of its short names, or its name, in any case.
func findKind(word string) (model.KindInfo, error) {
	w := strings.ToLower(word)
	for _, k := range model.Kinds() {
		if k.Plural == w || slices.Contains(k.Aliases, w) {
			return k, nil
		}
	}
	for _, k := range model.Kinds() {
		if strings.ToLower(string(k.Kind)) == w {
			return k, nil
		}
	}
	for _, k := range model.KubernetesKinds() {
		if k.Plural == w || slices.Contains(k.Aliases, w) {
			return model.KindInfo{}, usagef("kind %q %v", word, model.ErrKubernetes)
		}
	}
	if hint := model.KindHint(word); hint != "" {
		return model.KindInfo{}, usagef("kind %q is not known: %s", word, hint)
	}
	return model.KindInfo{}, usagef("kind %q is not known. The kinds are: %s", word, strings.Join(kindNames(), ", "))
}

func kindNames() []string {
	var names []string
	for _, k := range model.Kinds() {
		names = append(names, k.Plural)
	}
	slices.Sort(names)
	return names
}

// namespaces are the flags -n and -A.
type namespaces struct {
	name string
	all  bool
	// context is the namespace of the kubeconfig's context, as plugin of kubectl; empty: "default".
	context string
}

// given reports whether the user chose namespaces.
func (n namespaces) given() bool { return n.all || n.name != "" }

// orDefault returns the namespace for one object.
func (n namespaces) orDefault() string {
	return cmp.Or(n.name, n.context, "default")
}

// fit refuses namespaces for kinds without one.
func (n namespaces) fit(targets []target) error {
	for _, t := range targets {
		switch {
		case t.kind.Namespaced && n.all && len(t.names) > 0:
			return usagef("%s %q: a name needs one namespace: use -n instead of -A", t.kind.Kind, t.names[0])
		case !t.kind.Namespaced && n.given():
			return usagef("%s is not namespaced: leave out -n and -A", t.kind.Kind)
		}
	}
	return nil
}
