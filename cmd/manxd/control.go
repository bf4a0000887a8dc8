package main

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"strings"

	"github.com/manxnet/manx/daemon/deps"
	"github.com/manxnet/manx/daemon/envflag"
	"github.com/manxnet/manx/daemon/listen"
	"github.com/manxnet/manx/daemon/part"
	"github.com/manxnet/manx/proto/server"
)

const controlFlag = "control-listen"

// controlOptions configure the control API for other hosts.
type controlOptions struct {
	listen                    string
	caFile, certFile, keyFile string
	admins, readers           string
}

// Flags implements group.
func (o *controlOptions) Flags(s envflag.Set) {
	s.String(&o.listen, controlFlag, "", "ADDRESS:PORT where the control API is served to other hosts, over mutual "+
		"TLS alone; empty: nowhere", "MANX_CONTROL_LISTEN")
	s.String(&o.caFile, "control-ca-file", "", "CA that signs the certificates of callers of --control-listen",
		"MANX_CONTROL_CA_FILE")
	s.String(&o.certFile, "control-cert-file", "", "certificate of --control-listen; files that change are read again",
		"MANX_CONTROL_CERT_FILE")
	s.String(&o.keyFile, "control-key-file", "", "key of --control-cert-file", "MANX_CONTROL_KEY_FILE")
	s.String(&o.admins, "control-admins", "",
		"names in certificates (common name, DNS name or URI, compared exactly; comma separated) whose owners may "+
			"call everything", "MANX_CONTROL_ADMINS")
	s.String(&o.readers, "control-readers", "", "names in certificates, as for --control-admins, whose "+
		"owners may only read", "MANX_CONTROL_READERS")
}

func (o *controlOptions) remote() server.Remote {
	return server.Remote{CAFile: o.caFile, CertFile: o.certFile, KeyFile: o.keyFile, Admins: names(o.admins),
		Readers: names(o.readers)}
}

// names splits a list at its commas.
func names(list string) (all []string) {
	for n := range strings.SplitSeq(list, ",") {
		if n = strings.TrimSpace(n); n != "" {
			all = append(all, n)
		}
	}
	return all
}

// Check implements group. It refuses a listener without any permitted user.
func (o *controlOptions) Check() error {
	if o.listen == "" {
		return nil
	}
	if err := o.remote().Check(); err != nil {
		return fmt.Errorf("--%s=%s: %w (--control-ca-file, --control-cert-file, --control-key-file; "+
			"--control-admins, --control-readers)", controlFlag, o.listen, err)
	}
	return listen.Check(controlFlag, o.listen)
}

// controlSocket serves the control API on this host. Without it no operator could query the daemon, or end it in order:
// its failure ends the daemon.
type controlSocket struct {
	deps.Deps
	listener net.Listener
}

func newControlSocket(d deps.Deps) *controlSocket { return &controlSocket{Deps: d} }

func (c *controlSocket) Name() string { return "control" }

func (c *controlSocket) Open() (err error) {
	c.listener, err = server.Listen(filepath.Join(c.Node.RunDir, "manxd.sock"))
	return part.Fatal(err)
}

func (c *controlSocket) Run(ctx context.Context) error {
	return part.Fatal(c.Control.Serve(ctx, c.listener))
}

// newRemoteControl serves the control API to other hosts, as soon as there are certificates.
func newRemoteControl(d deps.Deps, o controlOptions) part.Part {
	p := listen.NewPort(controlFlag, o.listen, func(ctx context.Context, l net.Listener) error {
		return d.Control.ServeRemote(ctx, l, o.remote())
	})
	if p != nil {
		p.Ready = o.remote().Readable
	}
	return part.Optional(p)
}
