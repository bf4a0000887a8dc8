package differences

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/manxnet/manx/bgp"
	"github.com/manxnet/manx/datastore/model"
)

var kinds = map[string]model.Kind{
	"node": model.KindNode, "peer": model.KindBGPPeer, "config": model.KindBGPConfiguration, "pool": model.KindIPPool,
	"filter": model.KindBGPFilter,
	"wep":    model.KindWorkloadEndpoint, "block": model.KindBlockAffinity, "service": model.KindService,
	"slice": model.KindEndpointSlice,
}

// world makes objects from lines "KIND NAME JSON". JSON has all fields except the metadata, or the fields of the spec.
// A "block NODE CIDR STATE" is a block affinity. Nothing is validated: another program may have written it.
func world(t *testing.T, lines ...string) model.Set {
	t.Helper()
	var objects []*model.Object
	for _, line := range lines {
		f := strings.SplitN(line, " ", 3)
		key, body := model.ResourceKey(kinds[f[0]], f[1]), f[2]
		switch f[0] {
		case "block":
			cidr, state, _ := strings.Cut(f[2], " ")
			key.Name, body = "host/"+f[1]+"/"+cidr, fmt.Sprintf(`{"state":%q}`, state)
		case "wep", "service", "slice":
			key.Namespace = "default"
		}
		if f[0] != "block" && f[0] != "slice" && !strings.HasPrefix(body, `{"spec"`) &&
			!strings.HasPrefix(body, `{"metadata"`) {
			body = `{"spec":` + body + `}`
		}
		info, ok := model.Lookup(key.Kind)
		if !ok {
			t.Fatalf("kind of %q", line)
		}
		value := info.New()
		if err := json.Unmarshal([]byte(body), value); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		objects = append(objects, model.NewObject(key, value))
	}
	return model.NewSet(objects...)
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

// desiredOn returns the desired BGP state of one node in a world.
func desiredOn(t *testing.T, me string, lines ...string) bgp.Desired {
	t.Helper()
	return bgp.Compute(bgp.Input{Reader: world(t, lines...), Node: me, Passwords: secrets{"bgp/k": "pw"}})
}

// sessionText formats a session as "ADDRESS:PORT TYPE LOCALAS-PEERAS active|passive OBJECT".
func sessionText(s bgp.Session) string {
	role := "active"
	if s.Passive {
		role = "passive"
	}
	return fmt.Sprintf("%s:%d %s %d-%d %s %s", s.Address, s.Port, s.Type, s.LocalAS, s.PeerAS, role,
		strings.Join(s.From, "+"))
}

// hasSessions fails unless a node has exactly these sessions.
func hasSessions(t *testing.T, d bgp.Desired, want ...string) {
	t.Helper()
	var have []string
	for _, s := range d.Sessions {
		have = append(have, sessionText(s))
	}
	if !slices.Equal(have, want) {
		t.Errorf("sessions\n have %s\n want %s", strings.Join(have, "\n      "), strings.Join(want, "\n      "))
	}
}

// hasText fails unless a notice or a conflict has the text.
func hasText(t *testing.T, d bgp.Desired, text string) {
	t.Helper()
	for _, n := range d.Notices {
		if strings.Contains(n.Object+": "+n.Reason, text) {
			return
		}
	}
	for _, c := range d.Conflicts {
		if strings.Contains(c.Reason, text) {
			return
		}
	}
	t.Errorf("no notice or conflict has %q: %v %v", text, d.Notices, d.Conflicts)
}

// onlySession returns the only session.
func onlySession(t *testing.T, d bgp.Desired) bgp.Session {
	t.Helper()
	if len(d.Sessions) != 1 {
		t.Fatalf("want one session, have %d", len(d.Sessions))
	}
	return d.Sessions[0]
}

// origin returns an own route, nil if the node does not originate it.
func origin(d bgp.Desired, prefix string) *bgp.Origin {
	for i := range d.Originated {
		if d.Originated[i].Prefix == netip.MustParsePrefix(prefix) {
			return &d.Originated[i]
		}
	}
	return nil
}

// sends reports whether a node sends one of its own routes on a session.
func sends(t *testing.T, d bgp.Desired, s bgp.Session, prefix string) bool {
	t.Helper()
	o := origin(d, prefix)
	return o != nil && !o.Withheld && d.Export(s, o.Candidate()).Accept
}

const (
	a   = `node a {"bgp":{"ipv4Address":"10.0.0.1/24"}}`
	b   = `node b {"bgp":{"ipv4Address":"10.0.0.2/24"}}`
	off = `config default {"nodeToNodeMeshEnabled":false}`
)
