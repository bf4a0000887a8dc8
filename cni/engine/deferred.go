package engine

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io/fs"
	"path/filepath"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/manxnet/manx/cni"
	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/safefile"
)

// retryDeferred is the pause after the datastore did not answer.
const retryDeferred = 5 * time.Second

// deferrable reports whether a DEL may succeed although the datastore did not answer. The container is then detached,
// its addresses stay assigned, and a file that outlives this process records the remaining work.
func (c *call) deferrable(err error) bool {
	return c.Deferred != "" && c.conf.OwnIPAM() && (c.q.Step == cni.StepDel || c.q.Step == cni.StepRelease) &&
		unanswered(err)
}

// deferred answers a step of a DEL while the datastore does not answer. The step Del leaves all work to Release,
// because no address may be released before the container is detached.
func (c *call) deferred(cause error) error {
	if c.q.Step == cni.StepDel {
		c.reply.Attachment = &cni.Attachment{Deferred: true} // without hostIf, which may be a newer container's by now
		return nil
	}
	text, err := json.Marshal(c.q)
	if err == nil {
		err = safefile.Replace(c.record(), text, 0o600)
	}
	if err != nil {
		return errors.Join(cause, err)
	}
	c.log.Warn("detached; endpoint and addresses are given back when the datastore answers", zap.Error(cause))
	select {
	case c.wake <- struct{}{}:
	default:
	}
	return nil
}

// record returns the path of the file that records the remaining work for the container of this call.
func (c *call) record() string {
	sum := sha256.Sum256([]byte(c.conf.Name + " " + c.q.ContainerID + " " + c.q.IfName))
	return filepath.Join(c.Deferred, hex.EncodeToString(sum[:16]))
}

// forget deletes the record of a container that is attached again.
func (c *call) forget() error {
	if c.Deferred == "" {
		return nil
	}
	return withDir(c.Deferred, func(d *safefile.Dir) error { return d.Remove(filepath.Base(c.record())) })
}

// withDir calls f with a folder, if it exists.
func withDir(path string, f func(*safefile.Dir) error) error {
	d, err := safefile.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return errors.Join(f(d), d.Close())
}

// CatchUp completes deferred DELs, also those of earlier processes, until ctx ends.
func (e *Engine) CatchUp(ctx context.Context) {
	for e.Deferred != "" && ctx.Err() == nil {
		var again <-chan time.Time
		if err := withDir(e.Deferred, func(d *safefile.Dir) error { return e.catchUp(ctx, d) }); err != nil {
			if !unanswered(err) && ctx.Err() == nil {
				e.Log.Warn("a DEL that was deferred is not finished", zap.Error(err))
			}
			again = time.After(retryDeferred)
		}
		select {
		case <-ctx.Done():
		case <-e.wake:
		case <-again:
		}
	}
}

// unanswered reports whether an error shows that the datastore did not answer.
func unanswered(err error) bool {
	return errors.Is(err, datastore.ErrUnavailable) || errors.Is(err, context.DeadlineExceeded)
}

func (e *Engine) catchUp(ctx context.Context, d *safefile.Dir) error {
	names, err := d.Files()
	if err != nil {
		return err
	}
	d.RemoveLeftovers(e.Now())
	var problems []error
	for _, name := range names {
		if strings.HasPrefix(name, ".") { // being written
			continue
		}
		err := e.finishDeferred(ctx, d, name)
		problems = append(problems, err)
		if unanswered(err) {
			break // it would not answer the next one either
		}
	}
	return errors.Join(problems...)
}

// finishDeferred completes the DEL of one file, and removes the file.
func (e *Engine) finishDeferred(ctx context.Context, d *safefile.Dir, name string) error {
	text, err := d.Read(name, cni.MaxFrame)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	q := &cni.Request{}
	c := &call{Engine: e, q: q, log: e.Log, reply: &cni.Response{}}
	if err == nil {
		err = json.Unmarshal(text, q)
	}
	if err == nil {
		err = c.read()
	}
	if err != nil { // the garbage collection finds the addresses
		return errors.Join(err, d.Remove(name))
	}
	own, leave, err := e.take(ctx, c.turn())
	if err != nil {
		return err
	}
	defer leave()
	c.own = own
	if _, err := c.settle(ctx); err != nil && ctx.Err() != nil {
		return err
	}
	if _, err := d.Read(name, cni.MaxFrame); errors.Is(err, fs.ErrNotExist) {
		return nil // an ADD of the same container came first
	}
	closeStore, err := c.connect(ctx)
	defer closeStore()
	if err == nil {
		err = c.deleteOwnEndpoint(ctx)
	}
	if err == nil {
		err = c.releaseAll(ctx)
	}
	if err == nil {
		err = d.Remove(name)
	}
	return err
}
