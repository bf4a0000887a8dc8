package node

import (
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"strings"
)

// Kinds of detection methods, as IP_AUTODETECTION_METHOD names them.
const (
	firstFound    = "first-found"
	byInterface   = "interface"
	skipInterface = "skip-interface"
	byCIDR        = "cidr"
	canReach      = "can-reach"
	kubernetesIP  = "kubernetes-internal-ip"
)

// method selects one of the host's addresses.
type method struct {
	text        string
	kind        string
	patterns    []*regexp.Regexp
	cidrs       []netip.Prefix
	destination string
}

// String returns the method as the user wrote it.
func (m method) String() string { return m.text }

// parseMethod parses a detection method: "" and first-found, interface=REGEX,.. skip-interface=REGEX,.. cidr=CIDR,..
// can-reach=DESTINATION or kubernetes-internal-ip.
func parseMethod(text string) (method, error) {
	kind, value, _ := strings.Cut(text, "=")
	m := method{text: text, kind: kind}
	var err error
	switch kind {
	case byInterface, skipInterface:
		m.patterns, err = parseList(value, regexp.Compile)
	case byCIDR:
		m.cidrs, err = parseList(value, netip.ParsePrefix)
	case canReach:
		m.destination = strings.TrimSpace(value)
		if m.destination == "" {
			err = errNoValue
		}
	default:
		switch text {
		case "":
			m.text, m.kind = firstFound, firstFound
		case firstFound, kubernetesIP:
		default:
			err = errors.New("want first-found, interface=REGEX,.. skip-interface=REGEX,.. cidr=CIDR,.. " +
				"can-reach=DESTINATION or kubernetes-internal-ip")
		}
	}
	if err != nil {
		return method{}, fmt.Errorf("detection method %q: %w", text, err)
	}
	return m, nil
}

var errNoValue = errors.New("the value after \"=\" is missing")

func parseList[T any](text string, parse func(string) (T, error)) ([]T, error) {
	var list []T
	for item := range strings.SplitSeq(text, ",") {
		item = strings.TrimSpace(item)
		if item == "" {
			continue
		}
		v, err := parse(item)
		if err != nil {
			return nil, err
		}
		list = append(list, v)
	}
	if len(list) == 0 {
		return nil, errNoValue
	}
	return list, nil
}

// excluded matches the interfaces of container engines, virtual machines and Calico itself: their addresses never reach
// another host.
var excluded = mustPatterns(`^docker`, `^cbr`, `^dummy`, `^podman`, `^virbr`, `^lxcbr`, `^veth`, `^lo`, `^br-`, `^cali`,
	`^tunl`, `^flannel`,
	`^kube-ipvs`, `^cni`, `^vxlan\.calico`, `^vxlan-v6\.calico`, `^wireguard\.cali`, `^wg-v6\.cali`, `^nodelocaldns`)

func mustPatterns(texts ...string) []*regexp.Regexp {
	var patterns []*regexp.Regexp
	for _, t := range texts {
		patterns = append(patterns, regexp.MustCompile(t))
	}
	return patterns
}

func matching(patterns []*regexp.Regexp, name string) *regexp.Regexp {
	for _, p := range patterns {
		if p.MatchString(name) {
			return p
		}
	}
	return nil
}
