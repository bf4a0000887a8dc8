package main

import (
	"context"
	"net"
	"strings"
	"testing"

	v3 "github.com/osrg/gobgp/v3/api"
	"github.com/spf13/pflag"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/manxnet/manx/daemon/envflag"
)

// The variables of calico/node choose the networking, CALICO_NETWORKING first, as there.
func TestNetworkingFromTheEnvironment(t *testing.T) {
	for _, x := range []struct{ backend, legacy, off, wrong string }{
		{},
		{backend: "bird"}, {backend: "gobgp"}, {legacy: "true"}, {backend: "none", legacy: "true"},
		{backend: "vxlan", off: "BGP is off (CALICO_NETWORKING_BACKEND=vxlan)"},
		{backend: "none", off: "BGP is off (CALICO_NETWORKING_BACKEND=none)"},
		{backend: "bird", legacy: "false", off: "BGP is off (CALICO_NETWORKING_BACKEND=none)"},
		{backend: "vpp", wrong: "--networking=vpp: want bird, vxlan or none (CALICO_NETWORKING_BACKEND"},
		{legacy: "maybe", wrong: "--networking=maybe: want bird, vxlan or none"},
	} {
		var o networkingOptions
		flags := pflag.NewFlagSet("manxd", pflag.ContinueOnError)
		o.Flags(envflag.Set{FlagSet: flags})
		_, err := envflag.FromEnvironment(flags, func(name string) string {
			return map[string]string{"CALICO_NETWORKING_BACKEND": x.backend, "CALICO_NETWORKING": x.legacy}[name]
		})
		must(t, err)
		err = o.Check()
		if (err != nil) != (x.wrong != "") || err != nil && !strings.HasPrefix(err.Error(), x.wrong) {
			t.Errorf("%+v: %v", x, err)
		}
		if err == nil && (o.bgpOff() != x.off || o.bgp() != (x.off == "") ||
			o.policyOnly() != strings.HasSuffix(x.off, "none)")) {
			t.Errorf("%+v: %q, %+v", x, o.bgpOff(), o)
		}
	}
}

// Without BGP the gobgp command gets the reason.
func TestGobgpWithoutBGP(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	g := noGobgp("BGP is off")(nil)
	defer g.Stop()
	go func() { _ = g.Serve(l) }()
	conn, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	must(t, err)
	defer conn.Close()
	client := v3.NewGobgpApiClient(conn)
	_, err = client.GetBgp(t.Context(), &v3.GetBgpRequest{})
	check := func(err error) {
		t.Helper()
		if s := status.Convert(err); s.Code() != codes.FailedPrecondition || s.Message() != "BGP is off" {
			t.Errorf("%v", err)
		}
	}
	check(err)
	stream, err := client.ListPeer(context.Background(), &v3.ListPeerRequest{})
	must(t, err)
	_, err = stream.Recv()
	check(err)
}
