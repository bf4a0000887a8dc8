package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"
	"go.uber.org/zap"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/manxnet/manx/bgp/password"
	"github.com/manxnet/manx/cmd/manxd/follow"
	"github.com/manxnet/manx/cmd/manxd/part"
	"github.com/manxnet/manx/cmd/manxd/secrets"
)

// passwordPoll is the pause before a failed watch of a folder is tried again.
const passwordPoll = 10 * time.Second

// passwordsPart provides the passwords of BGP sessions.
type passwordsPart interface {
	part.Part
	follow.Passwords
}

// passwordSource returns a folder of passwords if it is set, else Kubernetes' Secrets if its API is known.
func passwordSource(j *joined) (passwordsPart, error) {
	log := j.log.Named("bgp")
	if j.passwordDir != "" || j.kube == nil {
		return newPasswords(j.passwordDir, log), nil
	}
	client, err := typedcorev1.NewForConfig(j.kube)
	if err != nil {
		return nil, fmt.Errorf("passwords from the Kubernetes API: %w", err)
	}
	return secretPasswords{secrets.New(client, j.kubernetesNamespace(), log)}, nil
}

// secretPasswords are passwords in Secrets.
type secretPasswords struct{ *secrets.Secrets }

func (secretPasswords) Name() string { return "passwords" }

// passwords are passwords in a folder, which is watched.
type passwords struct {
	*password.Folder
	dir     string
	log     *zap.Logger
	changed chan struct{} // holds one token when passwords may have changed
}

// newPasswords returns the passwords of a folder; without a folder there are none.
func newPasswords(dir string, log *zap.Logger) *passwords {
	return &passwords{Folder: password.NewFolder(dir), dir: dir, log: log, changed: make(chan struct{}, 1)}
}

func (p *passwords) Name() string { return "passwords" }

// Changed implements follow.Passwords.
func (p *passwords) Changed() <-chan struct{} { return p.changed }

// Run watches the folder, if there is one.
func (p *passwords) Run(ctx context.Context) error {
	if p.dir == "" {
		return nil
	}
	watchPasswords(ctx, p.dir, p.notify, p.log)
	return ctx.Err()
}

// notify does not block.
func (p *passwords) notify() {
	select {
	case p.changed <- struct{}{}:
	default:
	}
}

// watchPasswords calls changed after each change in the folder of passwords, or in a folder of a secret in it. That may
// be more often than a password changes. It is only a hint: some file systems report no changes, so callers also poll.
func watchPasswords(ctx context.Context, dir string, changed func(), log *zap.Logger) {
	for ctx.Err() == nil {
		if err := watchFolders(ctx, dir, changed); err != nil {
			log.Debug("the folder of passwords cannot be watched, trying again", zap.String("folder", dir),
				zap.Error(err))
		}
		select {
		case <-ctx.Done():
		case <-time.After(passwordPoll):
		}
	}
}

// watchFolders returns when the folder is deleted, or cannot be watched.
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
	changed() // changes before the watch began
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
