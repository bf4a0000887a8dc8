package gobgpapi

import (
	"net/netip"
	"testing"

	v3 "github.com/osrg/gobgp/v3/api"
	v4 "github.com/osrg/gobgp/v4/api"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

func TestEnumerationsKeepTheirMeaning(t *testing.T) {
	for _, x := range []struct{ from, to protoreflect.Enum }{
		{v4.PeerState_SESSION_STATE_UNSPECIFIED, v3.PeerState_UNKNOWN},
		{v4.PeerState_SESSION_STATE_IDLE, v3.PeerState_IDLE},
		{v4.PeerState_SESSION_STATE_ESTABLISHED, v3.PeerState_ESTABLISHED},
		{v4.PeerState_ADMIN_STATE_UP, v3.PeerState_UP},
		{v4.PeerState_ADMIN_STATE_PFX_CT, v3.PeerState_PFX_CT},
		{v4.PeerType_PEER_TYPE_EXTERNAL, v3.PeerType_EXTERNAL},
		{v4.RemovePrivate_REMOVE_PRIVATE_ALL, v3.RemovePrivate_REMOVE_ALL},
		{v4.RemovePrivate_REMOVE_PRIVATE_REPLACE, v3.RemovePrivate_REPLACE},
		{v4.MatchSet_TYPE_INVERT, v3.MatchSet_INVERT},
		{v4.RouteAction_ROUTE_ACTION_REJECT, v3.RouteAction_REJECT},
		{v4.AsSegment_TYPE_AS_SEQUENCE, v3.AsSegment_AS_SEQUENCE},
		{v4.AsSegment_TYPE_AS_SET, v3.AsSegment_AS_SET},
		{v4.Family_AFI_IP6, v3.Family_AFI_IP6},
		{v4.Comparison_COMPARISON_LE, v3.AsPathLength_LE},
		{v4.ValidationState_VALIDATION_STATE_INVALID, v3.Validation_STATE_INVALID},
		{v4.WatchEventResponse_PeerEvent_TYPE_END_OF_INIT, v3.WatchEventResponse_PeerEvent_END_OF_INIT},
		// and the other way, in requests
		{v3.TableType_GLOBAL, v4.TableType_TABLE_TYPE_GLOBAL},
		{v3.TableType_ADJ_OUT, v4.TableType_TABLE_TYPE_ADJ_OUT},
		{v3.TableLookupPrefix_EXACT, v4.TableLookupPrefix_TYPE_EXACT},
		{v3.TableLookupPrefix_LONGER, v4.TableLookupPrefix_TYPE_LONGER},
		{v3.DefinedType_PREFIX, v4.DefinedType_DEFINED_TYPE_PREFIX},
		{v3.DefinedType_NEIGHBOR, v4.DefinedType_DEFINED_TYPE_NEIGHBOR},
		{v3.DefinedType_COMMUNITY, v4.DefinedType_DEFINED_TYPE_COMMUNITY},
		{v3.PolicyDirection_EXPORT, v4.PolicyDirection_POLICY_DIRECTION_EXPORT},
	} {
		if have := translateEnum(x.from.Descriptor(), x.from.Number(), x.to.Descriptor()); have != x.to.Number() {
			t.Errorf("%s.%v became %d, want %v", x.from.Descriptor().FullName(), x.from, have, x.to)
		}
	}
}

func TestUnknownAddressesAreEmpty(t *testing.T) {
	out := &v3.Peer{}
	translate(&v4.Peer{State: &v4.PeerState{RouterId: netip.Addr{}.String(), NeighborAddress: "10.0.0.2"}}, out)
	if out.State.RouterId != "" || out.State.NeighborAddress != "10.0.0.2" {
		t.Errorf("peer is %v", out)
	}
}

// Each capability and attribute that v4 can report must arrive: the command shows exactly the present ones.
func TestEachMemberHasASibling(t *testing.T) {
	for _, m := range []proto.Message{&v4.Capability{}, &v4.Attribute{}} {
		members := m.ProtoReflect().Descriptor().Oneofs().Get(0).Fields()
		for i := range members.Len() {
			if _, ok := sibling(members.Get(i).Message().Name()); !ok {
				t.Errorf("%s has no counterpart in v3", members.Get(i).Message().FullName())
			}
		}
	}
}

func TestOnlyReadingCallsAreServed(t *testing.T) {
	desc := readOnly(v3.GobgpApi_ServiceDesc)
	served := map[string]bool{}
	for _, m := range desc.Methods {
		_, err := m.Handler(nil, t.Context(), func(any) error { return errProbe }, nil)
		served[m.MethodName] = err == errProbe
	}
	for name, want := range map[string]bool{
		"GetBgp": true, "GetTable": true, "ResetPeer": true,
		"StartBgp": false, "StopBgp": false, "AddPeer": false, "DeletePeer": false, "UpdatePeer": false,
		"ShutdownPeer": false,
		"EnablePeer":   false, "DisablePeer": false, "AddPath": false, "DeletePath": false, "SetPolicies": false,
		"SetLogLevel": false,
		"EnableZebra": false, "EnableMrt": false, "AddBmp": false, "AddVrf": false, "AddRpki": false,
	} {
		if have, known := served[name]; !known || have != want {
			t.Errorf("%s: served is %v, want %v", name, have, want)
		}
	}
	for _, m := range desc.Streams {
		if m.StreamName == "AddPathStream" {
			if err := m.Handler(nil, grpc.ServerStream(nil)); err == nil {
				t.Error("AddPathStream is not refused")
			}
		}
	}
}

var errProbe = proto.Error
