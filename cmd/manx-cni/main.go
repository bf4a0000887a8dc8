package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/version"
	"go.uber.org/zap"

	"github.com/manxnet/manx/datastore"
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
		mtuFile: defaultMTUFile, now: time.Now, open: openEtcd,
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
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	defer cancel()
	err = c.connect(ctx)
	if c.store != nil {
		_ = c.store.Close()
	}
	return err
}

// openEtcd connects to the servers of the network configuration, or of the environment where that is silent.
func openEtcd(ctx context.Context, c *netConf, getenv func(string) string) (datastore.Store, error) {
	cfg := etcd.ConfigFromEnv(getenv)
	for _, s := range []struct {
		to   *string
		from string
	}{{&cfg.CAFile, c.EtcdCACertFile}, {&cfg.CertFile, c.EtcdCertFile}, {&cfg.KeyFile, c.EtcdKeyFile}} {
		if s.from != "" {
			*s.to = s.from
		}
	}
	if list := etcd.SplitEndpoints(c.EtcdEndpoints); len(list) > 0 {
		cfg.Endpoints = list
	}
	if len(cfg.Endpoints) == 0 {
		return nil, invalidConf("etcd_endpoints is missing", "set it in the network configuration, or ETCD_ENDPOINTS in the environment")
	}
	s, err := etcd.Open(ctx, cfg, zap.NewNop())
	if err != nil {
		return nil, err
	}
	return s, nil
}
