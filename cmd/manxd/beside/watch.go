package beside

import (
	"context"

	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/manxnet/manx/cmd/manxd/kubewatch"
)

// Watch is a part of the daemon. It reports a calico-node that starts while this node runs. The programmed state stays:
// a node without any agent would be worse.
type Watch struct {
	*report
	pods typedcorev1.PodsGetter
	log  *zap.Logger
}

// NewWatch returns a Watch of the pods of calico-node on the Finder's node. The Finder searches pods.
func NewWatch(f Finder, log *zap.Logger) *Watch {
	return &Watch{report: &report{node: f.node}, pods: f.pods, log: log}
}

func (w *Watch) Name() string { return "calico-node" }

// Run implements part.Part.
func (w *Watch) Run(ctx context.Context) error {
	kubewatch.Follow(ctx, kubewatch.Selection[*corev1.Pod]{
		Options: options(w.node),
		List: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			return w.pods.Pods("").List(ctx, o)
		},
		Watch: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return w.pods.Pods("").Watch(ctx, o)
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
	active := ""
	for _, p := range pods {
		if active == "" {
			active = describe(p)
		}
	}
	if w.set(active) && active != "" {
		text, _ := w.text()
		w.log.Error(text)
	}
}
