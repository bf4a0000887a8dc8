package cluster

import (
	"fmt"
	"strings"
	"time"

	"github.com/manxnet/manx/integration/kubernetes/lab"
	hosts "github.com/manxnet/manx/integration/lab"
)

// longestBackOff is longer than the kubelet ever waits with a container that ended again and again.
const longestBackOff = 6 * time.Minute

// daemons is a script for a node that lists the IDs of the processes manxd, without their parents and the controllers.
const daemons = `for p in /proc/[0-9]*; do
	read -r name <$p/comm && [ "$name" = manxd ] && ! grep -qa controllers $p/cmdline && echo ${p#/proc/}
done 2>/dev/null; true`

// daemon returns the process IDs of manxd, as the node counts.
func (w *World) daemon(n *lab.Node) (string, error) {
	out, err := n.RunIn("sh", "-c", daemons)
	return strings.Join(strings.Fields(out), " "), err
}

// awaitDaemon waits until manxd runs in another process than before.
func (w *World) awaitDaemon(n *lab.Node, before string) (pid string, err error) {
	err = hosts.Eventually(longestBackOff, func() error {
		// Two run for a moment while a pod is replaced.
		if pid, err = w.daemon(n); err == nil && (pid == "" || pid == before || strings.Contains(pid, " ")) {
			err = fmt.Errorf("%s: manxd is not back: %q, before %q", n.Name, pid, before)
		}
		return err
	})
	return pid, err
}

// signalDaemon sends a signal to manxd, and returns its process ID.
func (w *World) signalDaemon(n *lab.Node, signal string) (string, error) {
	pid, err := w.awaitDaemon(n, "")
	if err == nil {
		_, err = n.RunIn("kill", "-"+signal, pid)
	}
	return pid, err
}

// continueDaemon ends the effect of the signal STOP.
func (w *World) continueDaemon(n *lab.Node, pid string) error {
	_, err := n.RunIn("sh", "-c", "kill -CONT "+pid+" || true") // it may have ended
	return err
}
