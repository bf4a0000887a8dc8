package main_test

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
)

const twoPools = `apiVersion: projectcalico.org/v3
kind: IPPool
metadata: {name: a}
spec: {cidr: 10.1.0.0/16}
---
apiVersion: projectcalico.org/v3
kind: IPPool
metadata: {name: b}
spec:
  cidr: 10.1.4.0/24
`

// TestValidate: files are checked without a datastore, also against each other, and all errors are reported at once.
func TestValidate(t *testing.T) {
	t.Parallel()
	s := shell{t: t}
	good, _, _ := strings.Cut(twoPools, "---\n")
	s.pipe(good, "validate", "-f", "-").want(t, 0, "ippool/a valid\n")
	s.pipe(good, "validate", "-f", "-", "-o", "name").want(t, 0, "ippool/a\n")
	s.pipe(good, "validate", "-f", "-", "-o", "json").want(t, 0, "{\n  \"changed\": false,\n  \"dryRun\": \"none\",\n"+
		"  \"objects\": [\n    {\n      \"kind\": \"IPPool\",\n      \"name\": \"a\",\n      "+
		"\"result\": \"valid\"\n    }\n  ]\n}\n")
	s.pipe(twoPools, "validate", "-f", "-").want(t, 1, "",
		`standard input:10: IPPool b is invalid: spec.cidr = "10.1.4.0/24": IPPool b overlaps IPPool a`)
	s.pipe(twoPools, "apply", "--dry-run", "-f", "-").want(t, 1, "", "overlaps IPPool a")
	s.pipe(strings.Replace(twoPools, "10.1.4.0/24", "10.2/16", 1)+"  blocksize: 26\n---\n"+invalidPeers, "validate",
		"-f", "-").want(t, 1, "", "standard input:11: spec.blocksize: there is no such field here",
		`standard input:23: BGPPeer bad is invalid: spec.peerIP = "10.0.1.300": must be an IP address`)
	s.pipe("kind: Pod\napiVersion: v1\n", "validate", "-f", "-").want(t, 1, "", "belongs to Kubernetes")
	s.pipe("kind: NetworkPolicy\napiVersion: networking.k8s.io/v1\nmetadata: {name: a}\n---\n"+invalidPeers, "validate",
		"-f", "-").want(t, 1, "", "belongs to Kubernetes", `BGPPeer bad is invalid: spec.peerIP = "10.0.1.300"`)
	s.pipe(resource("ClusterInformation", "name: default", ""), "validate", "-f", "-").want(t, 1, "",
		"standard input:1: ClusterInformation default is written by manxd and calico/node alone")
	s.pipe(resource("FelixConfiguration", "name: n1", ""), "validate", "-f", "-").want(t, 0,
		"felixconfiguration/n1 valid\n", "Warning: standard input:1: FelixConfiguration/n1: no node uses it")
	s.pipe("# nothing\n", "delete", "--skip-empty", "-f", "-", "--etcd-endpoints=http://127.0.0.1:9").want(t, 0, "")
	s.pipe("# nothing\n", "validate", "-f", "-").want(t, 1, "", "there is no object in the input")
	s.pipe("# nothing\n", "validate", "--skip-empty", "-f", "-").want(t, 0, "")
	s.run("validate").want(t, 2, "", "validate needs -f FILE")
}

