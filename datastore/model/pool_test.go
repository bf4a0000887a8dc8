package model

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestPoolWithDefaults(t *testing.T) {
	old := &IPPool{Spec: IPPoolSpec{CIDR: "fd00::/48"}}
	p := old.WithDefaults()
	if p.Spec.BlockSize != 122 || p.Spec.IPIPMode != "Never" || p.Spec.VXLANMode != "Never" ||
		p.Spec.NodeSelector != "all()" ||
		len(p.Spec.AllowedUses) != 2 || *p.Spec.AssignmentMode != "Automatic" {
		t.Errorf("%+v", p.Spec)
	}
	if old.Spec.BlockSize != 0 || old.Spec.AssignmentMode != nil {
		t.Error("the pool itself was changed")
	}
	if four := (&IPPool{Spec: IPPoolSpec{CIDR: "10.0.0.0/8"}}).WithDefaults(); four.Spec.BlockSize != 26 {
		t.Errorf("%+v", four.Spec)
	}
	if set := (&IPPool{Spec: IPPoolSpec{CIDR: "10.0.0.0/8", BlockSize: 28,
		IPIPMode: "Always"}}).WithDefaults(); set.Spec.BlockSize != 28 || set.Spec.IPIPMode != "Always" {
		t.Errorf("%+v", set.Spec)
	}
}

func TestAllocatablePools(t *testing.T) {
	condition := func(typ, status string) *IPPoolStatus {
		return &IPPoolStatus{Conditions: []metav1.Condition{{Type: typ, Status: metav1.ConditionStatus(status)}}}
	}
	for _, c := range []struct {
		rule string
		pool IPPool
		want bool
	}{
		{"ordinary", IPPool{}, true},
		{"disabled", IPPool{Spec: IPPoolSpec{Disabled: true}}, false},
		{"being deleted", IPPool{ObjectMeta: metav1.ObjectMeta{DeletionTimestamp: &metav1.Time{}}}, false},
		{"said to be unusable", IPPool{Status: condition("Allocatable", "False")}, false},
		{"said to be usable", IPPool{Status: condition("Allocatable", "True")}, true},
		{"another condition", IPPool{Status: condition("Other", "False")}, true},
	} {
		if got := c.pool.Allocatable(); got != c.want {
			t.Errorf("%s: %v", c.rule, got)
		}
	}
}
