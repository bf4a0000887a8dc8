package server

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/manxnet/manx/dataplane"
	"github.com/manxnet/manx/datastore/model"
	manxv1 "github.com/manxnet/manx/proto/manx/v1"
)

func TestNoticeOfALimitThatTheKernelCannotDo(t *testing.T) {
	r := newRig(t)
	r.start()
	r.kernel.WithoutShaping()
	r.store(object(t, model.KindNode, "", "node-1",
		`{"metadata":{"name":"node-1"},"spec":{"bgp":{"ipv4Address":"10.1.0.1/24"}}}`),
		object(t, model.KindWorkloadEndpoint, "shop", "node--1-k8s-web-eth0",
			`{"metadata":{"name":"node--1-k8s-web-eth0","namespace":"shop"},
		"spec":{"node":"node-1","orchestrator":"k8s","pod":"web","endpoint":"eth0","interfaceName":"cali1","ipNetworks":["10.244.0.7/32"],
		"qosControls":{"ingressBandwidth":8000000,"egressBandwidth":8000000}}}`))
	eventually(t, func() string {
		list, err := r.client.ListNotices(r.context(), &manxv1.ListNoticesRequest{})
		if err != nil {
			return err.Error()
		}
		for _, n := range list.GetNotices() {
			if n.GetSubject() == "bandwidth of cali1" && n.GetText() == "limit the bandwidth of cali1: not supported "+
				"by this kernel" {
				return ""
			}
		}
		return "there is no such notice: " + list.String()
	})
	eventually(t, func() string {
		list, err := r.client.ListEndpoints(r.context(), &manxv1.ListEndpointsRequest{})
		if err != nil || len(list.GetEndpoints()) != 1 || list.GetEndpoints()[0].GetPhase() != "applied" {
			return fmt.Sprintf("the endpoint itself suffers: %v, %v", list, err)
		}
		return ""
	})
}

// A workload without rules keeps the node from being ready.
func TestUnprotectedWorkloads(t *testing.T) {
	r, p := withPolicy(t)
	p.status.Since, p.status.Transactions, p.status.Unprotected = since, 1, "cali1 has no policy"
	if c := r.server.Policy.Ready(); c.OK || !strings.Contains(c.Reason, p.status.Unprotected) {
		t.Errorf("the check is %+v", c)
	}
}

func TestNoticesOfPolicy(t *testing.T) {
	r, p := withPolicy(t)
	p.status = dataplane.PolicyStatus{Missing: []string{"the flow log records nothing"},
		Ignored:  map[model.Key]string{model.ResourceKey(model.KindHostEndpoint, "h"): "ignored: a policy"},
		Outdated: "connections go on"}
	list, err := r.client.ListNotices(r.context(), &manxv1.ListNoticesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"rules: the flow log records nothing", "HostEndpoint h: ignored: a policy",
		"floating addresses: connections go on"} {
		if !slices.ContainsFunc(list.GetNotices(), func(n *manxv1.Notice) bool {
			return n.GetTopic() == "dataplane" && n.GetSubject()+": "+n.GetText() == want
		}) {
			t.Errorf("there is no notice %q: %v", want, list)
		}
	}
}
