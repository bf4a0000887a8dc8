package main

import "github.com/manxnet/manx/daemon/part"

const httpFlag = "http-listen"

// newWeb serves health and metrics.
func newWeb(d *daemon) part.Part {
	return part.Optional(newPort(httpFlag, d.httpListen, d.control.ServeWeb))
}
