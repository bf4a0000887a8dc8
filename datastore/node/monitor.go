package node

import (
	"context"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/manxnet/manx/datastore"
)

// Monitor keeps the addresses of a registered Node up to date.
type Monitor struct {
	Config     Config
	Registered Result
	Store      datastore.Store
	Host       HostAddresses
	Changed    func(Result) // receives every new result; may be nil
	Log        *zap.Logger
}

// Run detects the addresses again at each poll interval, while they are autodetected, and updates the Node after a
// change. It returns when ctx ends, or at once if no address is autodetected.
//
// An error never changes the Node: it keeps its address, and the error is logged and a warning of the result.
func (m Monitor) Run(ctx context.Context) {
	if !m.Config.autodetects() {
		return
	}
	registered, log := m.Registered, m.Log
	r := registrar{config: m.Config, name: registered.Name, store: m.Store, host: m.Host,
		log: log.With(zap.String("node", registered.Name))}
	ticker := time.NewTicker(m.Config.pollInterval())
	defer ticker.Stop()
	logged := strings.Join(registered.Warnings, "; ") // Register has logged them
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		result, err := r.ensureNode(ctx)
		problem, message := strings.Join(result.Warnings, "; "), "the Node needs attention"
		if err != nil {
			problem, message = err.Error(), "the node's addresses cannot be updated; it keeps those it has"
		}
		if ctx.Err() != nil {
			return
		}
		if problem != logged && problem != "" {
			log.Warn(message, zap.String("reason", problem))
		}
		logged = problem
		if err != nil {
			result = registered
			result.Warnings = []string{message + ": " + problem}
		}
		result.Name, result.NameFrom = registered.Name, registered.NameFrom
		if addressesChanged(registered.Node, result.Node) {
			log.Info("the node's address changed", zap.Any("from", registered.Node.Spec.BGP),
				zap.Any("to", result.Node.Spec.BGP))
		}
		registered = result
		if m.Changed != nil {
			m.Changed(result)
		}
	}
}
