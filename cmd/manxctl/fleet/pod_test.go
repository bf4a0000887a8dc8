package fleet

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// TestPodWarningsOfAllPages: the newest Event is on the last page of an API that sorts by name. An API that never ends
// is not asked for ever.
func TestPodWarningsOfAllPages(t *testing.T) {
	for last, want := range map[int]int{2: 2, 1000: mostPages - 1} {
		requests := 0
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if got := r.URL.Query().Get("continue"); requests > 0 && got != fmt.Sprint(requests) {
				t.Errorf("request %d continues at %q", requests, got)
			}
			list := corev1.EventList{Items: []corev1.Event{{Reason: fmt.Sprintf("page%d", requests),
				LastTimestamp: metav1.NewTime(time.Unix(int64(requests), 0))}}}
			if requests < last {
				list.Continue = fmt.Sprint(requests + 1)
			}
			requests++
			if err := json.NewEncoder(w).Encode(list); err != nil {
				t.Error(err)
			}
		}))
		defer server.Close()
		c, err := Open(&rest.Config{Host: server.URL, QPS: -1}, DefaultNamespace)
		if err != nil {
			t.Fatal(err)
		}
		texts, err := c.PodWarnings(t.Context(), "shop", "web")
		if err != nil || len(texts) != mostWarnings || !strings.HasPrefix(texts[0], fmt.Sprintf("page%d,", want)) ||
			requests != want+1 {
			t.Errorf("%d requests: %q, %v", requests, texts, err)
		}
	}
}
