package model

import (
	"fmt"
	"strings"
)

// Root is the prefix of everything Calico keeps in etcd.
const Root = "/calico/"

const resources = "/calico/resources/v3/projectcalico.org/"

// pathRule tells how the keys of a kind are spelt in etcd.
type pathRule struct {
	// prefix is what all paths of the kind begin with; a List or Watch of the kind reads this range.
	prefix func(namespace string) []string
	format func(Key) (string, error)
	// parse is given the prefix that matched and the path below it.
	parse func(prefix, rest string) (Key, error)
}

// EtcdPath spells k as Calico's etcd v3 key.
func EtcdPath(k Key) (string, error) {
	info, ok := Lookup(k.Kind)
	if !ok {
		return "", fmt.Errorf("unknown kind %q", k.Kind)
	}
	if k.Name == "" {
		return "", fmt.Errorf("%s: name is missing", k.Kind)
	}
	if info.Namespaced != (k.Namespace != "") {
		if info.Namespaced {
			return "", fmt.Errorf("%s %s: namespace is missing", k.Kind, k.Name)
		}
		return "", fmt.Errorf("%s %s: %s is not namespaced, but namespace %q is set", k.Kind, k.Name, k.Kind, k.Namespace)
	}
	return info.path.format(k)
}

// EtcdPrefixes lists the ranges that hold all objects of a kind, or those of one namespace if that is not empty.
func EtcdPrefixes(kind Kind, namespace string) ([]string, error) {
	info, ok := Lookup(kind)
	if !ok {
		return nil, fmt.Errorf("unknown kind %q", kind)
	}
	return info.path.prefix(namespace), nil
}

// ParseEtcdPath finds the key that a path of etcd spells. ok is false for a path of a kind that Manx does not know;
// err says why a path in the range of a known kind cannot be read.
func ParseEtcdPath(path string) (k Key, ok bool, err error) {
	for _, info := range Kinds() {
		for _, prefix := range info.path.prefix("") {
			rest, found := strings.CutPrefix(path, prefix)
			if !found {
				continue
			}
			k, err := info.path.parse(prefix, rest)
			if err != nil {
				return Key{Kind: info.Kind, Name: rest}, true, fmt.Errorf("key %s: %w", path, err)
			}
			return k, true, nil
		}
	}
	return Key{}, false, nil
}

func resourcePath(kind Kind, plural string, namespaced bool) pathRule {
	base := resources + plural + "/"
	return pathRule{
		prefix: func(ns string) []string {
			if ns != "" {
				return []string{base + ns + "/"}
			}
			return []string{base}
		},
		format: func(k Key) (string, error) {
			if namespaced {
				return base + k.Namespace + "/" + k.Name, nil
			}
			return base + k.Name, nil
		},
		parse: func(_, rest string) (Key, error) {
			// Older writers escaped these two.
			rest = strings.NewReplacer("%2f", "/", "%25", "%").Replace(rest)
			if !namespaced {
				return Key{Kind: kind, Name: rest}, nil
			}
			ns, name, ok := strings.Cut(rest, "/")
			if !ok || ns == "" || name == "" {
				return Key{}, fmt.Errorf("want NAMESPACE/NAME, have %q", rest)
			}
			return Key{Kind: kind, Namespace: ns, Name: name}, nil
		},
	}
}

var blockPath = pathRule{
	prefix: func(string) []string { return []string{"/calico/ipam/v2/assignment/"} },
	format: func(k Key) (string, error) {
		cidr, ok := k.Block()
		if !ok {
			return "", fmt.Errorf("%s: name is no CIDR", k)
		}
		return "/calico/ipam/v2/assignment/" + family(cidr) + "/block/" + dashed(cidr), nil
	},
	parse: func(_, rest string) (Key, error) {
		parts := strings.Split(rest, "/")
		if len(parts) != 3 || parts[1] != "block" {
			return Key{}, fmt.Errorf("want FAMILY/block/CIDR, have %q", rest)
		}
		cidr, err := undashed(parts[2])
		if err != nil {
			return Key{}, err
		}
		if parts[0] != family(cidr) {
			return Key{}, fmt.Errorf("%s is not of family %q", cidr, parts[0])
		}
		return BlockKey(cidr), nil
	},
}

var affinityPath = pathRule{
	// A host reads its own affinities before each assignment: that must not cost a read of everybody's.
	prefix: func(owner string) []string {
		if owner != "" {
			return []string{"/calico/ipam/v2/" + owner + "/"}
		}
		return []string{"/calico/ipam/v2/host/", "/calico/ipam/v2/virtual/"}
	},
	format: func(k Key) (string, error) {
		a, ok := k.Affinity()
		if !ok {
			return "", fmt.Errorf("%s: want TYPE/HOST/CIDR", k)
		}
		return fmt.Sprintf("/calico/ipam/v2/%s/%s/%s/block/%s", a.Type, a.Host, family(a.CIDR), dashed(a.CIDR)), nil
	},
	parse: func(prefix, rest string) (Key, error) {
		parts := strings.Split(rest, "/")
		if len(parts) != 4 || parts[2] != "block" {
			return Key{}, fmt.Errorf("want HOST/FAMILY/block/CIDR, have %q", rest)
		}
		cidr, err := undashed(parts[3])
		if err != nil {
			return Key{}, err
		}
		if parts[1] != family(cidr) {
			return Key{}, fmt.Errorf("%s is not of family %q", cidr, parts[1])
		}
		typ := AffinityType(strings.TrimSuffix(strings.TrimPrefix(prefix, "/calico/ipam/v2/"), "/"))
		return AffinityKey(Affinity{Type: typ, Host: parts[0], CIDR: cidr}), nil
	},
}

var handlePath = pathRule{
	prefix: func(string) []string { return []string{"/calico/ipam/v2/handle/"} },
	format: func(k Key) (string, error) { return "/calico/ipam/v2/handle/" + k.Name, nil },
	parse:  func(_, rest string) (Key, error) { return HandleKey(rest), nil },
}

var ipamConfigPath = pathRule{
	prefix: func(string) []string { return []string{"/calico/ipam/v2/config"} },
	format: func(Key) (string, error) { return "/calico/ipam/v2/config", nil },
	parse: func(_, rest string) (Key, error) {
		if rest != "" {
			return Key{}, fmt.Errorf("unexpected %q", rest)
		}
		return IPAMConfigKey, nil
	},
}
