package cluster

import (
	"errors"
	"fmt"
	"strings"
)

// kubeletAway ends the kubelet between the ADD and the DEL of pods. One pod is deleted meanwhile, and waits for the
// kubelet. Another one is deleted with force, so that the API does not have it when the kubelet comes back.
func (w *World) kubeletAway() error {
	if _, ok := w.install.(byHand); ok {
		return nil // this reads the objects of the Kubernetes API
	}
	node := w.Worker("node1")
	before, err := w.memory()
	if err != nil {
		return err
	}
	if err := w.Apply(plainPod("late", node.Name) + plainPod("forced", node.Name)); err != nil {
		return err
	}
	if err := w.WaitPod("late", "forced"); err != nil {
		return err
	}
	if err := node.StopProgram("kubelet"); err != nil {
		return err
	}
	if _, err := w.Kubectl("delete", "pod", "late", "--grace-period=1", "--wait=false"); err != nil {
		return err
	}
	if _, err := w.Kubectl("delete", "pod", "forced", "--grace-period=0", "--force"); err != nil {
		return err
	}
	for _, pod := range []string{"late", "forced"} {
		if _, _, err := node.Sandbox(pod); err != nil {
			return fmt.Errorf("without the kubelet: %w", err)
		}
	}
	if err := node.RestartProgram("kubelet"); err != nil {
		return err
	}
	if _, err := w.Kubectl("wait", "--for=delete", "pod/late", "--timeout=180s"); err != nil {
		return err
	}
	return w.awaitUnchanged(before)
}

// awaitUnchanged waits until addresses, links, routes and rules are as before.
func (w *World) awaitUnchanged(before *memory) error {
	err := eventually(func() error {
		after, err := w.memory()
		if err != nil {
			return err
		}
		return errors.Join(w.audit(), before.compare(after))
	})
	if err == nil {
		w.show("addresses, links, routes, rules and sessions", "are as before")
	}
	return err
}

// containerdKilled ends containerd with SIGKILL in the middle of an ADD, while manxd is stopped and does not respond.
// The plugin goes on, and its result is not read. Afterwards containerd has no record of the sandbox; the kubelet has
// it make another one.
func (w *World) containerdKilled() error {
	if _, ok := w.install.(byHand); ok {
		return nil // this reads the objects of the Kubernetes API
	}
	node := w.Worker("node1")
	before, err := w.memory()
	if err != nil {
		return err
	}
	daemon, err := w.signalDaemon(node, "STOP")
	if err != nil {
		return err
	}
	err = w.Apply(plainPod("interrupted", node.Name))
	if err == nil {
		err = eventually(func() error { return w.pluginRuns(node.Name) })
	}
	if err == nil {
		err = node.StopProgram("containerd")
	}
	if err := errors.Join(err, w.continueDaemon(node, daemon)); err != nil {
		return err
	}
	if err := eventually(func() error {
		if w.pluginRuns(node.Name) == nil {
			return errors.New("the plugin whose runtime was killed does not end")
		}
		return nil
	}); err != nil {
		return err
	}
	if err := node.RestartProgram("containerd"); err != nil {
		return err
	}
	if err := w.WaitPod("interrupted"); err != nil {
		return err
	}
	// An address of the sandbox that containerd has forgotten would stay until the garbage collection.
	if err := eventually(w.audit); err != nil {
		return err
	}
	if _, err := w.Kubectl("delete", "pod", "interrupted", "--grace-period=1", "--timeout=120s"); err != nil {
		return err
	}
	return w.awaitUnchanged(before)
}

// pluginRuns is nil while the CNI plugin runs on a node.
func (w *World) pluginRuns(node string) error {
	out, err := w.Worker(node).RunIn("sh", "-c",
		`for p in /proc/[0-9]*; do case "$(readlink $p/exe)" in /opt/cni/bin/*) echo "$p";; esac; done`)
	if err == nil && strings.TrimSpace(out) == "" {
		err = errors.New("the plugin does not run")
	}
	return err
}
