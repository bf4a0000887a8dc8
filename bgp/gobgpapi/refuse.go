package gobgpapi

import (
	"context"
	"slices"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// reads reports whether a call of the API changes nothing, or only as much as ResetPeer permits.
func reads(method string) bool {
	return strings.HasPrefix(method, "List") || strings.HasPrefix(method, "Get") || method == "WatchEvent" ||
		method == "ResetPeer"
}

// readOnly is the service with all other calls refused before their request is looked at.
func readOnly(desc grpc.ServiceDesc) *grpc.ServiceDesc {
	desc.Methods = slices.Clone(desc.Methods)
	for i, m := range desc.Methods {
		if !reads(m.MethodName) {
			desc.Methods[i].Handler = func(any, context.Context, func(any) error, grpc.UnaryServerInterceptor) (any,
				error) {
				return nil, refusal(m.MethodName, instead(m.MethodName))
			}
		}
	}
	desc.Streams = slices.Clone(desc.Streams)
	for i, m := range desc.Streams {
		if !reads(m.StreamName) {
			desc.Streams[i].Handler = func(any, grpc.ServerStream) error {
				return refusal(m.StreamName, instead(m.StreamName))
			}
		}
	}
	return &desc
}

func refusal(method, why string) error {
	return status.Errorf(codes.PermissionDenied, "%s is refused: %s", method, why)
}

// instead names the way to do with Manx the work of a refused call.
func instead(method string) string {
	switch {
	case strings.Contains(method, "Path"):
		return "a node advertises the blocks of its IPPools and BGPConfiguration's prefixes; change them with " +
			"`manxctl apply -f FILE`"
	case strings.Contains(method, "Peer"), strings.Contains(method, "DynamicNeighbor"):
		return "sessions follow BGPPeer and BGPConfiguration resources in the datastore; change them with `manxctl " +
			"apply -f FILE`"
	case strings.Contains(method, "Polic"), strings.Contains(method, "Statement"),
		strings.Contains(method, "DefinedSet"):
		return "the advertised routes follow IPPool, BGPConfiguration and BGPPeer resources in the datastore; change " +
			"them with `manxctl apply -f FILE`"
	case method == "StartBgp", method == "StopBgp":
		return "manxd starts and stops BGP; AS number and router ID come from Node and BGPConfiguration resources, " +
			"change them with `manxctl apply -f FILE`"
	case method == "SetLogLevel":
		return "set the log level of manxd with `manxctl loglevel LEVEL`"
	}
	return "this node follows the datastore; change it with `manxctl apply -f FILE`"
}
