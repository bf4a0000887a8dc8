package main

import (
	"context"
	"fmt"

	"go.uber.org/zap"

	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/connect"
	"github.com/manxnet/manx/datastore/etcd"
	"github.com/manxnet/manx/datastore/etcd/embedded"
)

// openStore connects to the datastore, after starting it if it is embedded; waiting receives the reason of each wait.
// The returned function stops both.
func openStore(ctx context.Context, o options, waiting func(error), log *zap.Logger) (datastore.Backend, func(),
	error) {
	config, stop, err := o.etcd(ctx, log)
	if err != nil {
		return nil, nil, err
	}
	config.Rewatched = o.rewatched
	settings := connect.Settings{
		Type: o.datastore, Etcd: config, Kube: o.kubernetes(), Wait: o.waitForDatastore, Waiting: waiting,
		Warn: func(text string) { log.Warn("datastore: " + text) },
	}
	if err := connect.WriteLocal(o.runDir, settings); err != nil {
		log.Warn("manxctl and the CNI plugin need settings to find the datastore", zap.Error(err))
	}
	store, err := connect.Open(ctx, settings, log)
	if err != nil {
		stop()
		if ctx.Err() != nil {
			return nil, nil, ctx.Err()
		}
		return nil, nil, fmt.Errorf("datastore: %w", err)
	}
	return store, func() {
		if err := store.Close(); err != nil {
			log.Warn("datastore connection did not close cleanly", zap.Error(err))
		}
		stop()
	}, nil
}

// etcd returns the settings of the datastore, after starting it if it is embedded; stop ends it then.
func (o options) etcd(ctx context.Context, log *zap.Logger) (config etcd.Config, stop func(), err error) {
	if o.datastore != "embedded" {
		return etcd.Config{
			Endpoints: etcd.SplitEndpoints(o.etcdEndpoints),
			CAFile:    o.etcdCAFile, CertFile: o.etcdCertFile, KeyFile: o.etcdKeyFile,
			Username: o.etcdUsername, Password: o.etcdPassword, PasswordFile: o.etcdPasswordFile,
		}, func() {}, nil
	}
	server, err := embedded.Start(ctx, embedded.Config{
		DataDir: o.dataDir, Listen: o.embeddedListen, Insecure: o.embeddedInsecure,
		CAFile: o.embeddedCAFile, CertFile: o.embeddedCertFile, KeyFile: o.embeddedKeyFile,
	}, log.Named("etcd"))
	if err != nil {
		return config, nil, err
	}
	if o.embeddedInsecure {
		log.Warn("the embedded datastore requires no certificate: everybody who reaches it may change the cluster",
			zap.String("address", server.Address()))
	}
	return server.Config(), func() {
		if err := server.Close(); err != nil {
			log.Error("embedded datastore did not stop cleanly", zap.Error(err))
		}
	}, nil
}
