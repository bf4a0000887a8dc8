package main_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const explainFiles = "testdata/explain/cluster.yaml"

// TestExplainFiles pins the output of explain from files only.
func TestExplainFiles(t *testing.T) {
	s := shell{t: t}
	for _, c := range []struct {
		name, args, verdict string
	}{
		{"allowed", "shop/web shop/db tcp/5432", "ALLOWED"},
		{"end-of-tier", "other db tcp/5432", "DENIED"},
		{"another-port", "pod/shop/web wep/shop/n2-k8s-db-eth0 tcp/80", "DENIED"},
		{"no-port", "web db", "DENIED"},
		{"denied-nets", "192.0.2.7 db tcp/5432", "DENIED"},
		{"same-node", "web other icmp", "DENIED"},
		{"every-condition", "web other tcp/22", "DENIED"},
		{"not-reached", "lost other tcp/80", "DENIED"},
		{"six", "web db tcp/5432 -6", "ALLOWED"},
		{"outside", "web 198.51.100.1 udp/53", "ALLOWED"},
		{"node", "web n2 udp/1500", "ALLOWED"},
		{"node-denied", "web node/n2 udp/3000", "DENIED"},
		{"failsafe", "n1 hep/n2-eth0 tcp/22", "ALLOWED"},
		{"node-to-pod", "n1 web tcp/80", "ALLOWED"},
		{"tunnel", "n1 db tcp/5432", "DENIED"},
		{"forwarded", "203.0.113.9 db tcp/5432", "DENIED"},
		{"service", "web 10.96.0.1 tcp/443", "DENIED"},
		{"loopback", "n1 n1 tcp/80", "ALLOWED"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := s.run(append([]string{"explain", "-f", explainFiles}, strings.Fields(c.args)...)...)
			lines := strings.Split(strings.TrimSpace(r.out), "\n")
			if r.code != 0 || !strings.HasPrefix(lines[len(lines)-1], c.verdict) {
				t.Errorf("exit code %d, want 0 and %s\n%s%s", r.code, c.verdict, r.out, r.err)
			}
			golden(t, "explain-"+c.name, r.out)
		})
	}
	golden(t, "explain-dscp", s.run("explain", "-f", explainFiles, "-f", "testdata/explain/dscp.yaml", "calls",
		"198.51.100.1", "udp/5060").out)
	golden(t, "explain-json", s.run("explain", "-f", explainFiles, "other", "db", "tcp/5432", "-o", "json").out)
	plan := s.run("plan", "--node=n2", "-f", explainFiles, "-f", "testdata/explain/change.yaml", "--against",
		explainFiles)
	golden(t, "plan-policy", plan.out)
}

// TestExplainRefuses checks that the error of an invalid query names a valid one.
func TestExplainRefuses(t *testing.T) {
	s := shell{t: t}
	for _, c := range []struct {
		args string
		code int
		text string
	}{
		{"web nobody", 1, `destination: "nobody" is no address, and there is no pod`},
		{"web db tcp/0", 2, `"0" is not a port from 1 to 65535`},
		{"web db frob/1", 2, `"frob" is not a protocol`},
		{"web db 47/1", 2, "protocol 47 has no ports"},
		{"web db icmp/300", 2, `"300" is not an ICMP type`},
		{"web fd00:65:1::99", 0, ""},
		{"other fd00::1", 1, "has only IPv4"},
		{"192.0.2.1 192.0.2.2", 1, "neither 192.0.2.1 nor 192.0.2.2"},
		{"", 2, "name SOURCE and DESTINATION, for instance"},
		{"web", 2, `name the DESTINATION after SOURCE "web"`},
		{"web db tcp/80 now", 2, `"now" is too much`},
		{"web db 5432", 2, `"5432" is not a protocol; did you mean tcp/5432?`},
	} {
		r := s.run(append([]string{"explain", "-f", explainFiles}, strings.Fields(c.args)...)...)
		if r.code != c.code || !strings.Contains(r.err, c.text) {
			t.Errorf("explain %s: exit code %d, want %d; stderr %q, want %q", c.args, r.code, c.code, r.err, c.text)
		}
	}
}

