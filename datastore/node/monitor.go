package node

import (
	"context"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/manxnet/manx/datastore"
)

// Monitor looks the addresses up again at each poll interval, while they are autodetected, and updates the Node when
// they changed. It returns when ctx ends; with addresses that are not autodetected, at once.
//
// Nothing that goes wrong changes the Node: it keeps the address it has, and the log says why. changed gets every new
// outcome; it may be nil.
func Monitor(ctx context.Context, c Config, registered Result, store datastore.Store, host HostAddresses,
	changed func(Result), log *zap.Logger) {
	if !c.autodetects() {
		return
	}
	r := registrar{config: c, name: registered.Name, store: store, host: host}
	ticker := time.NewTicker(c.pollInterval())
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
		if changed != nil {
			changed(result)
		}
	}
}
