package fleet

import (
	"context"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
)

// Ready returns on how many nodes the newest pods of manx-node are ready, as /readyz says, and on how many they should
// be. It reads the DaemonSet alone.
func (c *Cluster) Ready(ctx context.Context) (ready, want int, err error) {
	var d appsv1.DaemonSet
	if err := decode(c.api.Get().AbsPath("/apis/apps/v1/namespaces", c.namespace, "daemonsets", daemonSet).Do(ctx),
		&d); err != nil {
		return 0, 0, fmt.Errorf("DaemonSet %s/%s: %w", c.namespace, daemonSet, err)
	}
	s := d.Status
	if s.ObservedGeneration < d.Generation {
		return 0, int(s.DesiredNumberScheduled), nil
	}
	return int(min(s.NumberReady, s.UpdatedNumberScheduled)), int(s.DesiredNumberScheduled), nil
}
