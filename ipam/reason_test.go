package ipam

import (
	"context"
	"strings"
	"testing"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/manxnet/manx/datastore/model"
)

// TestWhyNotAsAutoAssign: the exported reason about a pool is that with which AutoAssign refuses a request, also where
// a datastore with checks has no such pool.
func TestWhyNotAsAutoAssign(t *testing.T) {
	change := func(f func(*model.IPPool)) *model.Object {
		o := poolObject("p", "10.0.0.0/29", 29)
		f(o.Value.(*model.IPPool))
		return o
	}
	for _, c := range []struct {
		name string
		pool *model.Object
	}{
		{"disabled", poolObject("p", "10.0.0.0/29", 29, disabled)},
		{"being deleted", change(func(p *model.IPPool) { now := metav1.Now(); p.DeletionTimestamp = &now })},
		{"condition Allocatable", change(func(p *model.IPPool) {
			p.Status = &model.IPPoolStatus{Conditions: []metav1.Condition{{Type: model.ConditionAllocatable,
				Status: metav1.ConditionFalse}}}
		})},
		{"assignmentMode is Manual", poolObject("p", "10.0.0.0/29", 29, manual)},
		{"nodeSelector", poolObject("p", "10.0.0.0/29", 29, selecting("rack == 'r2'"))},
		{"nodeSelector cannot be read", poolObject("p", "10.0.0.0/29", 29, selecting("("))},
		{"labels of the namespace are not known", change(func(p *model.IPPool) {
			p.Spec.NamespaceSelector = "team == 'x'"
		})},
		{"namespaceSelector cannot be read", change(func(p *model.IPPool) { p.Spec.NamespaceSelector = "(" })},
		{"allowedUses lack Workload", change(func(p *model.IPPool) {
			p.Spec.AllowedUses = []v3.IPPoolAllowedUse{tunnel}
		})},
	} {
		value := c.pool.Value.(*model.IPPool)
		parsed, err := parsePool("p", value)
		if err != nil {
			t.Fatal(err)
		}
		labels := map[string]string{"rack": "r1"}
		_, refusal := choosePools([]pool{parsed}, &Request{Host: "e", Use: workload}, IPv4, labels)
		why, err := WhyNot(value, Asker{Node: "e", Use: workload, NodeLabels: labels})
		if err != nil {
			why = err.Error()
		}
		if !strings.Contains(why, c.name) {
			t.Errorf("%s: the reason is %q", c.name, why)
		}
		if refusal == nil || !strings.Contains(refusal.Error(), "pool p (10.0.0.0/29): "+why) {
			t.Errorf("%s: refused with %v", c.name, refusal)
		}
	}
}

// TestWhyNoneAsAutoAssign: the same for pools whose rules let a node have an address, and that have none for it.
func TestWhyNoneAsAutoAssign(t *testing.T) {
	strict := model.IPAMConfig{StrictAffinity: true, AutoAllocateBlocks: true}
	for _, c := range []struct {
		name   string
		config model.IPAMConfig
		others int // addresses that another node has in the only block
		want   string
	}{
		{"full", model.IPAMConfig{AutoAllocateBlocks: true}, 8, "full: 8 of 8 addresses"},
		{"room to borrow", model.IPAMConfig{AutoAllocateBlocks: true}, 7, ""},
		{"strict affinity", strict, 7, "no block left: 7 of 8 addresses"},
		{"a block to take", strict, 0, ""},
	} {
		x := newBench(t, poolObject("p", "10.0.0.0/29", 29), configObject(c.config))
		if c.others > 0 {
			if _, err := x.auto("b", "b", c.others); err != nil {
				t.Fatal(err)
			}
		}
		usage, err := x.Utilization(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		why := usage[0].WhyNone(Host("e"), c.config.StrictAffinity)
		_, refusal := x.auto("e", "h", 1)
		if !strings.HasPrefix(why, c.want) || (why == "") != (refusal == nil) {
			t.Errorf("%s: %q, and the request: %v", c.name, why, refusal)
		}
		if why != "" {
			x.refused(refusal, "pool p (10.0.0.0/29): "+why)
		}
	}
}
