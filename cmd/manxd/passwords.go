package main

import (
	"context"
	"fmt"

	"go.uber.org/zap"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/manxnet/manx/bgp/password"
	"github.com/manxnet/manx/cmd/manxd/follow"
	"github.com/manxnet/manx/cmd/manxd/part"
	"github.com/manxnet/manx/cmd/manxd/secrets"
)

// passwordsPart provides the passwords of BGP sessions.
type passwordsPart interface {
	part.Part
	follow.Passwords
}

// passwordSource returns a folder of passwords if it is set, else Kubernetes' Secrets if its API is known.
func passwordSource(j *joined) (passwordsPart, error) {
	log := j.log.Named("bgp")
	if j.passwordDir != "" || j.kube == nil {
		return folderPasswords{password.NewFolder(j.passwordDir), log}, nil
	}
	client, err := typedcorev1.NewForConfig(j.kube)
	if err != nil {
		return nil, fmt.Errorf("passwords from the Kubernetes API: %w", err)
	}
	return secretPasswords{secrets.New(client, kubernetesNamespace(j.namespace), log)}, nil
}

// secretPasswords are passwords in Secrets.
type secretPasswords struct{ *secrets.Secrets }

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
