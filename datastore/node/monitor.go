package node

import (
	"context"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/manxnet/manx/datastore"
)

// Monitor keeps the addresses of a Node that was registered up to date.
type Monitor struct {
	Config     Config
	Registered Result
	Store      datastore.Store
	Host       HostAddresses
	Changed    func(Result) // gets every new outcome; may be nil
	Log        *zap.Logger
}

// Run looks the addresses up again at each poll interval, while they are autodetected, and updates the Node when they
// changed. It returns when ctx ends; with addresses that are not autodetected, at once.
//
// Nothing that goes wrong changes the Node: it keeps the address it has, and the log says why.
func (m Monitor) Run(ctx context.Context) {
	if !m.Config.autodetects() {
		return
	}
	registered, log := m.Registered, m.Log
	r := registrar{config: m.Config, name: registered.Name, store: m.Store, host: m.Host}
	ticker := time.NewTicker(m.Config.pollInterval())
	defer ticker.Stop()
	said := strings.Join(registered.Warnings, "; ") // Register has logged them
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		result, err := r.ensureNode(ctx)
		problem, message := strings.Join(result.Warnings, "; "), "the node's addresses need attention"
		if err != nil {
			problem, message = err.Error(), "the node's addresses cannot be updated; it keeps those it has"
		}
		if problem != said && problem != "" && ctx.Err() == nil {
			log.Warn(message, zap.String("reason", problem))
		}
		said = problem
		if err != nil {
			continue
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
