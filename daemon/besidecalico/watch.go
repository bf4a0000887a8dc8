package besidecalico

import (
	"context"
	"fmt"

	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/manxnet/manx/controllers/caliconode"
	"github.com/manxnet/manx/daemon/kubewatch"
)

// Watch is a part of the daemon. It reports a calico-node that starts while this node runs. The programmed state stays:
// a node without any agent would be worse.
type Watch struct {
	*report
	finder caliconode.Finder
	log    *zap.Logger
}

// NewWatch returns a Watch of the pods of calico-node on the Finder's node. The Finder searches pods.
func NewWatch(f caliconode.Finder, log *zap.Logger) *Watch {
	return &Watch{report: &report{node: f.Node}, finder: f, log: log}
}

func (w *Watch) Name() string { return "calico-node" }

// Run implements part.Part.
func (w *Watch) Run(ctx context.Context) error {
	kubewatch.Follow(ctx, kubewatch.Selection[*corev1.Pod]{
		Options: caliconode.Options(w.node),
		List: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			return w.finder.Pods.Pods("").List(ctx, o)
		},
		Watch: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return w.finder.Pods.Pods("").Watch(ctx, o)
		},
		Show: w.show,
		Failed: func(err error) {
			if err != nil {
				w.log.Debug("pods of calico-node cannot be followed", zap.Error(err))
			}
		},
	})
	return ctx.Err()
}

func (w *Watch) show(pods []*corev1.Pod) {
	active, doubtful, more := "", "", 0
	for _, p := range pods {
		why := w.finder.Doubt(p)
		switch {
		case w.finder.Self(p):
		case why == "" && active == "":
			active = caliconode.Describe(p)
		case why == "" || ended(p):
		case doubtful == "":
			doubtful = fmt.Sprintf("%s has the label k8s-app=%s on this node and does not count: %s",
				caliconode.Describe(p), p.Labels["k8s-app"], why)
		default:
			more++
		}
	}
	if more > 0 {
		doubtful += fmt.Sprintf(" (and %d more such pods)", more)
	}
	w.doubt(doubtful)
	if w.set(active) && active != "" {
		text, _ := w.text()
		w.log.Error(text)
	}
}

// ended reports whether a pod does not run any more.
func ended(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
}
