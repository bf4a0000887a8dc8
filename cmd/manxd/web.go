package main

import (
	"github.com/manxnet/manx/daemon/deps"
	"github.com/manxnet/manx/daemon/envflag"
	"github.com/manxnet/manx/daemon/listen"
	"github.com/manxnet/manx/daemon/part"
)

const httpFlag = "http-listen"

// webOptions configure the listener for health and metrics.
type webOptions struct{ listen string }

// Flags implements group.
func (o *webOptions) Flags(s envflag.Set) {
	s.String(&o.listen, httpFlag, "127.0.0.1:9099", "ADDRESS:PORT of health and metrics; empty: off",
		"MANX_HTTP_LISTEN")
}

// Check implements group.
func (o *webOptions) Check() error { return listen.Check(httpFlag, o.listen) }

// newWeb serves health and metrics.
func newWeb(d deps.Deps, o webOptions) part.Part {
	return part.Optional(listen.NewPort(httpFlag, o.listen, d.Control.ServeWeb))
}

// newFelixListeners returns nil beside calico/node, whose Felix has these listeners.
func newFelixListeners(d deps.Deps, o webOptions, calico calicoOptions) part.Part {
	if calico.beside {
		return nil
	}
	return listen.NewFelix(d, o.listen)
}
