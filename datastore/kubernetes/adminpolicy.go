package kubernetes

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"time"

	"go.uber.org/zap"

	"github.com/manxnet/manx/retry"
)

// unreadInterval is the shortest interval between searches for objects of unread kinds, and half of the longest one.
const unreadInterval = 5 * time.Minute

// unread are the resources of v1alpha1 of the network policy API, which some releases of Calico enforce. Manx reads
// ClusterNetworkPolicy, their successor in v1alpha2.
var (
	unread      = []string{"adminnetworkpolicies", "baselineadminnetworkpolicies"}
	unreadKinds = []string{"AdminNetworkPolicy", "BaselineAdminNetworkPolicy"}
)

// followUnread keeps the notice about objects of unread kinds current until ctx ends.
func (s *Store) followUnread(ctx context.Context) {
	for {
		for _, plural := range unread {
			s.findUnread(ctx, plural)
		}
		if !retry.Sleep(ctx, unreadInterval+rand.N(unreadInterval)) {
			return
		}
	}
}

// findUnread records whether a resource of an unread kind exists. A server that does not have the kind has none;
// without the right to list it, or without an answer, what was known stays.
func (s *Store) findUnread(ctx context.Context, plural string) {
	limited, cancel := bounded(ctx)
	defer cancel()
	raw, err := s.client.do(limited, request{verb: http.MethodGet, accept: asJSON, once: true,
		path: "/apis/policy.networking.k8s.io/v1alpha1/" + plural, query: url.Values{"limit": {"1"}}})
	var list struct {
		Items []struct {
			Metadata struct{ Name string }
		}
	}
	if err == nil {
		err = json.Unmarshal(raw, &list)
	}
	if err != nil && !noResource(err) {
		s.log.Debug("unread policies are not known", zap.String("resource", plural), zap.Error(err))
		return
	}
	text := ""
	if len(list.Items) > 0 {
		text = fmt.Sprintf("%s.policy.networking.k8s.io of version v1alpha1, such as %q, are not read: Manx enforces "+
			"none of their rules. Write them as ClusterNetworkPolicy (v1alpha2), or as GlobalNetworkPolicy", plural,
			list.Items[0].Metadata.Name)
	}
	s.mu.Lock()
	was := s.unread[plural]
	s.unread[plural] = text
	s.mu.Unlock()
	if text != "" && was == "" {
		s.log.Warn(text)
	}
}
