package etcd

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/manxnet/manx/datastore/model"
)

// Root is the prefix of all data of Calico in etcd, and of Manx.
const Root = "/calico/"

const (
	resources = "/calico/resources/v3/projectcalico.org/"
	ipamRoot  = "/calico/ipam/v2/"
)

// pathRule is the mapping between keys of a kind and etcd paths.
type pathRule struct {
	// prefix returns the prefixes of all paths of the kind; a List or Watch of the kind reads these ranges.
	prefix func(namespace string) []string
	format func(model.Key) (string, error)
	// parse is called with the matched prefix and the path below it.
	parse func(prefix, rest string) (model.Key, error)
}

// Path returns the etcd v3 path of k in Calico's layout.
func Path(k model.Key) (string, error) {
	info, ok := model.Lookup(k.Kind)
	if !ok {
		return "", fmt.Errorf("unknown kind %q", k.Kind)
	}
	if info.Kubernetes {
		return "", model.ErrKubernetes
	}
	if k.Name == "" {
		return "", fmt.Errorf("%s: name is missing", k.Kind)
	}
	if info.Namespaced != (k.Namespace != "") {
		if info.Namespaced {
			return "", fmt.Errorf("%s %s: namespace is missing", k.Kind, k.Name)
		}
		return "", fmt.Errorf("%s %s: %s is not namespaced, but namespace %q is set", k.Kind, k.Name, k.Kind,
			k.Namespace)
	}
	return rules[info.Kind].format(k)
}

// Prefixes lists the ranges with all objects of a kind, or those of one namespace if that is not empty.
func Prefixes(kind model.Kind, namespace string) ([]string, error) {
	info, ok := model.Lookup(kind)
	if !ok {
		return nil, fmt.Errorf("unknown kind %q", kind)
	}
	if info.Kubernetes {
		return nil, model.ErrKubernetes
	}
	return rules[kind].prefix(namespace), nil
}

// rules are the rules of all stored kinds.
var rules = func() map[model.Kind]pathRule {
	m := map[model.Kind]pathRule{
		model.KindIPAMBlock: blockPath, model.KindBlockAffinity: affinityPath, model.KindIPAMHandle: handlePath,
		model.KindIPAMConfig: ipamConfigPath,
	}
	for _, i := range model.Kinds() {
		if i.Resource {
			m[i.Kind] = resourcePath(i.Kind, i.Plural, i.Namespaced)
		}
	}
	return m
}()

// kindsByPrefix maps the result of pathPrefix to a kind.
var kindsByPrefix = func() map[string]model.Kind {
	m := map[string]model.Kind{}
	for kind, rule := range rules {
		for _, p := range rule.prefix("") {
			m[p] = kind
		}
	}
	return m
}()

// pathPrefix returns the part of a path that identifies its kind, including the slash behind it if there is one.
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

// ParsePath returns the key of an etcd path. ok is false for a path that Manx does not use; err explains why a path in
// the range of a known kind is malformed.
func ParsePath(path string) (k model.Key, ok bool, err error) {
	prefix := pathPrefix(path)
	kind, ok := kindsByPrefix[prefix]
	if !ok {
		return model.Key{}, false, nil
	}
	rest := path[len(prefix):]
	if kind == model.KindBlockAffinity && !strings.Contains(rest, "/") {
		return model.Key{}, false, nil // the marker that old releases wrote for each host
	}
	k, err = rules[kind].parse(prefix, rest)
	if err != nil {
		return model.Key{Kind: kind, Name: rest}, true, fmt.Errorf("key %q: %w", path, err)
	}
	return k, true, nil
}

func resourcePath(kind model.Kind, plural string, namespaced bool) pathRule {
	base := resources + plural + "/"
	return pathRule{
		prefix: func(ns string) []string {
			if ns != "" {
				return []string{base + ns + "/"}
			}
			return []string{base}
		},
		format: func(k model.Key) (string, error) {
			if strings.Contains(k.Name, "/") || strings.Contains(k.Namespace, "/") {
				return "", fmt.Errorf("%s: a name cannot contain a slash", k)
			}
			if namespaced {
				return base + k.Namespace + "/" + k.Name, nil
			}
			return base + k.Name, nil
		},
		parse: func(_, rest string) (model.Key, error) {
			if !namespaced {
				if rest == "" || strings.Contains(rest, "/") {
					return model.Key{}, fmt.Errorf("want NAME, have %q", rest)
				}
				return model.Key{Kind: kind, Name: rest}, nil
			}
			ns, name, ok := strings.Cut(rest, "/")
			if !ok || ns == "" || name == "" || strings.Contains(name, "/") {
				return model.Key{}, fmt.Errorf("want NAMESPACE/NAME, have %q", rest)
			}
			return model.Key{Kind: kind, Namespace: ns, Name: name}, nil
		},
	}
}

