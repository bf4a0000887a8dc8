package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/etcd"
	"github.com/manxnet/manx/datastore/etcd/embedded"
)

// openStore connects to the datastore, after starting it if it is embedded; waiting is told what is waited for. The
// returned function stops both.
func openStore(ctx context.Context, o options, waiting func(error), log *zap.Logger) (datastore.Store, func(), error) {
	config, stop, err := o.etcd(ctx, log)
	if err != nil {
		return nil, nil, err
	}
	if err := etcd.WriteLocal(o.runDir, config); err != nil {
		log.Warn("manxctl and the CNI plugin need settings to find the datastore", zap.Error(err))
	}
	store, err := connect(ctx, config, o.waitForDatastore, waiting, log)
	if err != nil {
		stop()
		return nil, nil, err
	}
	warnings, stopWarning := context.WithCancel(ctx)
	go warn(warnings, config, log)
	return store, func() {
		stopWarning()
		if err := store.Close(); err != nil {
			log.Warn("datastore connection did not close cleanly", zap.Error(err))
		}
		stop()
	}, nil
}

// etcd is how the datastore is reached, after starting it if it is embedded; stop ends it then.
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
		log.Warn("the embedded datastore asks for no certificate: everybody who reaches it may change the cluster",
			zap.String("address", server.Address()))
	}
	return server.Config(), func() {
		if err := server.Close(); err != nil {
			log.Error("embedded datastore did not stop cleanly", zap.Error(err))
		}
	}, nil
}

// connect opens the datastore. If asked to wait it tries until the datastore answers; refused credentials and
// unusable settings end it in any case.
func connect(ctx context.Context, config etcd.Config, wait bool, waiting func(error), log *zap.Logger) (*etcd.Store, error) {
	said := ""
	for {
		store, err := etcd.Open(ctx, config, log.Named("datastore"))
		if err == nil {
			return store, nil
		}
		if !wait || !errors.Is(err, datastore.ErrUnavailable) {
			return nil, fmt.Errorf("datastore: %w", err)
		}
		waiting(err)
		if text := err.Error(); text != said {
			said = text
			log.Warn("waiting for the datastore", zap.Error(err))
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(time.Second):
		}
	}
}

// warnInterval is how often the way to the datastore is looked at for what is worth a warning.
const warnInterval = 12 * time.Hour

// warn logs each warning about the way to the datastore when it is new.
func warn(ctx context.Context, config etcd.Config, log *zap.Logger) {
	told := map[string]bool{}
	tick := time.NewTicker(warnInterval)
	defer tick.Stop()
	for {
		for _, text := range config.Warnings(time.Now()) {
			if !told[text] {
				told[text] = true
				log.Warn("datastore: " + text)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}
