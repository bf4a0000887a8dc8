package model

import (
	"errors"
	"fmt"
	"strings"
)

// Root is the prefix of everything Calico keeps in etcd.
const Root = "/calico/"

const (
	resources = "/calico/resources/v3/projectcalico.org/"
	ipamRoot  = "/calico/ipam/v2/"
)

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
	if info.Kubernetes {
		return "", ErrKubernetes
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
	if info.Kubernetes {
		return nil, ErrKubernetes
	}
	return info.path.prefix(namespace), nil
}

// kindsByPrefix finds the kind of a path from what pathPrefix cuts off.
var kindsByPrefix = func() map[string]KindInfo {
	m := map[string]KindInfo{}
	for _, i := range kinds {
		for _, p := range i.path.prefix("") {
			m[p] = i
		}
	}
	return m
}()

// pathPrefix is the part of a path that tells its kind, including the slash behind it if there is one.
func pathPrefix(path string) string {
	for _, root := range []string{resources, ipamRoot} {
		if rest, ok := strings.CutPrefix(path, root); ok {
			if i := strings.IndexByte(rest, '/'); i >= 0 {
				return path[:len(root)+i+1]
			}
			return path
		}
	}
	return ""
}

// ParseEtcdPath finds the key that a path of etcd spells. ok is false for a path that Manx has no use for;
// err says why a path in the range of a known kind cannot be read.
func ParseEtcdPath(path string) (k Key, ok bool, err error) {
	prefix := pathPrefix(path)
	info, ok := kindsByPrefix[prefix]
	if !ok {
		return Key{}, false, nil
	}
	rest := path[len(prefix):]
	if info.Kind == KindBlockAffinity && !strings.Contains(rest, "/") {
		return Key{}, false, nil // the marker that old releases wrote for each host
	}
	k, err = info.path.parse(prefix, rest)
	if err != nil {
		return Key{Kind: info.Kind, Name: rest}, true, fmt.Errorf("key %s: %w", path, err)
	}
	return k, true, nil
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
			if strings.Contains(k.Name, "/") || strings.Contains(k.Namespace, "/") {
				return "", fmt.Errorf("%s: a name cannot contain a slash", k)
			}
			if namespaced {
				return base + k.Namespace + "/" + k.Name, nil
			}
			return base + k.Name, nil
		},
		parse: func(_, rest string) (Key, error) {
			if !namespaced {
				if rest == "" || strings.Contains(rest, "/") {
					return Key{}, fmt.Errorf("want NAME, have %q", rest)
				}
				return Key{Kind: kind, Name: rest}, nil
			}
			ns, name, ok := strings.Cut(rest, "/")
			if !ok || ns == "" || name == "" || strings.Contains(name, "/") {
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
		if !ok || a.Host == "" || (a.Type != AffinityHost && a.Type != AffinityVirtual) {
			return "", fmt.Errorf("%s: want host/NODE/CIDR or virtual/NAME/CIDR", k)
		}
		return fmt.Sprintf("/calico/ipam/v2/%s/%s/%s/block/%s", a.Type, a.Host, family(a.CIDR), dashed(a.CIDR)), nil
	},
	parse: func(prefix, rest string) (Key, error) {
		parts := strings.Split(rest, "/")
		if len(parts) != 4 || parts[0] == "" || parts[2] != "block" {
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
	parse: func(_, rest string) (Key, error) {
		if rest == "" {
			return Key{}, errors.New("the handle's ID is missing")
		}
		return HandleKey(rest), nil
	},
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
