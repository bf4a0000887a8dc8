package fleet

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/transport/spdy"
	utilexec "k8s.io/client-go/util/exec"
)

// Command is a command of manxctl in a pod.
type Command struct {
	Args           []string
	Stdout, Stderr io.Writer
	// Most is the number of bytes of standard output after which the command is given up; 0: no limit, for an output
	// that is kept nowhere.
	Most int64
}

// Run runs a command in the node's pod and returns its exit code. The error is that of the way to the pod: the node
// does not answer until ctx ends, the caller may not, or the output has no end.
func (c *Cluster) Run(ctx context.Context, n Node, command Command) (int, error) {
	if n.Absent != "" {
		return 0, errors.New(n.Absent)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	executor, err := c.executor(n, command, cancel)
	if err != nil {
		return 0, err
	}
	// The first exchange does not end with ctx in client-go.
	done := make(chan error, 1)
	go func() {
		done <- executor.StreamWithContext(ctx, remotecommand.StreamOptions{Stdout: command.Stdout,
			Stderr: command.Stderr})
	}()
	select {
	case err = <-done:
	case <-ctx.Done():
	}
	var exit utilexec.CodeExitError
	switch {
	case ctx.Err() != nil:
		return 0, context.Cause(ctx)
	case errors.As(err, &exit):
		return exit.Code, nil
	case apierrors.IsForbidden(err):
		return 0, fmt.Errorf("%w (commands for nodes run in the pods of %s: they need the right to create pods/exec "+
			"there)", err, daemonSet)
	}
	return 0, err
}

// executor uses SPDY, which the right to create pods/exec suffices for and each API server speaks.
func (c *Cluster) executor(n Node, command Command, cancel context.CancelCauseFunc) (remotecommand.Executor, error) {
	r := c.api.Post().Resource("pods").Namespace(c.namespace).Name(n.Pod).SubResource("exec").
		Param("container", container).Param("stdout", "true").Param("stderr", "true").Param("command", "/manxctl")
	for _, a := range command.Args {
		r.Param("command", a)
	}
	transport, upgrader, err := spdy.RoundTripperFor(c.config)
	if err != nil {
		return nil, err
	}
	limits := map[string]int64{corev1.StreamTypeStdout: command.Most, corev1.StreamTypeStderr: mostMessage,
		corev1.StreamTypeError: mostMessage}
	return remotecommand.NewSPDYExecutorForTransports(transport, boundedUpgrader{upgrader, limits, cancel},
		http.MethodPost, r.URL())
}

// errTooMuch is the end of a command whose output exceeds its limit.
type errTooMuch struct {
	stream string
	most   int64
}

func (e errTooMuch) Error() string {
	return fmt.Sprintf("its answer (%s) has more than %d bytes: it is not read further", e.stream, e.most)
}
