package server

import (
	"net/netip"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/manxnet/manx/dataplane/flowlog"
	manxv1 "github.com/manxnet/manx/proto/manx/v1"
)

// DropsView shows the packets that policy drops and logs: none, until there is a hub.
type DropsView struct{ shown[*flowlog.Hub] }

// WatchDrops implements manxv1.ManxServer.
func (v *DropsView) WatchDrops(r *manxv1.WatchDropsRequest, stream grpc.ServerStreamingServer[manxv1.Drop]) error {
	hub := v.now()
	if hub == nil {
		return status.Error(codes.FailedPrecondition, "manxd records no dropped packets: start it with "+
			"--flow-log=stream (or a file)")
	}
	f := flowlog.Filter{Endpoint: r.GetEndpoint(), Rule: r.GetRule(), Action: flowlog.Action(r.GetAction())}
	switch f.Action {
	case "", flowlog.Dropped, flowlog.Logged:
	default:
		return status.Errorf(codes.InvalidArgument, "action = %q: want %q or %q", f.Action, flowlog.Dropped,
			flowlog.Logged)
	}
	if r.GetPort() > 65535 {
		return status.Errorf(codes.InvalidArgument, "port = %d: want at most 65535", r.GetPort())
	}
	f.Port = uint16(r.GetPort())
	if text := r.GetNet(); text != "" {
		net, err := parseNet(text)
		if err != nil {
			return status.Errorf(codes.InvalidArgument, "net = %q: want ADDRESS or ADDRESS/LENGTH", text)
		}
		f.Net = net
	}
	drops, stop := hub.Subscribe(f)
	defer stop()
	for {
		select {
		case <-stream.Context().Done():
			return stream.Context().Err()
		case d := <-drops:
			if err := stream.Send(dropMessage(&d)); err != nil {
				return err
			}
		}
	}
}

func parseNet(text string) (netip.Prefix, error) {
	if a, err := netip.ParseAddr(text); err == nil {
		return netip.PrefixFrom(a, a.BitLen()), nil
	}
	p, err := netip.ParsePrefix(text)
	return p.Masked(), err
}

func dropMessage(d *flowlog.Entry) *manxv1.Drop {
	m := &manxv1.Drop{
		TimeUnixMs: d.Time.UnixMilli(), Action: string(d.Action), Rule: d.Rule, Source: d.Source.String(),
		Destination: d.Destination.String(), Protocol: d.Protocol,
		SourcePort: uint32(d.SourcePort), DestinationPort: uint32(d.DestinationPort), IcmpType: -1, IcmpCode: -1,
		In: d.In, Out: d.Out,
		SourceEndpoint: d.SourceEndpoint, DestinationEndpoint: d.DestinationEndpoint, Packets: uint64(d.Packets),
		Suppressed: uint64(d.Suppressed),
	}
	if d.ICMPType != nil {
		m.IcmpType, m.IcmpCode = int32(*d.ICMPType), int32(*d.ICMPCode)
	}
	return m
}
