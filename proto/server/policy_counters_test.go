package server

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/manxnet/manx/dataplane/kernel/nftables"
	"github.com/manxnet/manx/dataplane/policy"
	"github.com/manxnet/manx/datastore/model"
)

func TestPolicyCountersAreMetrics(t *testing.T) {
	r, p := withPolicy(t)
	get := r.web()
	const chain = "pi/GlobalNetworkPolicy/web"
	p.count(chain, 0, 1, 10) // IPv4 of rule 1
	p.count(chain, 1, 2, 20) // IPv6 of rule 1
	p.count(chain, 2, 0, 0)  // rule 2
	page := func() string {
		_, body := get("/metrics")
		return body
	}
	const rule = `manx_policy_rule_packets_total{direction="ingress",kind="GlobalNetworkPolicy",namespace="",` +
		`policy="web",rule="1"} 3`
	for _, want := range []string{`manx_dropped_packets_total{reason="policy"} 7`,
		`manx_dropped_packets_total{reason="source_check"} 0`, rule} {
		if body := page(); !strings.Contains(body, want+"\n") ||
			strings.Count(body, "\nmanx_policy_rule_packets") != 1 {
			t.Errorf("no %s, or a rule without packets:\n%s", want, body)
		}
	}
	p.err = errors.New("no buffer space available")
	if body := page(); strings.Contains(body, "\nmanx_dropped_") || strings.Contains(body, "\nmanx_policy_rule_") ||
		!strings.Contains(body, "\nmanx_policy_in_sync ") {
		t.Errorf("the kernel does not answer:\n%s", body)
	}
	p.err = nil
	p.calc = policy.Build(policy.Config{Node: "node-1"}, r.tables.Snapshot(), nil)
	if body := page(); strings.Contains(body, "\nmanx_policy_rule_packets") {
		t.Errorf("without --policy-counters rules have series:\n%s", body)
	}
}

// Rules with most packets have series, however many there are.
func TestSeriesOfRulesAreBounded(t *testing.T) {
	r, p := withPolicy(t)
	var list []string
	for i := range ruleSeries + 100 {
		list = append(list, fmt.Sprintf(`{"action":"Allow","protocol":"UDP","destination":{"ports":[%d]}}`, 1+i))
	}
	r.store(object(t, model.KindWorkloadEndpoint, "shop", "node--1-k8s-web-eth0",
		`{"kind":"WorkloadEndpoint","apiVersion":"projectcalico.org/v3","metadata":{"name":"node--1-k8s-web-eth0","namespace":"shop","labels":{"app":"web"}},
		"spec":{"orchestrator":"k8s","node":"node-1","pod":"web","endpoint":"eth0","interfaceName":"cali1","ipNetworks":["10.65.0.1/32"]}}`),
		object(t, model.KindGlobalNetworkPolicy, "", "many",
			`{"kind":"GlobalNetworkPolicy","apiVersion":"projectcalico.org/v3","metadata":{"name":"many"},
			"spec":{"selector":"app == 'web'","types":["Ingress"],"ingress":[`+strings.Join(list, ",")+`]}}`))
	p.calc = policy.Build(policy.Config{Node: "node-1", Counters: true}, r.tables.Snapshot(), nil)
	p.counters = map[string][]nftables.Counter{}
	for i := range list {
		p.count("pi/GlobalNetworkPolicy/many", i, uint64(1+i), 1)
	}
	_, body := r.web()("/metrics")
	if n := strings.Count(body, "\nmanx_policy_rule_packets_total{"); n != ruleSeries {
		t.Errorf("%d rules have series, want %d", n, ruleSeries)
	}
	for number, want := range map[int]bool{100: false, 101: true, len(list): true} {
		if strings.Contains(body, fmt.Sprintf(`rule="%d"} %d`, number, number)+"\n") != want {
			t.Errorf("rule %d has a series: want %t", number, want)
		}
	}
}
