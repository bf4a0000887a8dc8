package kubernetes_test

import (
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/kubernetes"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/integration/kubernetes/apiserver"
)

// A server answers about a kind without a change, and about one that is missing. Behind a network that loses all
// packets the time of the last answer stays, before anything else shows that the server is away.
func TestAnswersOfTheServer(t *testing.T) {
	t.Parallel() // it waits for most of its time
	server := apiserver.Start(t)
	for kind, what := range map[model.Kind]string{model.KindBGPPeer: "a missing kind",
		model.KindNode: "a kind without a change"} {
		t.Run(what, func(t *testing.T) {
			t.Parallel() // the same
			line := apiserver.NewLine(t, server.URL)
			s := openAt(t, server, line.URL, kubernetes.Config{})
			tables := datastore.NewTables(zap.NewNop(), "")
			go tables.Run(t.Context(), s, kind) //nolint:errcheck // ends with the test
			if _, err := tables.WaitInSync(t.Context()); err != nil {
				t.Fatal(err)
			}
			answered := func(after time.Time) {
				t.Helper()
				poll := time.NewTicker(100 * time.Millisecond)
				defer poll.Stop()
				for end := time.Now().Add(2 * datastore.Heartbeat); !tables.Status().Answered.After(after); <-poll.C {
					if time.Now().After(end) {
						t.Fatalf("no answer for %v", time.Since(after))
					}
				}
			}
			answered(tables.Status().Answered.Add(2 * time.Second)) // not what was under way
			line.Hush()
			time.Sleep(time.Second) // what was under way has arrived
			last := tables.Status().Answered
			time.Sleep(8 * time.Second) // the age grows
			if now := tables.Status(); !now.Answered.Equal(last) || !now.InSync {
				t.Errorf("answered at %v, and at %v on a line without data; in sync: %v", last, now.Answered,
					now.InSync)
			}
			line.Mend()
			answered(last)
		})
	}
}
