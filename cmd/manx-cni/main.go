package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/version"
	"go.uber.org/zap"

	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/connect"
	"github.com/manxnet/manx/datastore/etcd"
)

// buildVersion is set when the binary is linked.
var buildVersion = "dev"

// versions of the CNI specification that both roles speak.
var versions = version.PluginSupports("0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0")

func main() {
	if len(os.Args) == 2 && (os.Args[1] == "-v" || os.Args[1] == "--version") {
		os.Stdout.WriteString(buildVersion + "\n")
		return
	}
	p := &plugin{
		getenv: os.Getenv, stdout: os.Stdout, stderr: os.Stderr,
		mtuFile: defaultMTUFile, now: time.Now, open: openDatastore,
	}
	if len(os.Args) == 2 && os.Args[1] == "-t" {
		if err := p.testDatastore(os.Stdin); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	skel.PluginMainFuncs(p.funcs(isIPAM(os.Args[0])), versions, "CNI plugin manx-cni "+buildVersion)
}

// testDatastore tells whether ADD could use the datastore of a network configuration now; operators run it as "-t".
func (p *plugin) testDatastore(conf io.Reader) error {
	data, err := io.ReadAll(conf)
	if err != nil {
		return err
	}
	c := &call{plugin: p}
	if c.conf, err = parseConf(data); err != nil {
		return err
	}
	c.log = newLogger(c.conf, p.stderr)
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	defer cancel()
	err = c.connect(ctx)
	if c.store != nil {
		_ = c.store.Close()
	}
	return err
}

// openDatastore connects to the servers of the network configuration, or of the environment where that is silent, or
// else to the datastore of the local manxd.
func openDatastore(
	ctx context.Context, c *netConf, getenv func(string) string, log *zap.Logger,
) (datastore.Store, error) {
	s := connect.FromEnvironment(getenv)
	s.Type, s.RunDir = c.DatastoreType, filepath.Dir(c.ManxdSocket)
	s.Etcd = s.Etcd.With(etcd.Config{
		Endpoints: etcd.SplitEndpoints(c.EtcdEndpoints),
		CAFile:    c.EtcdCACertFile, CertFile: c.EtcdCertFile, KeyFile: c.EtcdKeyFile,
		Username: c.EtcdUsername, PasswordFile: c.EtcdPasswordFile,
	})
	s.Warn = func(text string) { log.Warn("datastore: " + text) }
	store, err := connect.Open(ctx, s, zap.NewNop())
	if errors.Is(err, connect.ErrNoLocal) {
		return nil, types.NewError(types.ErrTryAgainLater, "the datastore is not known yet", err.Error()+
			": start manxd, or set etcd_endpoints in the network configuration or ETCD_ENDPOINTS in the environment")
	}
	return store, err
}
