// Package part is the contract for the parts of the daemon and the one loop that starts, restarts and ends them.
package part

import (
	"context"
	"errors"

	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/proto/server"
)

// Part is one task of the daemon. It gets its dependencies by its constructor. A nil Part is one that the settings
// leave out.
//
// Run works until ctx ends. When it returns nil before, the part has done all there was to do. An error makes the part
// be down until it is run again, after a pause; one that is Fatal ends the daemon. A panic ends the process: whatever
// the part has left half done, a new process reads again from the kernel and the datastore.
//
// A part may have what follows, too, and what server.Server.Add takes: Notices, the methods of prometheus.Collector,
// and gRPC services of its own (server.Service). All that is called while the part runs and while it is down.
type Part interface {
	Name() string
	Run(ctx context.Context) error
}

// Ready is a part without which the node is not ready. While it is down the check fails, whatever Ready says.
type Ready interface{ Ready() server.Check }

// Opener is a part that has something to open, such as a port, before parts behind it in the list start. Run follows
// when Open has succeeded; until then it is tried again every second. Open must not wait.
type Opener interface{ Open() error }

// Closer is a part that holds something until the daemon ends.
type Closer interface{ Close() }

// Explainer words the notice and the log line about an error of its Open or Run.
type Explainer interface{ Explain(error) string }

// Watcher is a part that needs objects of some kinds in the tables of the datastore.
type Watcher interface{ Kinds() []model.Kind }

// Fatal marks an error after which it is of no use to go on: the daemon ends with it. It returns nil for nil.
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

// Kinds returns all that parts need to have watched, each once, in the order of the parts.
func Kinds(parts ...Part) []model.Kind {
	var list []model.Kind
	seen := map[model.Kind]bool{}
	for _, p := range parts {
		w, ok := p.(Watcher)
		if !ok {
			continue
		}
		for _, k := range w.Kinds() {
			if !seen[k] {
				seen[k], list = true, append(list, k)
			}
		}
	}
	return list
}

// Optional is p as a Part, nil for one that the settings leave out.
func Optional[T any, P interface {
	*T
	Part
}](p P) Part {
	if p == nil {
		return nil
	}
	return p
}
