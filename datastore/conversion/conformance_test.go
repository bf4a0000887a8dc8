package conversion

import (
	"compress/gzip"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"
)

// The tables are a public conformance suite: states of a cluster, its policies, and for each pair of pods the verdicts
// of the destination's and of the source's policies.
const tables = "../../integration/netpol/testdata/"

type conformance struct {
	PodPorts []podPort
	Cases    []struct {
		ID    string
		Steps []step
	}
}

type podPort struct {
	Port     uint16
	Protocol string
	Name     string
}

type step struct {
	Namespaces map[string]map[string]string
	Pods       []testPod
	Policies   []*networkingv1.NetworkPolicy
	Expected   []struct {
		Protocol        string
		Port            uint16
		PortName        string
		Ingress, Egress []string
	}
}

type testPod struct {
	Namespace, Name, IP string
	Labels              map[string]string
}

func readTables(t *testing.T, name string) conformance {
	t.Helper()
	f, err := os.Open(tables + name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	var c conformance
	if err := json.NewDecoder(z).Decode(&c); err != nil {
		t.Fatal(err)
	}
	return c
}

// TestConvertedPoliciesDecideAsKubernetes compares three verdicts for every pair of pods, port and direction: of the
// published tables, of the NetworkPolicy API's documentation, and of the converted policies.
func TestConvertedPoliciesDecideAsKubernetes(t *testing.T) {
	for _, name := range []string{"v4.json.gz", "v6.json.gz"} {
		t.Run(name, func(t *testing.T) {
			suite := readTables(t, name)
			cells := 0
			for _, c := range suite.Cases {
				for i, s := range c.Steps {
					cells += compareStep(t, fmt.Sprintf("%s step %d", c.ID, i), s, s.Policies)
				}
			}
			if cells < 100_000 {
				t.Errorf("only %d cells were compared", cells)
			}
		})
	}
}

// TestOrderOfPeersAndPortsMeansNothing shuffles the lists of every policy before it is converted.
func TestOrderOfPeersAndPortsMeansNothing(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for _, c := range readTables(t, "v4.json.gz").Cases {
		for i, s := range c.Steps {
			var shuffled []*networkingv1.NetworkPolicy
			for _, p := range s.Policies {
				shuffled = append(shuffled, shuffle(random, p))
			}
			compareStep(t, fmt.Sprintf("%s step %d", c.ID, i), s, shuffled)
		}
	}
}

func shuffle(random *rand.Rand, in *networkingv1.NetworkPolicy) *networkingv1.NetworkPolicy {
	p := in.DeepCopy()
	mix := func(n int, swap func(int, int)) { random.Shuffle(n, swap) }
	mix(len(p.Spec.Ingress), func(i, j int) {
		p.Spec.Ingress[i], p.Spec.Ingress[j] = p.Spec.Ingress[j],
			p.Spec.Ingress[i]
	})
	mix(len(p.Spec.Egress), func(i, j int) { p.Spec.Egress[i], p.Spec.Egress[j] = p.Spec.Egress[j], p.Spec.Egress[i] })
	for _, r := range p.Spec.Ingress {
		mix(len(r.From), func(i, j int) { r.From[i], r.From[j] = r.From[j], r.From[i] })
		mix(len(r.Ports), func(i, j int) { r.Ports[i], r.Ports[j] = r.Ports[j], r.Ports[i] })
	}
	for _, r := range p.Spec.Egress {
		mix(len(r.To), func(i, j int) { r.To[i], r.To[j] = r.To[j], r.To[i] })
		mix(len(r.Ports), func(i, j int) { r.Ports[i], r.Ports[j] = r.Ports[j], r.Ports[i] })
	}
	slices.Reverse(p.Spec.PolicyTypes)
	return p
}

// compareStep converts policies and compares; it returns how many cells it compared.
func compareStep(t *testing.T, name string, s step, policies []*networkingv1.NetworkPolicy) int {
	t.Helper()
	calico := calicoCluster{namespaces: s.Namespaces}
	for _, p := range policies {
		converted, notices, err := NetworkPolicy(p)
		if err != nil || len(notices) > 0 {
			t.Fatalf("%s: %v %v", name, notices, err)
		}
		calico.policies = append(calico.policies, converted)
	}
	plain := kubernetesCluster{namespaces: s.Namespaces, policies: s.Policies}
	cells := 0
	for _, e := range s.Expected {
		port := podPort{e.Port, e.Protocol, e.PortName}
		for i, from := range s.Pods {
			for j, to := range s.Pods {
				if i == j {
					continue
				}
				cells++
				for _, d := range []struct {
					direction networkingv1.PolicyType
					table     byte
				}{{networkingv1.PolicyTypeIngress, e.Ingress[i][j]}, {networkingv1.PolicyTypeEgress, e.Egress[i][j]}} {
					text, got := plain.allows(d.direction, from, to, port), calico.allows(d.direction, from, to, port)
					if want := d.table == '.'; text != want || got != want {
						t.Fatalf("%s: %s of %s/%s to %s/%s %s %d: table %t, API text %t, converted %t", name,
							d.direction,
							from.Namespace, from.Name, to.Namespace, to.Name, port.Protocol, port.Port, want, text, got)
					}
				}
			}
		}
	}
	return cells
}
