package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/manxnet/manx/proto/server"
)

const controlFlag = "control-listen"

// controlOptions say who may use the control API from other hosts.
type controlOptions struct {
	listen                    string
	caFile, certFile, keyFile string
	admins, readers           string
}

func (b binder) control(o *controlOptions) {
	b.string(&o.listen, controlFlag, "", "ADDRESS:PORT where the control API is served to other hosts, over mutual "+
		"TLS alone; empty: nowhere", "MANX_CONTROL_LISTEN")
	b.string(&o.caFile, "control-ca-file", "", "CA that signs the certificates of callers of --control-listen",
		"MANX_CONTROL_CA_FILE")
	b.string(&o.certFile, "control-cert-file", "", "certificate of --control-listen; files that change are read again",
		"MANX_CONTROL_CERT_FILE")
	b.string(&o.keyFile, "control-key-file", "", "key of that certificate", "MANX_CONTROL_KEY_FILE")
	b.string(&o.admins, "control-admins", "",
		"names in certificates (common name, DNS name or URI, compared exactly; comma separated) whose owners may "+
			"call everything", "MANX_CONTROL_ADMINS")
	b.string(&o.readers, "control-readers", "", "the same for those who may only read", "MANX_CONTROL_READERS")
}

func (o controlOptions) remote() server.Remote {
	return server.Remote{CAFile: o.caFile, CertFile: o.certFile, KeyFile: o.keyFile, Admins: names(o.admins),
		Readers: names(o.readers)}
}

// names are those of a list with commas.
func names(list string) (all []string) {
	for n := range strings.SplitSeq(list, ",") {
		if n = strings.TrimSpace(n); n != "" {
			all = append(all, n)
		}
	}
	return all
}

// check refuses a listener that nobody could use.
func (o controlOptions) check() error {
	if o.listen == "" {
		return nil
	}
	if err := o.remote().Check(); err != nil {
		return fmt.Errorf("--%s=%s: %w (--control-ca-file, --control-cert-file, --control-key-file; "+
			"--control-admins, --control-readers)", controlFlag, o.listen, err)
	}
	return checkListen(controlFlag, o.listen)
}

// serveControl serves the control API to other hosts, as soon as there are certificates.
func serveControl(ctx context.Context, tasks *errgroup.Group, p *ports, o controlOptions, control *server.Server) {
	if o.listen == "" {
		return
	}
	tasks.Go(func() error {
		for {
			err := o.remote().Readable()
			p.note(controlFlag, o.listen, err)
			if err == nil {
				break
			}
			select {
			case <-ctx.Done():
				return nil
			case <-time.After(retryAfter):
			}
		}
		return p.serve(ctx, controlFlag, o.listen, func(l net.Listener) error {
			if err := control.ServeRemote(ctx, l, o.remote()); err != nil && !errors.Is(err, net.ErrClosed) {
				return fmt.Errorf("--%s=%s: %w", controlFlag, o.listen, err)
			}
			return nil
		})
	})
}
