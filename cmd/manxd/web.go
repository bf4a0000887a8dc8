package main

import (
	"context"
	"errors"
	"net"
	"net/http"
	"time"

	"github.com/manxnet/manx/cmd/manxd/part"
)

const httpFlag = "http-listen"

// newWeb serves health and metrics.
func newWeb(d *daemon) part.Part {
	return part.Optional(newPort(httpFlag, d.httpListen, func(ctx context.Context, l net.Listener) error {
		h := &http.Server{Handler: d.control.Handler(), ReadHeaderTimeout: 10 * time.Second}
		closeAll := func() { _ = h.Close() }
		defer context.AfterFunc(ctx, closeAll)()
		defer closeAll()
		if err := h.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			return err
		}
		return nil
	}))
}