// TestOutcomeAsData: apply -o json tells Ansible whether anything changed, also in a dry run.
func TestOutcomeAsData(t *testing.T) {
	t.Parallel()
	s, _ := newShell(t)
	type object struct {
		Kind, Namespace, Name, Result string
		Errors                        []string
	}
	type answer struct {
		Changed bool
		DryRun  string
		Objects []object
	}
	second := strings.Replace(twoPools, "10.1.4.0/24", "10.2.0.0/16", 1)
	for _, c := range []struct {
		stdin, args string
		code        int
		want        answer
	}{
		{second, "apply --dry-run=server", 0, answer{true, "server",
			[]object{{"IPPool", "", "a", "created", nil}, {"IPPool", "", "b", "created", nil}}}},
		{second, "apply", 0, answer{true, "none",
			[]object{{"IPPool", "", "a", "created", nil}, {"IPPool", "", "b", "created", nil}}}},
		{second, "apply --dry-run=server", 0, answer{false, "server",
			[]object{{"IPPool", "", "a", "unchanged", nil}, {"IPPool", "", "b", "unchanged", nil}}}},
		{second, "create --skip-exists", 0, answer{false, "none",
			[]object{{"IPPool", "", "a", "skipped", nil}, {"IPPool", "", "b", "skipped", nil}}}},
		{strings.Replace(twoPools, "10.1.0.0/16", "10.1.0.0/16, natOutgoing: true", 1), "apply", 1, answer{true, "none",
			[]object{{"IPPool", "", "a", "configured", nil}, {"IPPool", "", "b", "failed", []string{
				`standard input:10: IPPool b is invalid: spec.cidr = "10.1.4.0/24": cannot be changed: it is ` +
					`10.2.0.0/16`}}}}},
	} {
		r := s.pipe(c.stdin, append(strings.Fields(c.args), "-f", "-", "-o", "json")...)
		var got answer
		err := json.Unmarshal([]byte(r.out), &got)
		if err != nil || r.code != c.code || !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: exit code %d, %v\n%+v\nwant\n%+v\n%s", c.args, r.code, err, got, c.want, r.err)
		}
	}
	s.pipe(second, "apply", "-f", "-", "-o", "name").want(t, 0, "ippool/a\nippool/b\n")
	s.pipe(second, "apply", "-f", "-", "-o", "wide").want(t, 2, "", "use one of table, json, yaml, name")
}

// TestCustomResourcesAreApplied: a file of kubectl has the metadata of an object in an annotation.
func TestCustomResourcesAreApplied(t *testing.T) {
	t.Parallel()
	s, _ := newShell(t)
	const document = `apiVersion: crd.projectcalico.org/v1
kind: BGPPeer
metadata:
  name: tor
  uid: 11111111-2222-3333-4444-555555555555
  resourceVersion: "77"
  annotations:
    projectcalico.org/metadata: '{"labels":{"rack":"a"},"annotations":{"manx.io/bfd":"true"}}'
spec: {peerIP: 10.0.1.1, asNumber: 65001}
---
apiVersion: crd.projectcalico.org/v1
kind: NetworkPolicy
metadata:
  name: default.web
  namespace: shop
  annotations:
    projectcalico.org/metadata: '{"name":"web"}'
spec: {selector: all()}
---
apiVersion: crd.projectcalico.org/v1
kind: IPAMConfig
metadata: {name: default}
spec: {strictAffinity: true, autoAllocateBlocks: true}
`
	s.pipe(document, "apply", "-f", "-").want(t, 0,
		"bgppeer/tor created\nnetworkpolicy/web created\nipamconfiguration/default created\n")
	s.pipe(document, "apply", "-f", "-").want(t, 0,
		"bgppeer/tor unchanged\nnetworkpolicy/web unchanged\nipamconfiguration/default unchanged\n")
	shown := s.must("get", "bgppeer", "tor", "-o", "yaml", "--show-labels")
	if !strings.Contains(shown, "manx.io/bfd: \"true\"") || !strings.Contains(shown, "rack: a") ||
		strings.Contains(shown, "projectcalico.org/metadata") || strings.Contains(shown, "11111111") {
		t.Errorf("stored is\n%s", shown)
	}
	s.pipe(strings.Replace(document, "peerIP", "peerIp", 1), "apply", "-f", "-").want(t, 1, "",
		"standard input:9: spec.peerIp: there is no such field here")
	s.pipe(strings.Replace(document, `'{"name":"web"}'`, `'{"name":'`, 1), "apply", "-f", "-").want(t, 1, "",
		"standard input:17: ", "must be metadata as JSON")
}
