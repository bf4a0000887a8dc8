package fleet

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// parallel is the number of nodes that are called at a time.
const parallel = 16

// Answer is the result of a command on a node.
type Answer struct {
	Node
	Stdout, Stderr []byte
	Code           int   // the exit code
	Err            error // why there is no answer
}

// RunOn runs a command on all nodes, several at a time, and returns their answers in the order of nodes. A node has
// limit to answer, with at most most bytes. The error is the refusal of the API if it refuses all nodes: one node alone
// cannot hide the others by one.
func (c *Cluster) RunOn(ctx context.Context, nodes []Node, limit time.Duration, most int64, args ...string) ([]Answer,
	error) {
	answers := make([]Answer, len(nodes))
	var group errgroup.Group
	group.SetLimit(parallel)
	for i, n := range nodes {
		group.Go(func() error {
			answers[i] = c.runOn(ctx, n, limit, most, args)
			return nil
		})
	}
	_ = group.Wait() // no function has an error
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	var refusal error
	for _, a := range answers {
		switch {
		case a.Absent != "": // no request was sent
		case apierrors.IsForbidden(a.Err) || apierrors.IsUnauthorized(a.Err):
			refusal = a.Err
		default:
			return answers, nil
		}
	}
	if refusal != nil {
		return nil, refusal
	}
	return answers, nil
}

func (c *Cluster) runOn(ctx context.Context, n Node, limit time.Duration, most int64, args []string) Answer {
	out, errs := &buffer{}, &buffer{}
	ctx, cancel := Within(ctx, limit)
	defer cancel()
	code, err := c.Run(ctx, n, Command{Args: args, Stdout: out, Stderr: errs, Most: most})
	return Answer{Node: n, Stdout: out.bytes(), Stderr: errs.bytes(), Code: code, Err: err}
}

// Within returns a context for a node that has limit to answer.
func Within(ctx context.Context, limit time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, limit, fmt.Errorf("no answer within %s from its kubelet and container runtime",
		limit))
}
