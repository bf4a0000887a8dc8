// Package loadbalancer assigns addresses of IP pools to Kubernetes' Services of type LoadBalancer.
package loadbalancer

import (
	"cmp"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	corev1 "k8s.io/api/core/v1"

	"github.com/manxnet/manx/datastore/model"
)

// The annotations of a Service, with Calico's names.
const (
	annotationPools4    = "projectcalico.org/ipv4pools"
	annotationPools6    = "projectcalico.org/ipv6pools"
	annotationAddresses = "projectcalico.org/loadBalancerIPs"
	class               = "calico"
)

// handle returns the handle of a Service's addresses. A Service that is deleted and created again has another one.
func handle(namespace, name, uid string) string {
	sum := sha256.Sum256([]byte(strings.ToLower(name + "-" + namespace + "-" + uid)))
	text := base64.RawURLEncoding.EncodeToString(sum[:])
	return "lb-" + strings.NewReplacer("-", "", "_", "", ".", "").Replace(text)
}

func handleOf(s *corev1.Service) string { return handle(s.Namespace, s.Name, string(s.UID)) }

// managed reports whether this controller assigns a Service's addresses.
func managed(s *corev1.Service, requestedOnly bool) bool {
	if s.Spec.Type != corev1.ServiceTypeLoadBalancer ||
		s.Spec.LoadBalancerClass != nil && *s.Spec.LoadBalancerClass != class {
		return false
	}
	a := s.Annotations
	return !requestedOnly || s.Spec.LoadBalancerClass != nil || s.Spec.LoadBalancerIP != "" ||
		a[annotationPools4] != "" || a[annotationPools6] != "" || a[annotationAddresses] != ""
}

// pools are the pools for load balancers, by name.
type pools map[string]*model.IPPool

// forServices reports whether a pool is for load balancers.
func forServices(p *model.IPPool) bool {
	return p.DeletionTimestamp == nil && slices.Contains(p.Spec.AllowedUses, v3.IPPoolAllowedUseLoadBalancer)
}

// manual reports whether an address is of a pool that is used only on request.
func (p pools) manual(a netip.Addr) bool {
	for _, x := range p {
		cidr, err := netip.ParsePrefix(x.Spec.CIDR)
		if err == nil && cidr.Contains(a) {
			return x.Spec.AssignmentMode != nil && *x.Spec.AssignmentMode == v3.Manual
		}
	}
	return false
}

// plan lists the changes for a Service.
type plan struct {
	keep    []netip.Addr
	release []netip.Addr
	// assign are requested addresses; num4 and num6 are the numbers of other addresses to assign.
	assign         []netip.Addr
	num4, num6     int
	pools4, pools6 []netip.Prefix
}

// request is a Service's request.
type request struct {
	addresses      []netip.Addr
	pools4, pools6 []netip.Prefix // nil: any
}

// decide returns the changes of a Service's addresses. The error names a malformed part of the Service; then nothing
// changes.
func decide(s *corev1.Service, have []netip.Addr, p pools) (plan, error) {
	w, err := requestOf(s, p)
	if err != nil {
		return plan{}, err
	}
	x := plan{pools4: w.pools4, pools6: w.pools6}
	for _, a := range inOrder(s, have) {
		if fits(s, w, p, a) && !slices.ContainsFunc(x.keep, func(b netip.Addr) bool { return a.Is4() == b.Is4() }) {
			x.keep = append(x.keep, a)
		} else {
			x.release = append(x.release, a)
		}
	}
	if w.addresses != nil {
		for _, a := range w.addresses {
			if !slices.Contains(x.keep, a) {
				x.assign = append(x.assign, a)
			}
		}
		return x, nil
	}
	for _, f := range s.Spec.IPFamilies {
		v4 := f == corev1.IPv4Protocol
		switch has := slices.ContainsFunc(x.keep, func(a netip.Addr) bool { return a.Is4() == v4 }); {
		case has:
		case v4:
			x.num4 = 1
		default:
			x.num6 = 1
		}
	}
	return x, nil
}

