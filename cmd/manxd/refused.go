package main

import (
	"fmt"

	"github.com/manxnet/manx/bgp/fib"
	"github.com/manxnet/manx/proto/server"
)

// shownRefusals is the maximum number of refused routes with a notice each.
const shownRefusals = 20

// refusedRoutes reports routes that peers advertise and that this node must not use.
func refusedRoutes(rejected []fib.Rejection) []server.Notice {
	var notices []server.Notice
	for i, r := range rejected {
		if i == shownRefusals {
			return append(notices, server.Notice{Topic: "bgp", Subject: "refused routes",
				Text: fmt.Sprintf("%d more routes of peers are refused", len(rejected)-i)})
		}
		notices = append(notices, server.Notice{Topic: "bgp", Subject: "route " + r.Prefix.String(),
			Text: fmt.Sprintf("refused from %s (next hop %s): %s", r.Path.Peer, r.Path.NextHop, r.Reason)})
	}
	return notices
}
