package bgp

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/manxnet/manx/datastore/model"
)

// object makes an object from JSON. It is not validated: this package must not rely on its input being valid.
func object(t testing.TB, kind model.Kind, name, spec string) *model.Object {
	t.Helper()
	meta := ""
	if at := strings.Index(spec, "@"); at >= 0 { // labels follow: {...}@{"rack":"a"}
		spec, meta = spec[:at], `,"labels":`+spec[at+1:]
	}
	raw := fmt.Sprintf(`{"kind":%q,"apiVersion":"projectcalico.org/v3","metadata":{"name":%q%s},"spec":%s}`, kind, name,
		meta, spec)
	if !json.Valid([]byte(raw)) {
		t.Fatalf("bad test object: %s", raw)
	}
	o, err := unchecked(model.ResourceKey(kind, name), raw)
	if err != nil {
		t.Fatal(err)
	}
	return o
}

func unchecked(key model.Key, raw string) (*model.Object, error) {
	info, _ := model.Lookup(key.Kind)
	value := info.New()
	err := json.Unmarshal([]byte(raw), value)
	return model.NewObject(key, value), err
}

// world makes objects from lines "KIND NAME JSON". Kinds: node, peer, config, pool, filter, felix, wep (in namespace
// "default"). "block NODE CIDR STATE" is a block affinity.
func world(t testing.TB, lines ...string) []*model.Object {
	t.Helper()
	kinds := map[string]model.Kind{"node": model.KindNode, "peer": model.KindBGPPeer,
		"config": model.KindBGPConfiguration, "pool": model.KindIPPool, "wep": model.KindWorkloadEndpoint,
		"filter": model.KindBGPFilter, "felix": model.KindFelixConfiguration}
	var objects []*model.Object
	for _, line := range lines {
		f := strings.SplitN(line, " ", 3)
		if f[0] == "block" {
			rest := strings.Fields(f[2])
			k := model.Key{Kind: model.KindBlockAffinity, Name: "host/" + f[1] + "/" + rest[0]}
			state := ""
			if len(rest) > 1 {
				state = rest[1]
			}
			o, err := unchecked(k, `{"state":"`+state+`","deleted":false}`)
			if err != nil {
				t.Fatal(err)
			}
			objects = append(objects, o)
			continue
		}
		o := object(t, kinds[f[0]], f[1], f[2])
		if f[0] == "wep" {
			o.Key.Namespace = "default"
		}
		objects = append(objects, o)
	}
	return objects
}

// node makes the line of a node with an IPv4 address and more fields of spec.bgp.
func v4node(name, addr string, more ...string) string {
	return fmt.Sprintf(`node %s {"bgp":{"ipv4Address":"%s/24"%s}}`, name, addr,
		strings.Join(append([]string{""}, more...), ","))
}

// show formats the fields that most tests check: "10.0.0.2:179 mesh 64512-64512 passive from BGPConfiguration/default".
func show(s Session) string {
	role := "active"
	if s.Passive {
		role = "passive"
	}
	return fmt.Sprintf("%s:%d %s %d-%d %s from %s", s.Address, s.Port, s.Type, s.LocalAS, s.PeerAS, role,
		strings.Join(s.From, "+"))
}

func showAll(sessions []Session) []string {
	var out []string
	for _, s := range sessions {
		out = append(out, show(s))
	}
	return out
}

func equalLines(t *testing.T, what string, got, want []string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s:\n got  %s\n want %s", what, strings.Join(got, "\n      "), strings.Join(want, "\n      "))
	}
}

func showNotices(d Desired) []string {
	var out []string
	for _, n := range d.Notices {
		out = append(out, n.Object+": "+n.Reason)
	}
	for _, c := range d.Conflicts {
		out = append(out, fmt.Sprintf("conflict %s kept %s dropped %s: %s", c.Address, c.Kept,
			strings.Join(c.Dropped, "+"), c.Reason))
	}
	return out
}

// wantNotices checks that each notice or conflict contains the wanted text, in order, and that there is no other.
func wantNotices(t *testing.T, d Desired, want ...string) {
	t.Helper()
	got := showNotices(d)
	ok := len(got) == len(want)
	for i := 0; ok && i < len(got); i++ {
		ok = strings.Contains(got[i], want[i])
	}
	if !ok {
		t.Errorf("notices:\n got  %s\n want %s", strings.Join(got, "\n      "), strings.Join(want, "\n      "))
	}
}

type secrets map[string]string

func (secrets) Place(secret, key string) string {
	return "the file " + secret + "/" + key + " of the folder --bgp-password-dir"
}

func (s secrets) Password(secret, key string) (string, error) {
	v, ok := s[secret+"/"+key]
	if !ok {
		return "", errors.New("no such file")
	}
	return v, nil
}

func compute(t testing.TB, me string, lines ...string) Desired {
	t.Helper()
	return Compute(Input{Reader: model.NewSet(world(t, lines...)...), Node: me})
}