// inOrder puts the addresses in the Service's status first, so that two leaders that assigned one each agree on one.
func inOrder(s *corev1.Service, have []netip.Addr) []netip.Addr {
	shown := func(a netip.Addr) int {
		if slices.ContainsFunc(s.Status.LoadBalancer.Ingress, func(i corev1.LoadBalancerIngress) bool {
			return i.IP == a.String()
		}) {
			return 0
		}
		return 1
	}
	return slices.SortedFunc(slices.Values(have), func(a, b netip.Addr) int {
		return cmp.Or(cmp.Compare(shown(a), shown(b)), a.Compare(b))
	})
}

// fits reports whether an address may stay.
func fits(s *corev1.Service, w request, p pools, a netip.Addr) bool {
	family, wanted := corev1.IPv6Protocol, w.pools6
	if a.Is4() {
		family, wanted = corev1.IPv4Protocol, w.pools4
	}
	switch {
	case w.addresses != nil:
		return slices.Contains(w.addresses, a)
	case !slices.Contains(s.Spec.IPFamilies, family):
		return false
	case wanted != nil:
		return slices.ContainsFunc(wanted, func(n netip.Prefix) bool { return n.Contains(a) })
	}
	return !p.manual(a)
}

// requestOf parses a Service's request.
func requestOf(s *corev1.Service, p pools) (w request, err error) {
	if w.addresses, err = addresses(s); err != nil {
		return w, err
	}
	if w.pools4, err = p.named(s, annotationPools4, true); err != nil {
		return w, err
	}
	w.pools6, err = p.named(s, annotationPools6, false)
	return w, err
}

// addresses returns the addresses that a Service requests, at most one of each family.
func addresses(s *corev1.Service) ([]netip.Addr, error) {
	field, texts := "spec.loadBalancerIP", []string(nil)
	if s.Spec.LoadBalancerIP != "" {
		texts = []string{s.Spec.LoadBalancerIP}
	}
	if text, ok := s.Annotations[annotationAddresses]; ok {
		field, texts = "annotation "+annotationAddresses, []string{}
		if err := json.Unmarshal([]byte(text), &texts); err != nil {
			return nil, fmt.Errorf(`%s = %s: want a JSON list like ["10.0.0.1"]: %w`, field, text, err)
		}
	}
	var list []netip.Addr
	for _, text := range texts {
		a, err := netip.ParseAddr(text)
		if err != nil || a.Zone() != "" {
			return nil, fmt.Errorf("%s: %q is no address", field, text)
		}
		if a = a.Unmap(); slices.ContainsFunc(list, func(b netip.Addr) bool { return a.Is4() == b.Is4() }) {
			return nil, fmt.Errorf("%s = %q: want at most one IPv4 and one IPv6 address", field, texts)
		}
		list = append(list, a)
	}
	return list, nil
}

// named returns the networks of the pools that an annotation lists by name or by CIDR; nil without the annotation.
func (p pools) named(s *corev1.Service, annotation string, v4 bool) ([]netip.Prefix, error) {
	text, ok := s.Annotations[annotation]
	if !ok || text == "" {
		return nil, nil
	}
	var names []string
	if err := json.Unmarshal([]byte(text), &names); err != nil {
		return nil, fmt.Errorf(`annotation %s = %s: want a JSON list like ["my-pool"]: %w`, annotation, text, err)
	}
	list := []netip.Prefix{}
	for _, name := range names {
		cidr := name
		if x := p[name]; x != nil {
			cidr = x.Spec.CIDR
		}
		n, err := netip.ParsePrefix(cidr)
		if err != nil {
			return nil, fmt.Errorf("annotation %s: %q is neither an IP pool for services nor a CIDR", annotation, name)
		}
		if n.Addr().Is4() != v4 {
			return nil, fmt.Errorf("annotation %s: %s is of the other address family", annotation, name)
		}
		list = append(list, n.Masked())
	}
	return list, nil
}

// ingress returns a status with these addresses.
func ingress(list []netip.Addr) []corev1.LoadBalancerIngress {
	var in []corev1.LoadBalancerIngress
	for _, a := range list {
		in = append(in, corev1.LoadBalancerIngress{IP: a.String()})
	}
	return in
}

// shows reports whether a Service's status has exactly these addresses.
func shows(s *corev1.Service, list []netip.Addr) bool {
	in := s.Status.LoadBalancer.Ingress
	return len(in) == len(list) && !slices.ContainsFunc(in, func(i corev1.LoadBalancerIngress) bool {
		a, err := netip.ParseAddr(i.IP)
		return err != nil || !slices.Contains(list, a)
	})
}
