package gobgpapi

import (
	"strings"

	v3 "github.com/osrg/gobgp/v3/api"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/known/anypb"
)

// translate copies from, a message of one version of GoBGP's API, into to, its counterpart of the other version. The
// versions have the same field names but for three differences, which it bridges: v4 numbers enumerations from
// UNSPECIFIED and puts the type before each name (ADJ_IN became TABLE_TYPE_ADJ_IN); v4 has a message with one of
// several members where v3 has an Any; and either has fields that the other lacks, which are left out.
func translate(from, to proto.Message) {
	translateMessage(from.ProtoReflect(), to.ProtoReflect())
}

func translateMessage(from, to protoreflect.Message) {
	fields := to.Descriptor().Fields()
	for i := range fields.Len() {
		dst := fields.Get(i)
		src := from.Descriptor().Fields().ByName(dst.Name())
		if src == nil || src.IsMap() || dst.IsMap() || src.IsList() != dst.IsList() {
			continue
		}
		if dst.IsList() {
			translateList(from.Get(src).List(), src, to, dst)
			continue
		}
		// Enumerations have another zero, so that one counts as set too.
		if src.Kind() != protoreflect.EnumKind && !from.Has(src) {
			continue
		}
		if v, ok := translateValue(from.Get(src), src, to.NewField(dst), dst); ok {
			to.Set(dst, v)
		}
	}
}

func translateList(
	from protoreflect.List, src protoreflect.FieldDescriptor, to protoreflect.Message, dst protoreflect.FieldDescriptor,
) {
	if from.Len() == 0 {
		return
	}
	list := to.Mutable(dst).List()
	for i := range from.Len() {
		element := protoreflect.Value{}
		if dst.Kind() == protoreflect.MessageKind {
			element = list.NewElement()
		}
		if v, ok := translateValue(from.Get(i), src, element, dst); ok {
			list.Append(v)
		}
	}
}

// noAddress is GoBGP v4's text for an unknown address, such as the router ID of a peer that is down.
const noAddress = "invalid IP"

// translateValue gives the value of one field or list element; into is an empty message to fill, if it is one.
func translateValue(
	v protoreflect.Value, src protoreflect.FieldDescriptor, into protoreflect.Value, dst protoreflect.FieldDescriptor,
) (protoreflect.Value, bool) {
	switch {
	case src.Kind() != dst.Kind():
		return v, false
	case dst.Kind() == protoreflect.EnumKind:
		return protoreflect.ValueOfEnum(translateEnum(src.Enum(), v.Enum(), dst.Enum())), true
	case dst.Kind() == protoreflect.StringKind && v.String() == noAddress:
		return v, false
	case dst.Kind() != protoreflect.MessageKind:
		return v, true
	case src.Message().FullName() == dst.Message().FullName(): // a well-known type
		return v, true
	case dst.Message().FullName() == "google.protobuf.Any":
		return wrap(v.Message())
	}
	translateMessage(v.Message(), into.Message())
	return into, true
}

// wrap puts the member that is set in a v4 message into an Any with the v3 message of the same name.
func wrap(from protoreflect.Message) (protoreflect.Value, bool) {
	var member protoreflect.Message
	from.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		if f.ContainingOneof() != nil && f.Kind() == protoreflect.MessageKind {
			member = v.Message()
		}
		return member == nil
	})
	if member == nil {
		return protoreflect.Value{}, false
	}
	to, ok := sibling(member.Descriptor().Name())
	if !ok {
		return protoreflect.Value{}, false
	}
	translateMessage(member, to.ProtoReflect())
	wrapped, err := anypb.New(to)
	if err != nil {
		return protoreflect.Value{}, false
	}
	return protoreflect.ValueOfMessage(wrapped.ProtoReflect()), true
}

const capExtendedMessage = 6 // RFC 8654

// sibling makes an empty v3 message by its name in v4.
func sibling(name protoreflect.Name) (proto.Message, bool) {
	if name == "ExtendedMessageCapability" { // v3 has no name for it
		return &v3.UnknownCapability{Code: capExtendedMessage}, true
	}
	t, err := protoregistry.GlobalTypes.FindMessageByName("apipb." + protoreflect.FullName(name))
	if err != nil {
		return nil, false
	}
	return t.New().Interface(), true
}

// translateEnum finds the value whose name differs by the shortest prefix (INIT and END_OF_INIT are both the end of
// TYPE_END_OF_INIT); failing that the one with the same number.
func translateEnum(
	src protoreflect.EnumDescriptor, n protoreflect.EnumNumber, dst protoreflect.EnumDescriptor,
) protoreflect.EnumNumber {
	value := src.Values().ByNumber(n)
	if value == nil || strings.HasSuffix(string(value.Name()), "_UNSPECIFIED") {
		return 0
	}
	best, found, shortest := protoreflect.EnumNumber(0), false, 0
	for i := range dst.Values().Len() {
		other := dst.Values().Get(i)
		prefix, same := differingPrefix(string(value.Name()), string(other.Name()))
		if same && (!found || prefix < shortest) {
			best, found, shortest = other.Number(), true, prefix
		}
	}
	if !found && dst.Values().ByNumber(n) != nil {
		return n
	}
	return best
}

// differingPrefix reports whether one name is the other with words before it, and how long those are.
func differingPrefix(a, b string) (int, bool) {
	if len(a) < len(b) {
		a, b = b, a
	}
	return len(a) - len(b), a == b || strings.HasSuffix(a, "_"+b)
}
