package main

import (
	"context"
	"os"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"
	"go.uber.org/zap"
)

// watchPasswords calls changed whenever something in the folder of passwords, or in a folder of a secret in it, changes.
// That may be more often than a password does. It is a help only: who needs certainty looks from time to time, since
// there are file systems that tell nothing.
func watchPasswords(ctx context.Context, dir string, changed func(), log *zap.Logger) {
	for ctx.Err() == nil {
		if err := watchFolders(ctx, dir, changed); err != nil {
			log.Debug("the folder of passwords cannot be watched, trying again", zap.String("folder", dir), zap.Error(err))
		}
		select {
		case <-ctx.Done():
		case <-time.After(passwordPoll):
		}
	}
}

// watchFolders returns when the folder goes, or cannot be watched.
func watchFolders(ctx context.Context, dir string, changed func()) error {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return err
	}
	defer w.Close()
	if err := w.Add(dir); err != nil {
		return err
	}
	watchSecrets(w, dir)
	changed() // what changed before the watch began
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
			watchSecrets(w, dir) // one may be new
			changed()
			if e.Name == filepath.Clean(dir) && e.Has(fsnotify.Remove|fsnotify.Rename) {
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
