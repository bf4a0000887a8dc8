package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"

	"github.com/manxnet/manx/cmd/manxd/beside"
	"github.com/manxnet/manx/cmd/manxd/kubewatch"
	"github.com/manxnet/manx/proto/server"
)

// calicoPoll is the interval between checks whether calico-node has ended.
const calicoPoll = 2 * time.Second

// calicoNode reports an active calico-node on this host.
type calicoNode struct {
	node    string // this host's name in Kubernetes
	waiting bool   // no work before it has ended

	mu     sync.Mutex
	active string
	since  time.Time
}

// set records the name of the active calico-node, empty for none. It reports whether the name has changed.
func (c *calicoNode) set(active string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.active == active {
		return false
	}
	c.active, c.since = active, time.Now()
	return true
}

// text returns the advice for an operator; empty without an active calico-node.
func (c *calicoNode) text() (string, time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.active == "" {
		return "", c.since
	}
	text := fmt.Sprintf("calico-node is active on this host (%s), and two programs must not program one node. Keep "+
		"it off this "+
		"node: give its DaemonSet the nodeSelector manx.io/network=calico, that of manx-node manx.io/network=manx, "+
		"and switch "+
		"this node over with `kubectl label node %s manx.io/network=manx --overwrite`; on a host without "+
		"Kubernetes end its "+
		"service (docs/operations.md, \"Moving a node from calico/node\")", c.active, c.node)
	if c.waiting {
		return text + ". manxd does nothing before, and goes on by itself then", c.since
	}
	return text, c.since
}

// Checks implements server.Checker: while manxd waits this node is not ready.
func (c *calicoNode) Checks() []server.Check {
	if text, _ := c.text(); text != "" && c.waiting {
		return []server.Check{{Name: "calico-node", Reason: text}}
	}
	return nil
}

// Notices implements server.Noticer.
func (c *calicoNode) Notices() []server.Notice {
	text, since := c.text()
	if text == "" {
		return nil
	}
	return []server.Notice{{Topic: "node", Subject: "calico-node", Text: text, Since: since}}
}

// finder returns the Finder of a calico-node with the available means.
func (d *daemon) finder(kube *rest.Config) beside.Finder {
	f := beside.Finder{Node: d.kubernetesNode(d.name), Sockets: beside.Sockets}
	if kube == nil {
		return f
	}
	if client, err := typedcorev1.NewForConfig(kube); err == nil {
		f.Pods = client
	}
	return f
}

// waitForCalicoNode returns when no calico-node is active on this host, and reports the wait until then.
func (d *daemon) waitForCalicoNode(ctx context.Context, kube *rest.Config) error {
	if d.besideCalicoNode {
		return nil
	}
	c, finder := &calicoNode{node: d.kubernetesNode(d.name), waiting: true}, d.finder(kube)
	shown, unknown := false, ""
	for {
		limited, cancel := context.WithTimeout(ctx, kubernetesTimeout)
		active, err := finder.Active(limited)
		cancel()
		if err != nil && err.Error() != unknown {
			unknown = err.Error()
			d.log.Info("it is not known whether a pod of calico-node runs on this host", zap.Error(err))
		}
		if c.set(active) && active != "" {
			text, _ := c.text()
			d.log.Error(text)
		}
		if active == "" {
			if shown {
				d.log.Info("calico-node has gone: this node starts")
			}
			return ctx.Err()
		}
		if !shown {
			d.control.Add(c)
			shown = true
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(calicoPoll):
		}
	}
}

// calicoWatch reports a calico-node that starts while this node runs. The programmed state stays: a node without any
// agent would be worse.
type calicoWatch struct {
	*calicoNode
	*joined
	pods typedcorev1.PodsGetter
}

func newCalicoWatch(j *joined) *calicoWatch {
	f := j.finder(j.kube)
	return &calicoWatch{calicoNode: &calicoNode{node: f.Node}, joined: j, pods: f.Pods}
}

func (c *calicoWatch) Name() string { return "calico-node" }

// Run implements part.Part.
func (c *calicoWatch) Run(ctx context.Context) error {
	kubewatch.Follow(ctx, kubewatch.Selection[*corev1.Pod]{
		Options: beside.Options(c.node),
		List: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			return c.pods.Pods("").List(ctx, o)
		},
		Watch: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return c.pods.Pods("").Watch(ctx, o)
		},
		Show: c.show,
		Failed: func(err error) {
			if err != nil {
				c.log.Debug("pods of calico-node cannot be followed", zap.Error(err))
			}
		},
	})
	return ctx.Err()
}

func (c *calicoWatch) show(pods []*corev1.Pod) {
	active := ""
	for _, p := range pods {
		if active == "" {
			active = beside.Describe(p)
		}
	}
	if c.set(active) && active != "" {
		text, _ := c.text()
		c.log.Error(text)
	}
}