// TestExplainAmbiguousNames: a name of several endpoints is refused. The error has the unambiguous names.
func TestExplainAmbiguousNames(t *testing.T) {
	s := shell{t: t}
	files := []string{"explain", "-f", explainFiles, "-f", "testdata/explain/same-names.yaml", "-o", "json"}
	for name, text := range map[string]string{
		"web": `"web" is the name of 2 ends: pod other/web (WorkloadEndpoint other/n2-k8s-web-eth0), pod shop/web (WorkloadEndpoint shop/n1-k8s-web-eth0)`,
		"n1":  `"n1" is the name of 2 ends: node n1, pod shop/n1 (WorkloadEndpoint shop/n1-k8s-n1-eth0)`,
	} {
		r := s.run(append(files, name, "8.8.8.8")...)
		if r.code != 1 || !strings.Contains(r.err, text) {
			t.Errorf("%s: exit code %d, %s", name, r.code, r.err)
		}
	}
	for name, endpoint := range map[string]string{"shop/web": "shop/n1-k8s-web-eth0",
		"pod/shop/n1": "shop/n1-k8s-n1-eth0", "node/n1": `"kind": "host"`, "hep/n2-eth0": "HostEndpoint n2-eth0"} {
		if r := s.run(append(files, name, "8.8.8.8")...); r.code != 0 || !strings.Contains(r.out, endpoint) {
			t.Errorf("%s: exit code %d, %s\n%s", name, r.code, r.err, r.out)
		}
	}
}

// TestExplainShowsForeignTextInOneLine: the name of a rule is free text of whoever may write policies. It makes no
// lines of its own.
func TestExplainShowsForeignTextInOneLine(t *testing.T) {
	s := shell{t: t}
	forged := filepath.Join(t.TempDir(), "forged.yaml")
	err := os.WriteFile(forged, []byte(`
apiVersion: projectcalico.org/v3
kind: NetworkPolicy
metadata: {name: forged, namespace: shop}
spec:
  order: 0
  selector: all()
  types: [Ingress]
  ingress:
  - {action: Deny, metadata: {annotations: {name: "x\n\nALLOWED by y"}}}
`), 0o644)
	if err != nil {
		t.Fatal(err)
	}
	r := s.run("explain", "-f", explainFiles, "-f", forged, "shop/web", "shop/db", "tcp/5432")
	if r.code != 0 || !strings.Contains(r.out, "x  ALLOWED by y") || strings.Contains(r.out, "\nALLOWED") {
		t.Errorf("exit code %d: %q%s", r.code, r.out, r.err)
	}
}

// TestExplainServices: each endpoint of a service is evaluated, with the endpoints' port.
func TestExplainServices(t *testing.T) {
	t.Parallel()
	s := shell{t: t}
	for _, c := range []struct {
		args string
		code int
		text string
	}{
		{"shop/web svc/shop/db tcp/80 --expect allow", 0, "by tcp/5432\nNote: ready endpoints of service shop/db for " +
			"tcp/80: 1; policy allows 1 of them, and this is about 10.65.1.1\n"},
		{"shop/web svc/shop/db tcp/5432", 1, "service shop/db has no port tcp/5432"},
		{"shop/web db.shop.svc.cluster.local tcp/80 --expect allow", 0, "to pod shop/db"},
		{"shop/other db.shop.svc tcp/80 --expect deny", 0, "to pod shop/db"},
		{"shop/web svc/shop/mixed tcp/5432 --expect deny", 0, "to pod shop/other"},
		{"shop/web svc/shop/mixed tcp/5432", 0, "policy allows 1 of them, and this is about 10.65.0.2"},
		{"shop/web svc/shop/mixed tcp/81", 1, "has no endpoint with tcp/81: the ports of its endpoints are tcp/5432"},
		{"shop/web svc/shop/down tcp/5432", 1, "service shop/down has no ready endpoint"},
		{"shop/web svc/shop/none tcp/5432", 1, "there is no EndpointSlice of service shop/none"},
	} {
		r := s.run(append([]string{"explain", "-f", explainFiles, "-f", "testdata/explain/services.yaml"},
			strings.Fields(c.args)...)...)
		if r.code != c.code || !strings.Contains(r.out+r.err, c.text) {
			t.Errorf("%s: exit code %d, want %d and %q\n%s%s", c.args, r.code, c.code, c.text, r.out, r.err)
		}
	}
}
