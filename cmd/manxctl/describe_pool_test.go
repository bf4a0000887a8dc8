package main_test

import (
	"errors"
	"regexp"
	"strings"
	"testing"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"

	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/ipam"
)

// refusingPools is one pool for each rule that keeps a pod in namespace shop on node-1 from its addresses.
const refusingPools = `{apiVersion: projectcalico.org/v3, kind: IPPool, metadata: {name: closed},
 spec: {cidr: 10.96.0.0/24, disabled: true}}
---
{apiVersion: projectcalico.org/v3, kind: IPPool, metadata: {name: manual},
 spec: {cidr: 10.93.0.0/24, assignmentMode: Manual}}
---
{apiVersion: projectcalico.org/v3, kind: IPPool, metadata: {name: racks},
 spec: {cidr: 10.97.0.0/24, nodeSelector: "rack == 'b'"}}
---
{apiVersion: projectcalico.org/v3, kind: IPPool, metadata: {name: teams},
 spec: {cidr: 10.95.0.0/24, namespaceSelector: "team == 'blue'", allowedUses: [Workload]}}
---
{apiVersion: projectcalico.org/v3, kind: IPPool, metadata: {name: tunnels},
 spec: {cidr: 10.94.0.0/24, allowedUses: [Tunnel]}}
---
`

var poolLine = regexp.MustCompile(`(?m)^  Pool (\S+):\s+(.*)$`)

// add asks for an address for a pod of namespace shop on node-1, as the CNI plugin does, and returns the refusal.
func add(t *testing.T, store datastore.Store) string {
	t.Helper()
	r, err := ipam.New(store, nil, nil).AutoAssign(t.Context(), ipam.Request{Host: "node-1", Handle: "waits", Num4: 1,
		Use: v3.IPPoolAllowedUseWorkload})
	if err = errors.Join(err, r.Short()); err == nil {
		t.Fatal("the pod gets an address")
	}
	return err.Error()
}

// TestDescribeRefusesAsAnADD: the reasons of describe are those with which IPAM refuses an address for the same pod:
// each rule of a pool, a full one, strict affinity, and the limits of blocks.
func TestDescribeRefusesAsAnADD(t *testing.T) {
	t.Parallel()
	s, server := newShell(t)
	store := server.Store(t)
	s.mustPipe(refusingPools+resource("Node", "name: node-1, labels: {rack: a}", "")+
		resource("Node", "name: node-2, labels: {rack: b}", "")+
		strings.NewReplacer("NS", "shop", "POD", "waits", `"10.0.0.1/32"`, "").Replace(endpoint), "create", "-f", "-")
	agree := func(pools int, about ...string) {
		t.Helper()
		refusal := add(t, store)
		for _, what := range [][]string{{"endpoint", "shop/waits"}, about} {
			if len(what) == 0 {
				continue
			}
			out := s.run(append([]string{"describe", "--socket", "/none"}, what...)...).out
			lines := poolLine.FindAllStringSubmatch(out, -1)
			same := 0
			for _, line := range lines {
				if strings.Contains(refusal, "pool "+line[1]+" (") && strings.Contains(refusal, "): "+line[2]) {
					same++
				}
			}
			if same != pools {
				t.Errorf("%d of %d reasons are those of the ADD\n%s\n%s", same, pools, out, refusal)
			}
		}
	}
	agree(5)

	s.mustPipe(resource("IPPool", "name: small", "cidr: 10.98.0.0/30, blockSize: 30"), "create", "-f", "-")
	assign(t, store, "node-2", "10.98.0.0/30", "shop/a", "shop/b", "shop/c")
	strict := model.NewObject(model.IPAMConfigKey, &model.IPAMConfig{StrictAffinity: true, AutoAllocateBlocks: true})
	strict, err := store.Create(t.Context(), strict)
	if err != nil {
		t.Fatal(err)
	}
	agree(1, "node", "node-1") // strict affinity
	assign(t, store, "node-2", "10.98.0.0/30", "shop/d")
	agree(1, "node", "node-1") // full

	s.mustPipe(resource("IPPool", "name: more", "cidr: 10.92.0.0/30, blockSize: 30"), "create", "-f", "-")
	setConfig := func(c model.IPAMConfig) {
		t.Helper()
		strict.Value = &c
		if strict, err = store.Update(t.Context(), strict); err != nil {
			t.Fatal(err)
		}
	}
	noBlock := func(c model.IPAMConfig) {
		t.Helper()
		setConfig(c)
		refusal := add(t, store)
		for _, what := range [][]string{{"endpoint", "shop/waits"}, {"node", "node-1"}} {
			out := s.run(append([]string{"describe", "--socket", "/none"}, what...)...).out
			_, why, _ := strings.Cut(out, "No further block: ")
			why, _, _ = strings.Cut(strings.TrimSpace(why), "\n")
			if why == "" || !strings.Contains(refusal, why) {
				t.Errorf("%q is no reason of the ADD\n%s\n%s", why, out, refusal)
			}
		}
	}
	noBlock(model.IPAMConfig{StrictAffinity: true})
	setConfig(model.IPAMConfig{StrictAffinity: true, AutoAllocateBlocks: true})
	assign(t, store, "node-1", "10.92.0.0/30", "shop/e", "shop/f", "shop/g", "shop/h")
	noBlock(model.IPAMConfig{StrictAffinity: true, AutoAllocateBlocks: true, MaxBlocksPerHost: 1})
}
