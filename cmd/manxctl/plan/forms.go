package plan

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"strconv"
	"strings"

	"github.com/projectcalico/api/pkg/lib/numorstring"

	"github.com/manxnet/manx/datastore/model"
)

// customResource is the apiVersion of Calico's objects as Kubernetes stores them.
const customResource = "crd.projectcalico.org/v1"

// forms are the documents that are not written as the datastore keeps them, by apiVersion and kind.
var forms = map[string]func(*reader, found){
	"v1/Node":                           (*reader).takeKubernetesNode,
	"v1/Secret":                         (*reader).takeSecret,
	"/Secret":                           (*reader).takeSecret,
	"/BlockAffinity":                    (*reader).takeAffinity,
	customResource + "/BlockAffinity":   (*reader).takeAffinity,
	model.APIVersion + "/BlockAffinity": (*reader).takeAffinity,
}

// passwords are the Secrets of the files.
type passwords map[string]map[string]string

// Password implements bgp.PasswordSource.
func (p passwords) Password(secret, key string) (string, error) {
	switch value, ok := p[secret][key]; {
	case !ok:
		return "", errors.New("it is not in the files")
	case strings.TrimSpace(value) == "":
		return "", errors.New("it is empty")
	default:
		return value, nil
	}
}

// Place implements bgp.PasswordSource.
func (p passwords) Place(secret, key string) string {
	return fmt.Sprintf("a Secret %s with the key %s in the files", secret, key)
}

// takeSecret enters a Secret. Nothing that is said of it holds a value.
func (r *reader) takeSecret(f found) {
	var doc struct {
		Data       map[string][]byte `json:"data"`
		StringData map[string]string `json:"stringData"`
	}
	switch err := json.Unmarshal(f.JSON, &doc); {
	case f.meta.Name == "":
		r.remark(f.place, "metadata", "Secret is skipped: metadata.name is missing")
		return
	case err != nil:
		r.remark(f.place, "data", "Secret %s is skipped: want base64 in data and text in stringData", f.meta.Name)
		return
	case f.meta.Namespace != "" && f.meta.Namespace != r.namespace:
		r.remark(f.place, "metadata.namespace", "Secret %s/%s is skipped: passwords are read in namespace %s", f.meta.Namespace, f.meta.Name, r.namespace)
		return
	}
	f.secret = map[string]string{}
	for k, v := range doc.Data {
		f.secret[k] = string(v)
	}
	maps.Copy(f.secret, doc.StringData)
	for k, v := range f.secret {
		f.secret[k] = strings.TrimRight(v, "\r\n")
	}
	key := model.Key{Kind: "Secret", Namespace: r.namespace, Name: f.meta.Name}
	r.found[key] = append(r.found[key], f)
}

// takeAffinity enters the claim of a node on a block: as Kubernetes stores it, or as manxctl shows it, with the owner and
// block in the name.
func (r *reader) takeAffinity(f found) {
	var doc struct {
		Spec struct {
			State   model.AffinityState `json:"state"`
			Node    string              `json:"node"`
			Type    model.AffinityType  `json:"type"`
			CIDR    string              `json:"cidr"`
			Deleted any                 `json:"deleted"` // text in Kubernetes, a boolean elsewhere
		} `json:"spec"`
	}
	if err := json.Unmarshal(f.JSON, &doc); err != nil {
		r.remark(f.place, "spec", "BlockAffinity %s is skipped: %v", f.meta.Name, err)
		return
	}
	s := doc.Spec
	key := model.Key{Kind: model.KindBlockAffinity, Name: f.meta.Name}
	if s.Node != "" || s.CIDR != "" {
		cidr, err := netip.ParsePrefix(s.CIDR)
		if err != nil || s.Node == "" {
			r.remark(f.place, "spec.cidr", "BlockAffinity %s is skipped: want spec.node and spec.cidr = ADDRESS/LENGTH, have %q and %q", f.meta.Name, s.Node, s.CIDR)
			return
		}
		if s.Type == "" {
			s.Type = model.AffinityHost
		}
		key = model.AffinityKey(model.Affinity{Type: s.Type, Host: s.Node, CIDR: cidr})
	}
	if _, ok := key.Affinity(); !ok {
		r.remark(f.place, "metadata.name", "BlockAffinity %s is skipped: want spec.node and spec.cidr, or the name host/NODE/CIDR", f.meta.Name)
		return
	}
	deleted, err := strconv.ParseBool(fmt.Sprint(s.Deleted))
	if err != nil && s.Deleted != nil && s.Deleted != "" {
		r.remark(f.place, "spec.deleted", "BlockAffinity %s is skipped: spec.deleted = %q: want true or false", f.meta.Name, fmt.Sprint(s.Deleted))
		return
	}
	raw, err := json.Marshal(model.BlockAffinity{State: s.State, Deleted: deleted})
	r.enter(f, key, raw, err)
}

// Annotations of Kubernetes' Nodes in which Calico keeps what its own Node objects hold elsewhere.
const (
	annotated      = "projectcalico.org/"
	calicoLabels   = annotated + "labels"
	orchestratorK8 = "k8s"
)

// takeKubernetesNode enters a Node of Kubernetes as the Calico node that its annotations describe.
func (r *reader) takeKubernetesNode(f found) {
	of := func(name string) string { return f.meta.Annotations[annotated+name] }
	n := model.Node{}
	n.Name, n.Annotations, n.Labels = f.meta.Name, f.meta.Annotations, map[string]string{}
	if text := f.meta.Annotations[calicoLabels]; text != "" {
		if err := json.Unmarshal([]byte(text), &n.Labels); err != nil {
			r.remark(f.place, "metadata.annotations", "Node %s: annotation %s is ignored: want a JSON object of texts", n.Name, calicoLabels)
		}
	}
	maps.Copy(n.Labels, f.meta.Labels) // Kubernetes' own win
	b := &model.NodeBGPSpec{
		IPv4Address: of("IPv4Address"), IPv6Address: of("IPv6Address"),
		IPv4IPIPTunnelAddr: of("IPv4IPIPTunnelAddr"), RouteReflectorClusterID: of("RouteReflectorClusterID"),
	}
	if text := of("ASNumber"); text != "" {
		as, err := numorstring.ASNumberFromString(text)
		if err != nil {
			r.remark(f.place, "metadata.annotations", "Node %s: annotation %sASNumber = %q is ignored: %v", n.Name, annotated, text, err)
		} else {
			b.ASNumber = &as
		}
	}
	if *b != (model.NodeBGPSpec{}) {
		n.Spec.BGP = b
	}
	n.Spec.IPv4VXLANTunnelAddr, n.Spec.IPv6VXLANTunnelAddr = of("IPv4VXLANTunnelAddr"), of("IPv6VXLANTunnelAddr")
	if v4, v6 := of("IPv4WireguardInterfaceAddr"), of("IPv6WireguardInterfaceAddr"); v4 != "" || v6 != "" {
		n.Spec.Wireguard = &model.NodeWireguard{InterfaceIPv4Address: v4, InterfaceIPv6Address: v6}
	}
	n.Spec.OrchRefs = []model.OrchRef{{NodeName: n.Name, Orchestrator: orchestratorK8}}
	raw, err := json.Marshal(n)
	if n.Name == "" {
		r.remark(f.place, "metadata", "Node is skipped: metadata.name is missing")
		return
	}
	r.enter(f, model.ResourceKey(model.KindNode, n.Name), raw, err)
}
