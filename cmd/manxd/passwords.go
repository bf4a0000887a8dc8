package main

import (
	"context"
	"fmt"
	"path/filepath"

	"go.uber.org/zap"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/manxnet/manx/bgp/password"
	"github.com/manxnet/manx/daemon/bgpsecrets"
	"github.com/manxnet/manx/daemon/deps"
	"github.com/manxnet/manx/daemon/envflag"
	"github.com/manxnet/manx/daemon/follow"
	"github.com/manxnet/manx/daemon/part"
	"github.com/manxnet/manx/datastore/model"
)

// passwordOptions choose the source of the passwords of BGP sessions.
type passwordOptions struct{ dir string }

// Flags implements group.
func (o *passwordOptions) Flags(s envflag.Set) {
	s.String(&o.dir, "bgp-password-dir", "", "folder of BGP passwords: DIR/SECRET/KEY, as Kubernetes "+
		"mounts secrets", "MANX_BGP_PASSWORD_DIR")
}

// Check implements group.
func (o *passwordOptions) Check() error { return nil }

// passwordsPart provides the passwords of BGP sessions.
type passwordsPart interface {
	part.Part
	follow.Passwords
}

// passwordSource returns a folder of passwords if it is set, else Kubernetes' Secrets if its API is known.
func passwordSource(d deps.Deps, o passwordOptions) (passwordsPart, error) {
	log := d.Log.Named("bgp")
	if o.dir != "" || d.Kube == nil {
		return folderPasswords{password.NewFolder(o.dir), log}, nil
	}
	client, err := typedcorev1.NewForConfig(d.Kube)
	if err != nil {
		return nil, fmt.Errorf("passwords from the Kubernetes API: %w", err)
	}
	s := bgpsecrets.New(bgpsecrets.Config{Client: client, Namespace: d.Node.Namespace,
		File: passwordsFile(d.Node.RunDir), Server: d.Kube.Host, Log: log})
	d.Bus.LastState.Subscribe(func(model.Reader) { s.Hurry() }) // their source does not answer either
	return secretPasswords{s}, nil
}

// passwordsFile is the path of the file that keeps passwords from Secrets for a restart without the Kubernetes API.
func passwordsFile(runDir string) string { return filepath.Join(runDir, "bgp-passwords.json") }

// secretPasswords are passwords in Secrets.
type secretPasswords struct{ *bgpsecrets.Secrets }

func (secretPasswords) Name() string { return "passwords" }

// folderPasswords are passwords in a folder; without a folder there are none.
type folderPasswords struct {
	*password.Folder
	log *zap.Logger
}

func (folderPasswords) Name() string { return "passwords" }

// Run returns at once without a folder.
func (p folderPasswords) Run(ctx context.Context) error {
	p.Watch(ctx, p.log)
	return ctx.Err()
}
