// Package part defines the parts of the daemon, and the one loop that starts, restarts and ends them.
package part

import (
	"context"
	"errors"

	"github.com/manxnet/manx/proto/server"
)

// Part is one task of the daemon. Its constructor gets its dependencies. A nil Part is disabled by the settings.
//
// Run works until ctx ends. If it returns nil before, the work of the part is complete. After an error the part is down
// until it is run again, after a pause; a Fatal error ends the daemon. A panic ends the process: a new process reads
// the state again from the kernel and the datastore.
//
// A part may also implement the following interfaces, and those of server.Server.Add: Notices, the methods of
// prometheus.Collector, and gRPC services (server.Service). Their methods are called while the part runs and while it
// is down.
type Part interface {
	Name() string
	Run(ctx context.Context) error
}

// Ready is a part that the node's readiness requires. While it is down the check fails, whatever Ready returns.
type Ready interface{ Ready() server.Check }

// Opener is a part that opens a resource, such as a port, before parts behind it in the list start. Run follows when
// Open has succeeded; until then it is tried again every second. Open must not block.
type Opener interface{ Open() error }

// Closer is a part that holds a resource until the daemon ends.
type Closer interface{ Close() }

// Explainer returns the text of the notice and the log line for an error of its Open or Run.
type Explainer interface{ Explain(error) string }

// Watcher is a part that needs objects in the tables of the datastore: there may be more, never fewer.
type Watcher interface{ Needs() Needs }

// Fatal marks an error as permanent: it ends the daemon. It returns nil for nil.
func Fatal(err error) error {
	if err == nil {
		return nil
	}
	return &fatal{err}
}

type fatal struct{ error }

func (f *fatal) Unwrap() error { return f.error }

func isFatal(err error) bool {
	var f *fatal
	return errors.As(err, &f)
}

// Optional returns p as a Part, nil if the settings disable it.
func Optional[T any, P interface {
	*T
	Part
}](p P) Part {
	if p == nil {
		return nil
	}
	return p
}
