package node

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"slices"
	"strings"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/model"
)

// ensureCluster writes the objects that a cluster needs once. It never changes another writer's fields, and leaves
// calicoVersion to Calico's own programs: it would flap between nodes that each write their own, and calicoctl refuses
// to work with a cluster of another version, while any calicoctl works with a cluster without one.
func ensureCluster(ctx context.Context, store datastore.Store, clusterType string) error {
	_, err := ensure(ctx, store, model.ResourceKey(model.KindClusterInformation, "default"),
		func(c *v3.ClusterInformation) (bool, error) {
			return fillClusterInformation(&c.Spec, clusterType), nil
		})
	if err != nil {
		return err
	}
	for _, t := range []struct {
		name   string
		action v3.Action
		order  float64
	}{{"default", v3.Deny, 1e6}, {"kube-admin", v3.Pass, 1e3}, {"kube-baseline", v3.Pass, 1e7}} {
		if _, err := ensure(ctx, store, model.ResourceKey(model.KindTier, t.name), ifNew(func(v *model.Tier) {
			v.Spec.DefaultAction, v.Spec.Order = &t.action, &t.order
		})); err != nil {
			return err
		}
	}
	return nil
}

func fillClusterInformation(s *v3.ClusterInformationSpec, clusterType string) (changed bool) {
	if s.ClusterGUID == "" {
		var b [16]byte
		rand.Read(b[:]) // never fails
		s.ClusterGUID, changed = hex.EncodeToString(b[:]), true
	}
	if s.DatastoreReady == nil {
		ready := true
		s.DatastoreReady, changed = &ready, true
	}
	var types []string
	for t := range strings.SplitSeq(s.ClusterType+","+clusterType, ",") {
		if t = strings.TrimSpace(t); t != "" && !slices.Contains(types, t) {
			types = append(types, t)
		}
	}
	if merged := strings.Join(types, ","); merged != s.ClusterType {
		s.ClusterType, changed = merged, true
	}
	return changed
}

// ensureDefaults creates the configuration objects that users expect to edit. Calico's programs write one for each node
// in etcd only.
func (c *Config) ensureDefaults(ctx context.Context, store datastore.Store, name string) error {
	if _, err := ensure(ctx, store, model.ResourceKey(model.KindFelixConfiguration, "default"),
		func(f *model.FelixConfiguration) (changed bool, _ error) {
			if f.Spec.ReportingInterval == nil {
				f.Spec.ReportingInterval, changed = &metav1.Duration{}, true
			}
			if f.Spec.LogSeverityScreen == "" {
				f.Spec.LogSeverityScreen, changed = "Info", true
			}
			return changed, nil
		}); err != nil {
		return err
	}
	if !c.KubernetesDatastore {
		if err := ensureNodeFelix(ctx, store, name); err != nil {
			return err
		}
	}
	if c.PolicyOnly {
		return nil
	}
	if !c.NoBGPConfiguration {
		if _, err := ensure(ctx, store, model.ResourceKey(model.KindBGPConfiguration, "default"),
			ifNew(func(*model.BGPConfiguration) {})); err != nil {
			return err
		}
	}
	if c.UsePodCIDR {
		return nil
	}
	_, err := ensure(ctx, store, model.ResourceKey(model.KindIPAMConfiguration, "default"),
		ifNew(func(i *model.IPAMConfiguration) {
			yes := true
			i.Spec.AutoAllocateBlocks = &yes
		}))
	return err
}

func ensureNodeFelix(ctx context.Context, store datastore.Store, name string) error {
	_, err := ensure(ctx, store, model.ResourceKey(model.KindFelixConfiguration, "node."+name),
		func(f *model.FelixConfiguration) (changed bool, _ error) {
			if f.Spec.DefaultEndpointToHostAction == "" {
				f.Spec.DefaultEndpointToHostAction, changed = "Return", true
			}
			return changed, nil
		})
	return err
}

// ifNew returns a change for ensure that fills a new object and leaves an existing one unchanged.
func ifNew[T any](fill func(*T)) func(*T) (bool, error) {
	return func(v *T) (bool, error) {
		fill(v)
		return false, nil
	}
}