var blockPath = pathRule{
	prefix: func(string) []string { return []string{"/calico/ipam/v2/assignment/"} },
	format: func(k model.Key) (string, error) {
		cidr, ok := k.Block()
		if !ok {
			return "", fmt.Errorf("%s: name is no CIDR", k)
		}
		return "/calico/ipam/v2/assignment/" + family(cidr) + "/block/" + dashed(cidr), nil
	},
	parse: func(_, rest string) (model.Key, error) {
		parts := strings.Split(rest, "/")
		if len(parts) != 3 || parts[1] != "block" {
			return model.Key{}, fmt.Errorf("want FAMILY/block/CIDR, have %q", rest)
		}
		cidr, err := undashed(parts[2])
		if err != nil {
			return model.Key{}, err
		}
		if parts[0] != family(cidr) {
			return model.Key{}, fmt.Errorf("%s is not of family %q", cidr, parts[0])
		}
		return model.BlockKey(cidr), nil
	},
}

var affinityPath = pathRule{
	// A host reads its own affinities before each assignment, which must not read those of other hosts.
	prefix: func(owner string) []string {
		if owner != "" {
			return []string{"/calico/ipam/v2/" + owner + "/"}
		}
		return []string{"/calico/ipam/v2/host/", "/calico/ipam/v2/virtual/"}
	},
	format: func(k model.Key) (string, error) {
		a, ok := k.Affinity()
		if !ok || a.Host == "" || (a.Type != model.AffinityHost && a.Type != model.AffinityVirtual) {
			return "", fmt.Errorf("%s: want host/NODE/CIDR or virtual/NAME/CIDR", k)
		}
		return fmt.Sprintf("/calico/ipam/v2/%s/%s/%s/block/%s", a.Type, a.Host, family(a.CIDR), dashed(a.CIDR)), nil
	},
	parse: func(prefix, rest string) (model.Key, error) {
		parts := strings.Split(rest, "/")
		if len(parts) != 4 || parts[0] == "" || parts[2] != "block" {
			return model.Key{}, fmt.Errorf("want HOST/FAMILY/block/CIDR, have %q", rest)
		}
		cidr, err := undashed(parts[3])
		if err != nil {
			return model.Key{}, err
		}
		if parts[1] != family(cidr) {
			return model.Key{}, fmt.Errorf("%s is not of family %q", cidr, parts[1])
		}
		typ := model.AffinityType(strings.TrimSuffix(strings.TrimPrefix(prefix, "/calico/ipam/v2/"), "/"))
		return model.AffinityKey(model.Affinity{Type: typ, Host: parts[0], CIDR: cidr}), nil
	},
}

var handlePath = pathRule{
	prefix: func(string) []string { return []string{"/calico/ipam/v2/handle/"} },
	format: func(k model.Key) (string, error) { return "/calico/ipam/v2/handle/" + k.Name, nil },
	parse: func(_, rest string) (model.Key, error) {
		if rest == "" {
			return model.Key{}, errors.New("the handle's ID is missing")
		}
		return model.HandleKey(rest), nil
	},
}

var ipamConfigPath = pathRule{
	prefix: func(string) []string { return []string{"/calico/ipam/v2/config"} },
	format: func(model.Key) (string, error) { return "/calico/ipam/v2/config", nil },
	parse: func(_, rest string) (model.Key, error) {
		if rest != "" {
			return model.Key{}, fmt.Errorf("unexpected %q", rest)
		}
		return model.IPAMConfigKey, nil
	},
}

// family returns "ipv4" or "ipv6", as in etcd paths.
func family(p netip.Prefix) string {
	if p.Addr().Is4() {
		return "ipv4"
	}
	return "ipv6"
}

func dashed(p netip.Prefix) string { return strings.Replace(p.Masked().String(), "/", "-", 1) }

func undashed(s string) (netip.Prefix, error) {
	i := strings.LastIndexByte(s, '-')
	if i < 0 {
		return netip.Prefix{}, fmt.Errorf("%q is no block: want ADDRESS-LENGTH", s)
	}
	p, err := netip.ParsePrefix(s[:i] + "/" + s[i+1:])
	if err == nil && p != p.Masked() {
		err = fmt.Errorf("%q has host bits set", s)
	}
	return p, err
}
