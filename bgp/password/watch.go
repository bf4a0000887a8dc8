package password

import (
	"context"
	"os"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"
	"go.uber.org/zap"

	"github.com/manxnet/manx/retry"
)

// watchRetry is the pause before a failed watch of a folder is tried again.
const watchRetry = 10 * time.Second

// Changed receives when passwords may have changed, while Watch runs.
func (f *Folder) Changed() <-chan struct{} { return f.changed }

// Watch watches the folder until ctx ends, if there is one. It reports each change in the folder, or in a folder of a
// secret in it, to Changed. That may be more often than a password changes. It is only a hint: some file systems report
// no changes, so callers also poll.
func (f *Folder) Watch(ctx context.Context, log *zap.Logger) {
	for f.dir != "" && ctx.Err() == nil {
		if err := f.watch(ctx); err != nil {
			log.Debug("the folder of passwords cannot be watched, trying again", zap.String("folder", f.dir),
				zap.Error(err))
		}
		retry.Sleep(ctx, watchRetry)
	}
}

// notify does not block.
func (f *Folder) notify() {
	select {
	case f.changed <- struct{}{}:
	default:
	}
}

// watch returns when the folder is deleted, or cannot be watched.
func (f *Folder) watch(ctx context.Context) error {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return err
	}
	defer w.Close()
	if err := w.Add(f.dir); err != nil {
		return err
	}
	watchSecrets(w, f.dir)
	f.notify() // changes before the watch began
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-w.Errors:
			return err
		case e := <-w.Events:
			if e.Op == fsnotify.Chmod {
				continue
			}
			watchSecrets(w, f.dir) // one may be new
			f.notify()
			if e.Name == filepath.Clean(f.dir) && e.Has(fsnotify.Remove|fsnotify.Rename) {
				return nil
			}
		}
	}
}

// watchSecrets adds the folders of the secrets. Kubernetes swaps a link in such a folder when a secret changes, so to
// watch the folder is enough. To add one again does nothing.
func watchSecrets(w *fsnotify.Watcher, dir string) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return
	}
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		if info, err := os.Stat(path); err == nil && info.IsDir() {
			_ = w.Add(path) // it may be gone again
		}
	}
}
