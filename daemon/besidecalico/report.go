// Package besidecalico waits for the end of a calico-node that is active on the host, and reports it.
package besidecalico

import (
	"context"
	"fmt"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/manxnet/manx/controllers/caliconode"
	"github.com/manxnet/manx/proto/server"
)

const (
	// poll is the interval between checks whether calico-node has ended.
	poll = 2 * time.Second
	// searchTimeout bounds one check.
	searchTimeout = 10 * time.Second
)

// report reports an active calico-node on this host.
type report struct {
	node    string // this host's name in Kubernetes
	waiting bool   // no work before it has ended

	mu       sync.Mutex
	active   string
	since    time.Time
	doubtful string // the notice about pods that only look like calico-node; empty for none
	doubted  time.Time
}

// doubt records the text of the notice about pods that only look like calico-node, empty for no notice.
func (r *report) doubt(text string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.doubtful != text {
		r.doubtful, r.doubted = text, time.Now()
	}
}

// set records the name of the active calico-node, empty for none. It reports whether the name has changed.
func (r *report) set(active string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.active == active {
		return false
	}
	r.active, r.since = active, time.Now()
	return true
}

// text returns the advice for an operator; empty without an active calico-node.
func (r *report) text() (string, time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.active == "" {
		return "", r.since
	}
	text := fmt.Sprintf("calico-node is active on this host (%s), and two programs must not program one node. %s",
		r.active, caliconode.Remedy(r.node))
	if r.waiting {
		return text + ". manxd does nothing before, and goes on by itself then", r.since
	}
	return text, r.since
}

// Checks implements server.Checker: while manxd waits this node is not ready.
func (r *report) Checks() []server.Check {
	if text, _ := r.text(); text != "" && r.waiting {
		return []server.Check{{Name: "calico-node", Reason: text}}
	}
	return nil
}

// Notices implements server.Noticer.
func (r *report) Notices() (list []server.Notice) {
	if text, since := r.text(); text != "" {
		list = append(list, server.Notice{Topic: "node", Subject: "calico-node", Text: text, Since: since})
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.doubtful != "" {
		list = append(list, server.Notice{Topic: "node", Subject: "calico-node", Text: r.doubtful, Since: r.doubted})
	}
	return list
}

// Wait returns when no calico-node is active on this host, and reports the wait until then, to the server and the log.
// found is called when one is active.
func Wait(ctx context.Context, f caliconode.Finder, s *server.Server, found func(), log *zap.Logger) error {
	r := &report{node: f.Node, waiting: true}
	shown, unknown := false, ""
	for {
		limited, cancel := context.WithTimeout(ctx, searchTimeout)
		active, err := f.Find(limited)
		cancel()
		if err != nil && err.Error() != unknown {
			unknown = err.Error()
			log.Info("it is not known whether a pod of calico-node runs on this host", zap.Error(err))
		}
		if r.set(active) && active != "" {
			text, _ := r.text()
			log.Error(text)
		}
		if active == "" {
			if shown {
				log.Info("calico-node has gone: this node starts")
			}
			return ctx.Err()
		}
		if !shown {
			found()
			s.Add(r)
			shown = true
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(poll):
		}
	}
}
