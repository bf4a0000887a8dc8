package main

import (
	"bytes"
	"encoding/json"
	"os/exec"
	"strings"
	"testing"

	"go.uber.org/zap"

	"github.com/manxnet/manx/daemon/bus"
	"github.com/manxnet/manx/daemon/deps"
	"github.com/manxnet/manx/dataplane/kernel/nftables"
	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/integration/namespace"
)

type emptyStore struct{ datastore.Backend }

func (emptyStore) Keeps(model.Kind) bool { return false }

// TestFamiliesOfTheConfiguration has pods get addresses of the node's families.
func TestFamiliesOfTheConfiguration(t *testing.T) {
	d := deps.Deps{Node: deps.Node{Name: "n1"}, Log: zap.NewNop()}
	for want, o := range map[string]nodeOptions{
		`{"type":"calico-ipam"}`:                                            {ip: "autodetect"},
		`{"assign_ipv6":"true","type":"calico-ipam"}`:                       {ip: "autodetect", ip6: "autodetect"},
		`{"assign_ipv4":"false","assign_ipv6":"true","type":"calico-ipam"}`: {ip: "none", ip6: "autodetect"},
	} {
		all := options{node: o, cni: cniOptions{confDir: t.TempDir(), manage: true}}
		config, err := newCNIConfig(d, all.cni, all.datastore, all.podFamilies(), all.policy.on)
		if err != nil {
			t.Fatal(err)
		}
		var list struct {
			Plugins []struct{ IPAM json.RawMessage }
		}
		if err := json.Unmarshal(config.(*cniConfig).Conflist, &list); err != nil {
			t.Fatal(err)
		}
		var got bytes.Buffer
		if err := json.Compact(&got, list.Plugins[0].IPAM); err != nil || got.String() != want {
			t.Errorf("ipam is %s, want %s (%v)", &got, want, err)
		}
	}
}

// With policy, neither manxd nor the plugin without manxd attaches a container before the rules exist.
func TestContainersWaitForTheFirstRules(t *testing.T) {
	namespace.Require(t, "nft")
	ns := namespace.New(t, "mxcni")
	rules, err := nftables.Open("/run/netns/" + ns)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = rules.Close() })
	o := options{cni: cniOptions{confDir: t.TempDir(), manage: true}}
	d := deps.Deps{Node: deps.Node{Name: "n1", RunDir: t.TempDir()}, Store: emptyStore{},
		Tables: datastore.NewTables(zap.NewNop(), "n1"), Log: zap.NewNop(), Bus: new(bus.Bus)}
	for _, x := range []struct {
		policy *policyPart
		waits  bool
	}{{nil, false}, {&policyPart{rules: rules}, true}} {
		o.policy.on = x.policy != nil
		enforced := newPlugins(d, o.host, x.policy).Enforced
		if err := enforced(); (err != nil) != x.waits {
			t.Errorf("policy %v: before the rules exist: %v", o.policy.on, err)
		}
		config, err := newCNIConfig(d, o.cni, o.datastore, o.podFamilies(), o.policy.on)
		if err != nil {
			t.Fatal(err)
		}
		content := string(config.(*cniConfig).Conflist)
		if strings.Contains(content, `"require_policy_table": true`) != x.waits {
			t.Errorf("policy %v: the network configuration is %s", o.policy.on, content)
		}
		if !x.waits {
			continue
		}
		out, err := exec.Command("ip", "netns", "exec", ns, "nft", "add table inet manx").CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		if err := enforced(); err != nil {
			t.Error(err)
		}
	}
}
